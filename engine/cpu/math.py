"""Inner loops of the CPU backend: products, norms, rounding.

Bits must not depend on the batch, so no BLAS (its sums depend on the shape).  Each weight row meets each activation row in one
dot product whose order of summation follows from its length alone: the vectoriser may reorder the sum (``reassoc``), but it
does so once, when the function is compiled, for every row alike.
"""

from __future__ import annotations

import numpy as np
from numba import cfunc, types

from engine.cpu.atomics import bits_from_f32, f32_from_bits
from engine.cpu.compiled import inner
from engine.cpu.words import pointer_f32, pointer_i32, pointer_u16

SUM = {"reassoc", "contract", "nsz"}  # no nnan/ninf: a NaN must come out as a NaN
F32, BF16 = 0, 1  # how a weight matrix is stored


@inner()
def _wide(bits):
    return f32_from_bits(np.uint32(bits) << np.uint32(16))


@inner()
def round_bf16(value):
    """f32 rounded to the nearest bf16, ties to even, as f32; NaN stays NaN."""
    if value != value:
        return value
    bits = bits_from_f32(value)
    return f32_from_bits((bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) & np.uint32(0xFFFF0000))


@inner(fastmath=SUM)
def _dots_bf16(w, at0, at1, at2, at3, k, x, xat):
    a = b = c = d = np.float32(0)
    for i in range(k):
        v = x[xat + i]
        a += _wide(w[at0 + i]) * v
        b += _wide(w[at1 + i]) * v
        c += _wide(w[at2 + i]) * v
        d += _wide(w[at3 + i]) * v
    return a, b, c, d


@inner(fastmath=SUM)
def _dots_f32(w, at0, at1, at2, at3, k, x, xat):
    a = b = c = d = np.float32(0)
    for i in range(k):
        v = x[xat + i]
        a += w[at0 + i] * v
        b += w[at1 + i] * v
        c += w[at2 + i] * v
        d += w[at3 + i] * v
    return a, b, c, d


_MATMUL = types.int64(*[types.int64] * 11)


@cfunc(_MATMUL, cache=True)
def matmul(weight, kind, k, first, count, x, rows, n_rows, out, out_stride, column):
    """out[i, column + j] = W[first + j] · x[rows[i]] for j < count, i < n_rows.  All arguments i64.

    W: row-major, k columns, at address ``weight``, stored as ``kind`` (F32, BF16); x: f32 with rows of k at address ``x``;
    ``rows``: address of i32[n_rows]; ``out``: address of f32 with rows of ``out_stride``.  Four weight rows share a pass over
    x; the last pass of a tile repeats its last row where fewer are left, so that every row of every tile is summed by the
    same code, in the same order.
    """
    xs, which, o = pointer_f32(x), pointer_i32(rows), pointer_f32(out)
    wide, narrow = pointer_f32(weight), pointer_u16(weight)
    last = first + count - 1
    for j in range(0, count, 4):
        at0, at1 = (first + j) * k, min(first + j + 1, last) * k
        at2, at3 = min(first + j + 2, last) * k, min(first + j + 3, last) * k
        for i in range(n_rows):
            xat, at = which[i] * k, i * out_stride + column + j
            if kind == BF16:
                a, b, c, d = _dots_bf16(narrow, at0, at1, at2, at3, k, xs, xat)
            else:
                a, b, c, d = _dots_f32(wide, at0, at1, at2, at3, k, xs, xat)
            o[at] = a
            if j + 1 < count:
                o[at + 1] = b
            if j + 2 < count:
                o[at + 2] = c
            if j + 3 < count:
                o[at + 3] = d
    return 0


@inner()
def load_row(weight, kind, k, row, out):
    """out[:k] = W[row], widened to f32."""
    if kind == BF16:
        w = pointer_u16(weight)
        for i in range(k):
            out[i] = _wide(w[row * k + i])
    else:
        v = pointer_f32(weight)
        for i in range(k):
            out[i] = v[row * k + i]


@inner(fastmath=SUM)
def dot(x, y):
    """Sum of x[i] * y[i], f32, equal lengths."""
    a = np.float32(0)
    for i in range(x.shape[0]):
        a += x[i] * y[i]
    return a


@inner(fastmath=SUM)
def _mean(x):
    s = np.float32(0)
    for i in range(x.shape[0]):
        s += x[i]
    return s / np.float32(x.shape[0])


@inner(fastmath=SUM)
def _mean_square(x, mean):
    s = np.float32(0)
    for i in range(x.shape[0]):
        s += (x[i] - mean) * (x[i] - mean)
    return s / np.float32(x.shape[0])


@inner()
def normalise(x, weight, eps, centre, bf16, out):
    """RMSNorm, or LayerNorm without bias where ``centre``: out = (x - mean) / sqrt(var + eps) * weight."""
    mean = _mean(x) if centre else np.float32(0)
    scale = np.float32(1) / np.sqrt(_mean_square(x, mean) + eps)
    for i in range(x.shape[0]):
        out[i] = (x[i] - mean) * scale * weight[i]
    if bf16:
        for i in range(x.shape[0]):
            out[i] = round_bf16(out[i])


_LOG2_E = np.float32(1.4426950408889634)
_LN2_HIGH, _LN2_LOW = np.float32(0.693359375), np.float32(-2.12194440054690583e-4)  # the first times a small integer is exact


@inner()
def exp(x):
    """e to the x, f32, within 1.5 units in the last place; 0 below -87, infinite above 88.

    Our own, because the library's may be replaced by a vector one for most elements of a loop, and its bits by another's.
    """
    if x != x:
        return x
    if x > np.float32(88):
        return np.float32(np.inf)
    if x < np.float32(-87):
        return np.float32(0)
    n = np.floor(x * _LOG2_E + np.float32(0.5))
    r = x - n * _LN2_HIGH - n * _LN2_LOW
    p = np.float32(1 / 5040)  # the series to r^7: what is left out is below 1e-8 for |r| <= ln(2) / 2
    p = p * r + np.float32(1 / 720)
    p = p * r + np.float32(1 / 120)
    p = p * r + np.float32(1 / 24)
    p = p * r + np.float32(1 / 6)
    p = p * r + np.float32(1 / 2)
    p = p * r * r + r + np.float32(1)
    return p * f32_from_bits(np.uint32(np.int32(n) + np.int32(127)) << np.uint32(23))


@inner()
def silu(v):
    return v / (np.float32(1) + exp(-v))
