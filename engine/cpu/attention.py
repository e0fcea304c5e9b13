"""Attention ops of the CPU interpreter: one split of the keys, and the merge of splits.

Splits are blocks of ``SPLIT`` absolute positions, so which splits a row has, and every sum in them, follows from its own
length; slots that the graph has beyond them are skipped.
"""

from __future__ import annotations

import numpy as np
from numba import cfunc

from engine.cpu.binding import load_binding, load_scratch
from engine.cpu.compiled import inner
from engine.cpu.math import dot, exp, round_bf16
from engine.cpu.ops import SIGNATURE, row_count
from engine.cpu.words import f32, i32
from engine.tiling import PAGE, SPLIT


@inner()
def _oldest(b, layer, last):
    """Position of the oldest key that a row at position ``last`` sees."""
    window = np.int64(i32(b.layer_info, (b.layers, 3))[layer, 1])
    return max(0, last - window + 1) if window else 0


@inner()
def _combine(b, layer, r, h):
    """Merge the splits that row r's own length has, in ascending order, and divide."""
    last = np.int64(i32(b.position, (b.rows,))[r])
    splits = last // SPLIT - _oldest(b, layer, last) // SPLIT + 1
    part_max = f32(b.part_max, (b.rows, b.heads, b.splits))[r, h]
    part_sum = f32(b.part_sum, (b.rows, b.heads, b.splits))[r, h]
    part_out = f32(b.part_out, (b.rows, b.heads, b.splits, b.head_dim))[r, h]
    out = f32(b.attention, (b.rows, b.heads, b.head_dim))[r, h]
    top = np.float32(-np.inf)
    for s in range(splits):
        top = max(top, part_max[s])
    total = np.float32(0)
    for i in range(b.head_dim):
        out[i] = np.float32(0)
    for s in range(splits):
        weight = exp(part_max[s] - top)
        total += weight * part_sum[s]
        for i in range(b.head_dim):
            out[i] += weight * part_out[s, i]
    for i in range(b.head_dim):
        out[i] /= total
        if b.bf16:
            out[i] = round_bf16(out[i])


@cfunc(SIGNATURE, cache=True)
def attention(binding, scratch, serial, layer, slots, tile, first, end, g, split):
    """Keys of one split for rows [first, end) and the query heads of KV head g.

    ``slots`` is the number of split slots that the graph gave this layer: with one there is no merge task.
    """
    b, s = load_binding(binding), load_scratch(scratch)
    group = b.heads // b.kv_heads
    scale = np.float32(1) / np.sqrt(np.float32(b.head_dim))
    scores = f32(s.scores, (SPLIT,))
    position, sequence = i32(b.position, (b.rows,)), i32(b.sequence, (b.rows,))
    table = i32(b.page_table, (b.rows, b.table_width))
    q, kv = f32(b.q, (b.rows, b.heads, b.head_dim)), f32(b.kv, (b.pages, b.layers, 2, b.kv_heads, PAGE, b.head_dim))
    part_max, part_sum = f32(b.part_max, (b.rows, b.heads, b.splits)), f32(b.part_sum, (b.rows, b.heads, b.splits))
    part_out = f32(b.part_out, (b.rows, b.heads, b.splits, b.head_dim))
    worked = 0
    for r in range(first, min(end, row_count(b))):
        last = np.int64(position[r])
        oldest = _oldest(b, layer, last)
        block = oldest // SPLIT + split
        lo, hi = max(oldest, block * SPLIT), min(last + 1, (block + 1) * SPLIT)
        if lo >= hi:
            continue
        worked = 1
        pages = table[sequence[r]]
        for h in range(g * group, (g + 1) * group):
            top = np.float32(-np.inf)
            for t in range(lo, hi):
                scores[t - lo] = dot(q[r, h], kv[pages[t // PAGE], layer, 0, g, t % PAGE]) * scale
                top = max(top, scores[t - lo])
            total = np.float32(0)
            o = part_out[r, h, split]
            for i in range(b.head_dim):
                o[i] = np.float32(0)
            for t in range(lo, hi):
                weight = exp(scores[t - lo] - top)
                total += weight
                if b.bf16:
                    weight = round_bf16(weight)
                v = kv[pages[t // PAGE], layer, 1, g, t % PAGE]
                for i in range(b.head_dim):
                    o[i] += weight * v[i]
            part_max[r, h, split], part_sum[r, h, split] = top, total
            if slots == 1:
                _combine(b, layer, r, h)
    return worked


@cfunc(SIGNATURE, cache=True)
def merge(binding, scratch, serial, layer, slot, tile, first, end, head, _d):
    b = load_binding(binding)
    end = min(end, row_count(b))
    for r in range(first, end):
        _combine(b, layer, r, head)
    return 1 if end > first else 0
