"""Binding: everything an op of the CPU backend reads or writes, as one block of 64-bit words, like a kernel's parameter block.

A word is a size, a switch or the address of an array.  Ops turn the words they need into array views (:func:`f32`, …).
"""

from __future__ import annotations

from typing import NamedTuple

from engine.cpu.words import words


class Binding(NamedTuple):
    """Words shared by all workers.  Sizes and switches first, then addresses with the shape of what lies there."""

    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    experts: int
    top_k: int
    vocab: int
    layers: int
    rows: int  # capacity of the row arrays
    splits: int  # capacity of the split arrays
    pages: int  # pages in the pool
    table_width: int  # pages a sequence may have
    ffn_width: int  # stride of the FFN biases
    expert_width: int  # row stride of expert_hidden
    dense_width: int  # row stride of dense_hidden
    shared_width: int
    head_tiles: int
    kind: int  # math.F32 or math.BF16: how every matrix is stored
    centre: int  # LayerNorm
    parallel: int  # attention and FFN read the same norm
    interleaved: int  # RoPE pairs (2i, 2i+1); else (i, i + D/2)
    qk_norm: int
    router_kind: int  # index into routing.ROUTERS
    renormalise: int
    shared_average: int
    bf16: int  # round where a kernel rounds
    matmul: int  # address of math.matmul
    norm_rows: int  # address of ops.norm
    route: int  # address of routing.route
    # the model
    scalars: int  # f32[2]: eps, logit scale
    embed: int  # matrices: addresses in the memory-mapped checkpoint, or in its one widened copy
    head: int
    matrix: int  # i64[layers, 8]: q, k, v, o, router, gate, up, down (dense)
    expert: int  # i64[layers, experts, 3]: gate, up, down
    shared: int  # i64[layers, 3]
    norm: int  # f32[layers + 1, hidden]; the last is the final norm
    norm2: int  # f32[layers, hidden] (sequential blocks)
    qkv_bias: int  # f32[layers, (heads + 2 kv_heads) * head_dim]
    o_bias: int  # f32[layers, hidden]
    gate_bias: int  # f32[layers, ffn_width]
    up_bias: int
    down_bias: int  # f32[layers, hidden]
    head_norm: int  # f32[layers, 2, head_dim]: q_norm, k_norm
    layer_info: int  # i32[layers, 3]: RoPE or not, window (0: all keys), FFN or expert width
    # the step
    count: int  # i32[1]: rows in use
    token: int  # i32[rows]
    position: int  # i32[rows]
    sequence: int  # i32[rows]
    wants: int  # i32[rows]: logits wanted
    cos: int  # f32[rows, head_dim / 2]
    sin: int
    page_table: int  # i32[sequences, table_width]
    # intermediates; WAR-safe by the order that the builder documents
    x: int  # f32[2, rows, hidden], by parity of the layer
    mid: int  # f32[rows, hidden]: x + attention (sequential), attention alone (parallel)
    q: int  # f32[rows, heads, head_dim]
    kv: int  # f32[pages, layers, 2, kv_heads, 64, head_dim]
    part_max: int  # f32[rows, heads, splits]
    part_sum: int
    part_out: int  # f32[rows, heads, splits, head_dim]
    attention: int  # f32[rows, heads * head_dim]
    router: int  # f32[rows, experts]
    expert_hidden: int  # f32[rows * top_k, expert_width]
    dense_hidden: int  # f32[rows, dense_width]
    shared_hidden: int  # f32[rows, shared_width]
    logits: int  # f32[rows, vocab]
    tile_max: int  # f32[rows, head_tiles]
    tile_arg: int  # i32[rows, head_tiles]
    greedy: int  # i32[rows]
    route_expert: int  # i32[layers, experts]: expert of each slot, -1 beyond
    route_rows: int  # i32[layers, experts]
    # how rows are picked
    head_tile: int  # tokens of a tile of the LM head
    sample_parts: int  # sample tasks of a row
    ask: int  # i64[rows, 6]: mode (0: greedy, no more), top_k, least weight, seed, choice
    ask_share: int  # f64[rows, 2]: temperature, top_p
    tile_sums: int  # u64[rows, head_tiles]: weights
    model_sums: int  # u64[rows, parts]: weights at temperature 1
    told: int  # u64[rows]: their sum
    bad: int  # i32[rows]: a logit is NaN or plus infinity


class Scratch(NamedTuple):
    """Words of one worker, its "shared memory": vectors kept between tasks of a layer, and tile outputs."""

    tag: int  # i64[2]: what ``normed`` and the routing hold
    normed: int  # f32[rows, hidden]
    rows: int  # i32[rows]: rows that a tile works on
    ranks: int  # i32[rows * top_k]: rows of expert_hidden that a tile reads or writes
    tile: int  # stride of out and out2
    out: int  # f32[rows, tile]
    out2: int
    scores: int  # f32[SPLIT]
    chosen: int  # i32[rows, top_k]: experts of a row, ascending
    weight: int  # f32[rows, top_k]: their routing weights
    slot_expert: int  # i32[experts]: active experts, ascending; -1 beyond
    probs: int  # f32[experts]


load_binding, load_scratch = words(Binding), words(Scratch)
