"""Builder: model config → graph of one step.

One graph serves every step with at most ``rows`` rows and at most ``splits`` attention splits a row; what a step does not use
(rows beyond its own, expert slots without rows, splits beyond a row's length) leaves a skipped record.

Layer order of reading and writing: every task of layer l + 1 waits, directly or not, for every task of layer l (x of layer
l + 1 is complete only after all of its tiles), so one buffer of each intermediate serves all layers, and two of x.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from math import ceil

import numpy as np

from engine.config import ModelConfig
from engine.tiling import PAGE, ROW_BUCKETS, SPLIT, Tiling
from mkviz.errors import MkvizError
from mkviz.graph import Graph, GraphBuilder

OPS = ("embed", "qkv", "attention", "merge", "o_proj", "router", "expert_up", "shared_up", "dense_up", "expert_down",
       "dense_down", "lm_head", "pick", "sample",
       "norm", "top_k")  # fmt: skip
OP = {name: i for i, name in enumerate(OPS)}


@dataclass(frozen=True)
class StepShape:
    """What a graph is built for: ``rows`` (a bucket) and ``splits`` (attention splits of the longest row, a power of two; of
    four beyond eight rows, where a graph takes seconds to build and a step is long beside the splits it skips)."""

    rows: int
    splits: int

    @classmethod
    def covering(cls, rows: int, keys: int) -> StepShape:
        """Smallest shape for ``rows`` rows whose longest row sees ``keys`` keys."""
        if not 1 <= rows <= ROW_BUCKETS[-1]:
            raise MkvizError(f"rows: {rows} rows in one step", f"1 to {ROW_BUCKETS[-1]}")
        bucket = next(b for b in ROW_BUCKETS if b >= rows)
        doublings = max(0, ceil(keys / SPLIT) - 1).bit_length()
        return cls(bucket, 1 << doublings + (doublings % 2 if bucket > 8 else 0))

    @classmethod
    def up_to(cls, rows: int, keys: int) -> list[StepShape]:
        """All shapes that steps of up to ``rows`` rows and ``keys`` keys may have, the largest last."""
        most, longest = cls.covering(rows, keys).rows, ceil(keys / SPLIT)
        lengths = [SPLIT << i for i in range(max(0, longest - 1).bit_length() + 1)]
        return list(dict.fromkeys(cls.covering(b, n) for b in ROW_BUCKETS if b <= most for n in lengths))

    @property
    def row_block(self) -> int:
        """Rows handled by one attention task: what its SM has room for."""
        return min(8, max(1, self.rows // 8))


@dataclass(frozen=True, eq=False)
class StepGraph:
    """A graph and, per task, what its op needs to know: ``args`` i32[tasks, 4].

    embed, pick, top_k: first row, end row · norm: first row, end row, 1 for the second of the layer · sample: first row, end
    row, part of the vocabulary, parts · qkv: unit (query heads, then K heads, then V heads), first pair, end pair ·
    attention: first row, end row, KV head, split · merge: first row, end row, query head, part of the head · all others: first
    weight row, rows, 1 for shared experts.
    """

    graph: Graph
    args: np.ndarray
    shape: StepShape


def layer_splits(config: ModelConfig, layer: int, shape: StepShape) -> int:
    """Split slots of a layer: no more than the context has.  A window of w keys touches at most ceil(w / SPLIT) + 1 splits."""
    sliding = config.layers[layer].attention == "sliding"
    return min(shape.splits, ceil(config.max_positions / SPLIT), ceil(config.window / SPLIT) + 1 if sliding else shape.splits)


def build_graph(config: ModelConfig, shape: StepShape, tiling: Tiling, weight_bytes: int = 2) -> StepGraph:
    """The graph of a step.  ``weight_bytes``: bytes of a stored weight element (task ``bytes`` count weights and KV read)."""
    name = f"{config.family} {len(config.layers)}L h{config.hidden} · {shape.rows} rows · {shape.splits} splits"
    meta = {"rows": shape.rows, "splits": shape.splits, "layers": len(config.layers), "page": PAGE}
    meta["late_ops"] = ["expert_up", "expert_down"]  # their addresses come from routing: nobody can load them before it
    meta["last_row_ops"] = ["lm_head"]  # of each sequence they compute one row at most
    meta["keys"] = {"attention": SPLIT}  # a task is counted for as many keys, of which its row may have fewer;
    meta["task_rows"] = {"attention": shape.row_block}  # where it has several rows, each reads its own
    if tiling.teams > 1:
        meta["teams"] = tiling.teams  # tasks of an SM may overlap
    b = GraphBuilder(name, OPS, meta)
    args: list[np.ndarray] = []
    rows, hidden, d = shape.rows, config.hidden, config.head_dim
    q_width, group = config.heads * d, config.heads // config.kv_heads
    blocks = [(r, min(r + shape.row_block, rows)) for r in range(0, rows, shape.row_block)]

    def add(op, n=1, a=(), read=0, macs=0, **where):
        """``n`` tasks; each of the args ``a``, what they read and their multiplications are of all, or of one each."""
        table = np.zeros((n, 4), np.int32)
        for i, values in enumerate(a):
            table[:, i] = values
        args.append(table)
        b.tasks(op, n, bytes=read, flops=2 * macs, **where)

    def matrix(op, n, k, tile_rows, matrices=1, inputs=None, variant=0, slots=0, **where):
        """Tiles of an n × k weight (``matrices`` of them side by side); ``inputs``: numbers that meet each of its rows (else
        k for every row of the step).  The same for each of ``slots``."""
        first = np.arange(0, n, tile_rows)
        if slots:
            where |= {"slot": np.repeat(np.arange(slots), len(first)), "tile": np.tile(np.arange(len(first)), slots)}
            first = np.tile(first, slots)
        count = np.minimum(tile_rows, n - first)
        read, macs = matrices * count * k * weight_bytes, matrices * count * (rows * k if inputs is None else inputs)
        add(op, len(first), (first, count, variant), read, macs, **where)

    def row_tasks(op, raises, second=0, **where):
        """A task for each row, where SMs do not do it for themselves."""
        row = np.arange(rows)
        add(op, rows, (row, row + 1, second), raises=[raises], **where)
        return raises

    def normed(name, waits, second=0, layer=-1):
        """What products of normed rows wait for."""
        return row_tasks("norm", b.counter(name), second, layer=layer, waits=[waits]) if tiling.norm_tasks else waits

    x = b.counter("x.0")
    for tile, (first, end) in enumerate(blocks):
        add("embed", a=(first, end), tile=tile, read=(end - first) * hidden * weight_bytes, raises=[x])
    for layer, spec in enumerate(config.layers):
        x_next = b.counter(f"x.{layer + 1}")
        qkv = [b.counter(f"qkv.{layer}.{g}") for g in range(config.kv_heads)]
        att, hid = b.counter(f"attention.{layer}"), b.counter(f"hidden.{layer}")
        o_tiles = ceil(hidden / tiling.o_proj)
        mid = b.counter(f"mid.{layer}") if not config.parallel else -1
        o_done = np.array([b.counter(f"o.{layer}.{t}") for t in range(o_tiles)])
        att_in = normed(f"normed.{layer}", x, layer=layer)
        ffn_in = att_in if config.parallel else normed(f"normed2.{layer}", mid, 1, layer)

        if spec.mlp == "moe":  # first of all: no expert can be loaded before it is known
            router = b.counter(f"router.{layer}")
            matrix("router", config.experts, hidden, tiling.router, layer=layer, waits=[ffn_in], raises=[router])
            if tiling.top_k_tasks:
                router = row_tasks("top_k", b.counter(f"top_k.{layer}"), layer=layer, waits=[router])

        units = [(h, h // group) for h in range(config.heads)]
        units += [(config.heads + i, i % config.kv_heads) for i in range(2 * config.kv_heads)]
        pairs = np.arange(0, d // 2, tiling.qkv_pairs)
        ends = np.minimum(pairs + tiling.qkv_pairs, d // 2)
        macs = 2 * (ends - pairs) * hidden
        for i, (unit, g) in enumerate(units):
            add("qkv", len(pairs), (unit, pairs, ends), macs * weight_bytes, macs * rows, layer=layer, tile=i * len(pairs),
                waits=[att_in], raises=[qkv[g]])  # fmt: skip

        splits = layer_splits(config, layer, shape)
        tile = merges = 0
        for block, (first, end) in enumerate(blocks):
            for g in range(config.kv_heads):
                part = att if splits == 1 else b.counter(f"part.{layer}.{block}.{g}")
                macs = 2 * SPLIT * d * group * (end - first)
                add("attention", splits, (first, end, g, np.arange(splits)), 2 * SPLIT * d * weight_bytes, macs, layer=layer,
                    tile=tile, waits=[qkv[g]], raises=[part])  # fmt: skip
                tile += splits
                if splits == 1:
                    continue
                head, piece = np.divmod(np.arange(group * tiling.merge), tiling.merge)
                add("merge", len(head), (first, end, g * group + head, piece), layer=layer, tile=merges, waits=[part],
                    raises=[att])  # fmt: skip
                merges += len(head)

        if spec.mlp == "moe":
            slots = min(config.experts, rows * config.top_k)
            share = max(1, rows * config.top_k // slots)
            matrix("expert_up", spec.width, hidden, tiling.expert_up, 2, share * hidden, slots=slots, layer=layer,
                   waits=[ffn_in, router], raises=[hid])  # fmt: skip
            if config.shared_width:
                matrix(
                    "shared_up",
                    config.shared_width,
                    hidden,
                    tiling.shared_up,
                    2,
                    variant=1,
                    layer=layer,
                    waits=[ffn_in],
                    raises=[hid],
                )
            k_slots, down = slots * spec.width, "expert_down"
            k_down, met = k_slots + config.shared_width, rows * (config.top_k * spec.width + config.shared_width)
            b.meta.setdefault("slot_bytes", {})[down] = k_slots / k_down  # this share of what it reads is its layer's slots
        else:
            matrix("dense_up", spec.width, hidden, tiling.dense_up, 2, layer=layer, waits=[ffn_in], raises=[hid])
            k_down, met, down = spec.width, None, "dense_down"
        o_raises = [o_done] if config.parallel else [o_done, mid]
        matrix("o_proj", hidden, q_width, tiling.o_proj, layer=layer, waits=[att], raises=o_raises)
        matrix(down, hidden, k_down, tiling.o_proj, inputs=met, layer=layer, waits=[hid, o_done], raises=[x_next])
        x = x_next
    logits, picked = b.counter("logits"), b.counter("picked")  # nobody in this step waits for picked: the next step does
    matrix("lm_head", config.vocab, hidden, tiling.lm_head, waits=[normed("normed", x)], raises=[logits])
    if tiling.sample:
        sampled = b.counter("sampled")
        for tile, ((first, end), part) in enumerate(product(blocks, range(tiling.sample))):
            add("sample", a=(first, end, part, tiling.sample), tile=tile, waits=[logits], raises=[sampled])
    for tile, (first, end) in enumerate(blocks):
        add("pick", a=(first, end), tile=tile, waits=[sampled if tiling.sample else logits], raises=[picked])
    return StepGraph(b.build(), np.concatenate(args), shape)
