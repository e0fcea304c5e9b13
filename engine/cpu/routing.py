"""Routing: top-k of a row's router logits, replicated by every worker instead of signalled by one."""

from __future__ import annotations

import numpy as np
from numba import cfunc, types

from engine.cpu.binding import load_binding, load_scratch
from engine.cpu.compiled import inner
from engine.cpu.math import exp
from engine.cpu.words import f32, i32, i64

ROUTERS = ("sigmoid", "softmax_chosen", "softmax_all")


@inner()
def has(chosen, expert):
    for k in range(chosen.shape[0]):  # noqa: SIM110 (numba has no any())
        if chosen[k] == expert:
            return True
    return False


@inner()
def _choose(logits, chosen):
    """The largest logits, the lowest expert first among equals; ids ascending."""
    for k in range(chosen.shape[0]):
        chosen[k] = -1
    for k in range(chosen.shape[0]):
        best = -1
        for e in range(logits.shape[0]):
            if (best < 0 or logits[e] > logits[best]) and not has(chosen, e):
                best = e
        at = k  # insertion keeps the ids ascending
        while at > 0 and chosen[at - 1] > best:
            chosen[at] = chosen[at - 1]
            at -= 1
        chosen[at] = best


@inner()
def _softmax(values, out):
    top = values[0]
    for i in range(1, values.shape[0]):
        top = max(top, values[i])
    total = np.float32(0)
    for i in range(values.shape[0]):
        out[i] = exp(values[i] - top)
        total += out[i]
    for i in range(values.shape[0]):
        out[i] /= total


@cfunc(types.int64(types.int64, types.int64, types.int64), cache=True)
def route(binding, scratch, tag):
    """Fill chosen, weight and slot_expert of the worker for the step's rows; returns the number of slots used.

    Weights: sigmoid of the chosen logits, softmax over the chosen, or softmax over all experts (``ROUTERS``); divided by
    their sum where ``renormalise``.
    """
    b, s = load_binding(binding), load_scratch(scratch)
    rows = i32(b.count, (1,))[0]
    logits = f32(b.router, (b.rows, b.experts))
    chosen, weight = i32(s.chosen, (b.rows, b.top_k)), f32(s.weight, (b.rows, b.top_k))
    probs, slot_expert = f32(s.probs, (b.experts,)), i32(s.slot_expert, (b.experts,))
    for r in range(rows):
        _choose(logits[r], chosen[r])
        if b.router_kind == 2:
            _softmax(logits[r], probs)
        for k in range(b.top_k):
            if b.router_kind == 0:
                weight[r, k] = np.float32(1) / (np.float32(1) + exp(-logits[r, chosen[r, k]]))
            elif b.router_kind == 1:
                weight[r, k] = logits[r, chosen[r, k]]
            else:
                weight[r, k] = probs[chosen[r, k]]
        if b.router_kind == 1:
            _softmax(weight[r], weight[r])
        if b.renormalise:
            total = np.float32(0)
            for k in range(b.top_k):
                total += weight[r, k]
            for k in range(b.top_k):
                weight[r, k] /= total
    n = 0
    for e in range(b.experts):
        for r in range(rows):
            if has(chosen[r], e):
                slot_expert[n] = e
                n += 1
                break
    for e in range(n, b.experts):
        slot_expert[e] = -1
    i64(s.tag, (2,))[1] = tag
    return n
