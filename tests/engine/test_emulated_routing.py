"""Top-k of a row, as the kernel finds it, against a stable sort."""

import ctypes

import numpy as np
import pytest
from emulated import compile_host

from engine.cuda import abi
from engine.cuda.defines import kernel_defines


@pytest.fixture(scope="module")
def library():
    return compile_host("emulator.cpp", kernel_defines(256, trace=0, rows=1))


def route(library, logits, top_k: int, kind: str, renormalise: bool) -> tuple[list[int], np.ndarray]:
    """(experts in the order in which the kernel keeps them, what each counts for)."""
    logits, params = np.ascontiguousarray(logits, np.float32), np.zeros(1, abi.PARAMS)
    expert, weight = np.full(top_k, 999, np.uint32), np.full(top_k, -1, np.float32)
    fields = {"experts": len(logits), "top_k": top_k, "router_kind": abi.ROUTERS.index(kind), "renormalise": renormalise}
    for name, value in (fields | {"router_logits": logits.ctypes.data}).items():
        params[name] = value
    library.emulate_route(*(ctypes.c_void_p(a.ctypes.data) for a in (params, expert, weight)))
    return expert.tolist(), weight


def expected(logits, top_k: int, kind: str, renormalise: bool) -> tuple[list[int], np.ndarray]:
    """The lowest expert of equal logits, a NaN above all others; experts ascend."""
    v = np.asarray(logits, np.float64)
    chosen = sorted(sorted(range(len(v)), key=lambda e: (not np.isnan(v[e]), -v[e] if v[e] == v[e] else 0, e))[:top_k])
    if kind == "sigmoid":
        weight = 1 / (1 + np.exp(-v[chosen]))
    else:
        among = v if kind == "softmax_all" else v[chosen]
        weight = np.exp(v[chosen] - v[chosen].max()) / np.exp(among - among.max()).sum()
    return chosen, weight / weight.sum() if renormalise else weight


SIZES = [(1, 1), (3, 3), (8, 3), (31, 8), (33, 16), (64, 6), (128, 8), (130, 16), (256, 1), (256, 16)]


@pytest.mark.parametrize("kind", abi.ROUTERS)
def test_a_row_has_the_experts_of_a_stable_sort(library, kind):
    rng = np.random.default_rng(5)
    for experts, top_k in SIZES:
        for values in (0, 1, 3, 40):  # so many distinct logits; 0: as many as there are experts
            logits = rng.normal(size=experts) if values == 0 else rng.integers(0, values, experts) - 1.0
            got, want = (f(logits, top_k, kind, bool(values % 2)) for f in (lambda *a: route(library, *a), expected))
            assert got[0] == want[0], (experts, top_k, values)
            assert np.allclose(got[1], want[1], rtol=1e-5), (experts, top_k, values)


@pytest.mark.parametrize("special", [np.inf, -np.inf, np.nan, 0.0])
def test_logits_that_are_not_finite_leave_a_row_its_experts(library, special):
    """Each of the chosen once, whatever it counts for."""
    rng = np.random.default_rng(6)
    for experts, top_k in SIZES:
        for share in (0.1, 0.9, 1.0):
            logits = np.where(rng.random(experts) < share, special, rng.normal(size=experts))
            with np.errstate(all="ignore"):
                assert route(library, logits, top_k, "softmax_chosen", False)[0] == expected(logits, top_k, "sigmoid", False)[0]
