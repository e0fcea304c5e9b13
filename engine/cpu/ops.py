"""The ops of the CPU interpreter: what one task computes.

Every op is a C function of ``SIGNATURE``: addresses of the binding and of the worker's scratch, the backend's step count, the
task's layer, slot and tile, and its four args (see :class:`engine.builder.StepGraph`); it returns 1, or 0 when the task had no
work.  These are also the oracle of the CUDA ops: in bf16 mode they round where the kernel rounds (normed activations, roped
q, K and V pages, probabilities before P·V, attention output, FFN hidden with its routing weight); sums and residual stay f32.
"""

from __future__ import annotations

import numpy as np
from numba import cfunc, types

from engine.cpu.atomics import call
from engine.cpu.binding import load_binding, load_scratch
from engine.cpu.compiled import inner
from engine.cpu.math import load_row, normalise, round_bf16, silu
from engine.cpu.routing import has
from engine.cpu.words import f32, i32, i64
from engine.tiling import PAGE

SIGNATURE = types.int64(*[types.int64] * 10)
_TAG_STRIDE = 4096  # more than 2 * layers + 1


@inner()
def row_count(b):
    return i32(b.count, (1,))[0]


@inner()
def all_rows(b, s):
    n = row_count(b)
    rows = i32(s.rows, (b.rows,))
    for r in range(n):
        rows[r] = r
    return n


@inner()
def product(b, s, weight, k, first, count, x, rows, n, out, column):
    """One tile of W · x for n rows into an output of the scratch."""
    call(b.matmul, (weight, b.kind, k, first, count, x, rows, n, out, s.tile, column))


@cfunc(types.int64(*[types.int64] * 5), cache=True)
def norm(binding, scratch, serial, layer, second):
    """Fill ``normed`` with the normed x (``second``: mid) of every row, once per worker, step and layer.

    A function of its own, like the product, so that whichever op comes first, the sums are those of the same machine code.
    """
    b, s = load_binding(binding), load_scratch(scratch)
    tag = i64(s.tag, (2,))
    want = serial * _TAG_STRIDE + 2 * layer + second
    if tag[0] == want:
        return 0
    x = f32(b.mid, (b.rows, b.hidden)) if second else f32(b.x, (2, b.rows, b.hidden))[layer & 1]
    weight = f32(b.norm2, (b.layers, b.hidden))[layer] if second else f32(b.norm, (b.layers + 1, b.hidden))[layer]
    normed, eps = f32(s.normed, (b.rows, b.hidden)), f32(b.scalars, (2,))[0]
    for r in range(row_count(b)):
        normalise(x[r], weight, eps, b.centre != 0, b.bf16 != 0, normed[r])
    tag[0] = want
    return 0


@inner()
def norm_rows(b, binding, scratch, serial, layer, second):
    call(b.norm_rows, (binding, scratch, serial, layer, second))


@inner()
def norm_ffn(b, binding, scratch, serial, layer):
    norm_rows(b, binding, scratch, serial, layer, 0 if b.parallel else 1)


@inner()
def routes_of(b, s, binding, scratch, serial, layer):
    """Number of slots in use, after filling the worker's routing once per step and layer."""
    tag = serial * _TAG_STRIDE + 2 * layer
    if i64(s.tag, (2,))[1] != tag:
        return call(b.route, (binding, scratch, tag))
    slot_expert = i32(s.slot_expert, (b.experts,))
    n = 0
    while n < b.experts and slot_expert[n] >= 0:
        n += 1
    return n


@inner()
def routed_rows(b, s, expert):
    """Rows that chose the expert into ``rows``, their rows of expert_hidden into ``ranks``; returns how many."""
    chosen = i32(s.chosen, (b.rows, b.top_k))
    rows, ranks = i32(s.rows, (b.rows,)), i32(s.ranks, (b.rows * b.top_k,))
    n = 0
    for r in range(row_count(b)):
        for k in range(b.top_k):
            if chosen[r, k] == expert:
                rows[n], ranks[n] = r, r * b.top_k + k
                n += 1
    return n


@cfunc(SIGNATURE, cache=True)
def embed(binding, scratch, serial, layer, slot, tile, first, end, _c, _d):
    b = load_binding(binding)
    end = min(end, row_count(b))
    token, x = i32(b.token, (b.rows,)), f32(b.x, (2, b.rows, b.hidden))
    for r in range(first, end):
        load_row(b.embed, b.kind, b.hidden, np.int64(token[r]), x[0, r])
    return 1 if end > first else 0


@cfunc(SIGNATURE, cache=True)
def qkv(binding, scratch, serial, layer, slot, tile, unit, p0, p1, _d):
    """Pairs [p0, p1) of one head of Q, K or V: product, bias, head norm, RoPE; K and V go to their pages."""
    b, s = load_binding(binding), load_scratch(scratch)
    norm_rows(b, binding, scratch, serial, layer, 0)
    n = all_rows(b, s)
    half, width = b.head_dim // 2, p1 - p0
    which = 0 if unit < b.heads else (1 if unit < b.heads + b.kv_heads else 2)
    head = unit if which == 0 else (unit - b.heads) % b.kv_heads
    weight, row = i64(b.matrix, (b.layers, 8))[layer, which], head * b.head_dim
    out, out2 = f32(s.out, (b.rows, s.tile)), f32(s.out2, (b.rows, s.tile))
    # columns 0..width-1 of out get the first elements of the pairs, width..2 width-1 the second, for either RoPE style
    if b.interleaved:
        product(b, s, weight, b.hidden, row + 2 * p0, 2 * width, s.normed, s.rows, n, s.out2, 0)
        for r in range(n):
            for i in range(width):
                out[r, i], out[r, width + i] = out2[r, 2 * i], out2[r, 2 * i + 1]
    else:
        product(b, s, weight, b.hidden, row + p0, width, s.normed, s.rows, n, s.out, 0)
        product(b, s, weight, b.hidden, row + half + p0, width, s.normed, s.rows, n, s.out, width)
    bias = f32(b.qkv_bias, (b.layers, b.heads + 2 * b.kv_heads, b.head_dim))[layer, unit]
    rope = which < 2 and i32(b.layer_info, (b.layers, 3))[layer, 0] != 0
    cos, sin = f32(b.cos, (b.rows, half)), f32(b.sin, (b.rows, half))
    q = f32(b.q, (b.rows, b.heads, b.head_dim))
    kv = f32(b.kv, (b.pages, b.layers, 2, b.kv_heads, PAGE, b.head_dim))
    table = i32(b.page_table, (b.rows, b.table_width))
    position, sequence = i32(b.position, (b.rows,)), i32(b.sequence, (b.rows,))
    stride, second = (2, 1) if b.interleaved else (1, half)  # pair i: elements stride * i and second + stride * i of the head
    for r in range(n):
        y = out[r]
        for i in range(width):
            y[i] += bias[stride * (p0 + i)]
            y[width + i] += bias[second + stride * (p0 + i)]
        if b.qk_norm and which < 2:  # then the tile is the whole head, in half style
            head_norm = f32(b.head_norm, (b.layers, 2, b.head_dim))[layer, which]
            normalise(y[: b.head_dim], head_norm, f32(b.scalars, (2,))[0], False, False, y[: b.head_dim])
        if rope:
            for i in range(width):
                c, t = cos[r, p0 + i], sin[r, p0 + i]
                one, two = y[i], y[width + i]
                y[i], y[width + i] = one * c - two * t, two * c + one * t
        if b.bf16:
            for i in range(2 * width):
                y[i] = round_bf16(y[i])
        if which == 0:
            to = q[r, head]
        else:
            to = kv[table[sequence[r], position[r] // PAGE], layer, which - 1, head, position[r] % PAGE]
        for i in range(width):
            to[stride * (p0 + i)] = y[i]
            to[second + stride * (p0 + i)] = y[width + i]
    return 1


@cfunc(SIGNATURE, cache=True)
def o_proj(binding, scratch, serial, layer, slot, tile, first, count, _c, _d):
    b, s = load_binding(binding), load_scratch(scratch)
    n = all_rows(b, s)
    weight = i64(b.matrix, (b.layers, 8))[layer, 3]
    product(b, s, weight, b.heads * b.head_dim, first, count, b.attention, s.rows, n, s.out, 0)
    out, mid, bias = f32(s.out, (b.rows, s.tile)), f32(b.mid, (b.rows, b.hidden)), f32(b.o_bias, (b.layers, b.hidden))
    x = f32(b.x, (2, b.rows, b.hidden))[layer & 1]
    for r in range(n):
        for j in range(count):
            y = out[r, j] + bias[layer, first + j]
            mid[r, first + j] = y if b.parallel else x[r, first + j] + y
    return 1


@cfunc(SIGNATURE, cache=True)
def router(binding, scratch, serial, layer, slot, tile, first, count, _c, _d):
    b, s = load_binding(binding), load_scratch(scratch)
    norm_ffn(b, binding, scratch, serial, layer)
    n = all_rows(b, s)
    product(b, s, i64(b.matrix, (b.layers, 8))[layer, 4], b.hidden, first, count, s.normed, s.rows, n, s.out, 0)
    out, logits = f32(s.out, (b.rows, s.tile)), f32(b.router, (b.rows, b.experts))
    for r in range(n):
        for j in range(count):
            logits[r, first + j] = out[r, j]
    return 1


@inner()
def _gate(b, s, gate, up, first, count, n):
    """Gate and up rows of a gated FFN into out and out2."""
    product(b, s, gate, b.hidden, first, count, s.normed, s.rows, n, s.out, 0)
    product(b, s, up, b.hidden, first, count, s.normed, s.rows, n, s.out2, 0)


@inner()
def _note_routes(b, s, layer, slots):
    """One task a layer writes down which expert each slot got, for the trace's routes table."""
    slot_expert, chosen = i32(s.slot_expert, (b.experts,)), i32(s.chosen, (b.rows, b.top_k))
    expert, rows = i32(b.route_expert, (b.layers, b.experts))[layer], i32(b.route_rows, (b.layers, b.experts))[layer]
    for slot in range(b.experts):
        expert[slot], rows[slot] = slot_expert[slot], 0
    for slot in range(slots):
        for r in range(row_count(b)):
            rows[slot] += has(chosen[r], slot_expert[slot])


@cfunc(SIGNATURE, cache=True)
def expert_up(binding, scratch, serial, layer, slot, tile, first, count, _c, _d):
    """Gate and up rows of the slot's expert for the rows routed to it; the routing weight goes into the hidden."""
    b, s = load_binding(binding), load_scratch(scratch)
    norm_ffn(b, binding, scratch, serial, layer)
    slots = routes_of(b, s, binding, scratch, serial, layer)
    if slot == 0 and tile == 0:
        _note_routes(b, s, layer, slots)
    if slot >= slots:
        return 0
    expert = i32(s.slot_expert, (b.experts,))[slot]
    n = routed_rows(b, s, expert)
    address = i64(b.expert, (b.layers, b.experts, 3))[layer, expert]
    _gate(b, s, address[0], address[1], first, count, n)
    rows, ranks = i32(s.rows, (b.rows,)), i32(s.ranks, (b.rows * b.top_k,))
    out, out2 = f32(s.out, (b.rows, s.tile)), f32(s.out2, (b.rows, s.tile))
    weights = f32(s.weight, (b.rows, b.top_k))
    hidden = f32(b.expert_hidden, (b.rows * b.top_k, b.expert_width))
    for i in range(n):
        weight = weights[rows[i], ranks[i] - rows[i] * b.top_k]
        for j in range(count):
            v = silu(out[i, j]) * out2[i, j] * weight
            hidden[ranks[i], first + j] = round_bf16(v) if b.bf16 else v
    return 1


@inner()
def _gated_tile(b, s, gate, up, gate_bias, up_bias, hidden, first, count, n):
    _gate(b, s, gate, up, first, count, n)
    out, out2 = f32(s.out, (b.rows, s.tile)), f32(s.out2, (b.rows, s.tile))
    for r in range(n):
        for j in range(count):
            v = silu(out[r, j] + gate_bias[first + j]) * (out2[r, j] + up_bias[first + j])
            hidden[r, first + j] = round_bf16(v) if b.bf16 else v


@cfunc(SIGNATURE, cache=True)
def dense_up(binding, scratch, serial, layer, slot, tile, first, count, shared, _d):
    """Gate and up rows of the dense FFN, or (``shared``) of the shared experts of a MoE layer."""
    b, s = load_binding(binding), load_scratch(scratch)
    norm_ffn(b, binding, scratch, serial, layer)
    n = all_rows(b, s)
    gate_bias, up_bias = f32(b.gate_bias, (b.layers, b.ffn_width))[layer], f32(b.up_bias, (b.layers, b.ffn_width))[layer]
    if shared:
        address = i64(b.shared, (b.layers, 3))[layer]
        hidden = f32(b.shared_hidden, (b.rows, b.shared_width))
        _gated_tile(b, s, address[0], address[1], gate_bias, up_bias, hidden, first, count, n)
    else:
        address = i64(b.matrix, (b.layers, 8))[layer]
        hidden = f32(b.dense_hidden, (b.rows, b.dense_width))
        _gated_tile(b, s, address[5], address[6], gate_bias, up_bias, hidden, first, count, n)
    return 1


@inner()
def _residual(b, layer, r, column, ffn):
    """x of the next layer: (x + attention) + FFN."""
    x = f32(b.x, (2, b.rows, b.hidden))
    mid = f32(b.mid, (b.rows, b.hidden))[r, column]
    if b.parallel:
        mid += x[layer & 1, r, column]
    x[(layer + 1) & 1, r, column] = mid + ffn


@cfunc(SIGNATURE, cache=True)
def dense_down(binding, scratch, serial, layer, slot, tile, first, count, _c, _d):
    b, s = load_binding(binding), load_scratch(scratch)
    n = all_rows(b, s)
    product(b, s, i64(b.matrix, (b.layers, 8))[layer, 7], b.dense_width, first, count, b.dense_hidden, s.rows, n, s.out, 0)
    out, bias = f32(s.out, (b.rows, s.tile)), f32(b.down_bias, (b.layers, b.hidden))
    for r in range(n):
        for j in range(count):
            _residual(b, layer, r, first + j, out[r, j] + bias[layer, first + j])
    return 1


@cfunc(SIGNATURE, cache=True)
def expert_down(binding, scratch, serial, layer, slot, tile, first, count, _c, _d):
    """Owned rows of every active expert's down, experts ascending, then the shared experts, then the residual."""
    b, s = load_binding(binding), load_scratch(scratch)
    slots = routes_of(b, s, binding, scratch, serial, layer)
    total = row_count(b)
    slot_expert = i32(s.slot_expert, (b.experts,))
    address = i64(b.expert, (b.layers, b.experts, 3))
    rows = i32(s.rows, (b.rows,))
    out, sums = f32(s.out, (b.rows, s.tile)), f32(s.out2, (b.rows, s.tile))
    for r in range(total):
        for j in range(count):
            sums[r, j] = np.float32(0)
    for i in range(slots):
        expert = slot_expert[i]
        n = routed_rows(b, s, expert)
        product(b, s, address[layer, expert, 2], b.expert_width, first, count, b.expert_hidden, s.ranks, n, s.out, 0)
        for k in range(n):
            for j in range(count):
                sums[rows[k], j] += out[k, j]
    if b.shared_width:
        n = all_rows(b, s)
        weight = i64(b.shared, (b.layers, 3))[layer, 2]
        product(b, s, weight, b.shared_width, first, count, b.shared_hidden, s.rows, n, s.out, 0)
        factor = np.float32(0.5) if b.shared_average else np.float32(1)
        for r in range(total):
            for j in range(count):
                sums[r, j] = (sums[r, j] + out[r, j]) * factor
    for r in range(total):
        for j in range(count):
            _residual(b, layer, r, first + j, sums[r, j])
    return 1


@cfunc(SIGNATURE, cache=True)
def lm_head(binding, scratch, serial, layer, slot, tile, first, count, _c, _d):
    """Logits of one vocabulary tile for the rows that want them, and the tile's best token."""
    b, s = load_binding(binding), load_scratch(scratch)
    rows, wants = i32(s.rows, (b.rows,)), i32(b.wants, (b.rows,))
    n = 0
    for r in range(row_count(b)):
        if wants[r]:
            rows[n] = r
            n += 1
    if n == 0:
        return 0
    norm_rows(b, binding, scratch, serial, b.layers, 0)
    product(b, s, b.head, b.hidden, first, count, s.normed, s.rows, n, s.out, 0)
    out, logits, scale = f32(s.out, (b.rows, s.tile)), f32(b.logits, (b.rows, b.vocab)), f32(b.scalars, (2,))[1]
    tile_max, tile_arg = f32(b.tile_max, (b.rows, b.head_tiles)), i32(b.tile_arg, (b.rows, b.head_tiles))
    for i in range(n):
        r, best = rows[i], first
        for j in range(count):
            logits[r, first + j] = out[i, j] * scale
            if logits[r, first + j] > logits[r, best]:
                best = first + j
        tile_max[r, tile], tile_arg[r, tile] = logits[r, best], best
    return 1
