"""Inner loops of the CPU backend against NumPy and ml_dtypes: products, exp, rounding to bf16."""

import ml_dtypes
import numba
import numpy as np
import pytest

from engine.cpu import math


@numba.njit
def exp_all(x, out):
    for i in range(len(x)):
        out[i] = math.exp(x[i])


@numba.njit
def round_all(x, out):
    for i in range(len(x)):
        out[i] = math.round_bf16(x[i])


def mapped(function, x):
    out = np.empty_like(x)
    function(x, out)
    return out


def test_exp():
    x = np.linspace(-87, 88, 1_000_001, dtype=np.float32)
    want = np.exp(x.astype(np.float64))
    error = np.abs(mapped(exp_all, x) - want) / np.spacing(want.astype(np.float32))
    assert error.max() < 1.5  # units in the last place
    edges = np.array([0, -0.0, -87.1, -np.inf, 88.1, np.inf, np.nan], np.float32)
    assert np.array_equal(mapped(exp_all, edges), np.array([1, 1, 0, 0, np.inf, np.inf, np.nan], np.float32), equal_nan=True)


def test_exp_has_the_same_bits_wherever_an_element_lies():
    x = np.random.default_rng(0).normal(0, 5, 1000).astype(np.float32)
    alone = np.concatenate([mapped(exp_all, x[i : i + 1]) for i in range(1000)])
    for start in range(9):
        assert np.array_equal(mapped(exp_all, x[start:].copy()), alone[start:])


def test_rounding_to_bf16():
    bits = np.random.default_rng(0).integers(0, 1 << 32, 200_000, dtype=np.uint32)
    x = np.concatenate(
        [bits.view(np.float32), np.float32([0, -0.0, np.inf, -np.inf, np.nan, 3.4e38, 1 + 2**-8, 1 + 3 * 2**-8])]
    )
    with np.errstate(all="ignore"):
        want = x.astype(ml_dtypes.bfloat16).astype(np.float32)
    assert np.array_equal(mapped(round_all, x), want, equal_nan=True)


@pytest.mark.parametrize("kind", [math.F32, math.BF16])
@pytest.mark.parametrize("k", [1, 7, 10, 39, 64, 320])
def test_products(kind, k):
    """Every row's product has the same bits whichever rows share its tile, and is right to f32 rounding."""
    rng = np.random.default_rng(k)
    weight = rng.standard_normal((13, k)).astype(ml_dtypes.bfloat16 if kind == math.BF16 else np.float32)
    x = rng.standard_normal((5, k)).astype(np.float32)

    def product(first, count, rows):
        rows, out = np.array(rows, np.int32), np.full((len(rows), count + 3), np.nan, np.float32)
        math.matmul.ctypes(weight.ctypes.data, kind, k, first, count, x.ctypes.data, rows.ctypes.data, len(rows),
                           out.ctypes.data, count + 3, 2)  # fmt: skip
        assert np.isnan(out[:, [0, 1, -1]]).all()  # nothing beside its columns
        return out[:, 2:-1]

    every = product(0, 13, range(5))
    exact = x.astype(np.float64) @ weight.astype(np.float64).T
    size = np.abs(x).astype(np.float64) @ np.abs(weight.astype(np.float64)).T
    assert np.all(np.abs(every - exact) <= 2**-23 * size * np.sqrt(k))
    for first in range(13):
        for count in range(1, 14 - first):
            assert np.array_equal(product(first, count, [3, 1, 3]), every[[3, 1, 3], first : first + count])
