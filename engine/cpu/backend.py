"""CpuBackend: binds a model to task tables and runs steps on worker threads."""

from __future__ import annotations

import os
import queue
import threading
import time
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from engine.builder import OPS, StepGraph, StepShape, build_graph, layer_splits
from engine.checkpoint import Weights
from engine.config import ModelConfig
from engine.cpu import attention, math, ops, routing, sampling
from engine.cpu.asks import told_of, words_of
from engine.cpu.binding import Binding, Scratch
from engine.cpu.params import binding_sizes, load_params, widened_bytes
from engine.cpu.words import pack
from engine.cpu.worker import NOTHING, SM_WORDS, StepCall, Table, play
from engine.memory_plan import MemoryPlan, free_host_memory
from engine.plan import StepPlan, StepResult
from engine.tables import nearest
from engine.tiling import PAGE, ROW_BUCKETS, SPLIT, Tiling
from mkviz.errors import MkvizError
from mkviz.graph import Graph
from mkviz.policies import POLICIES, make_schedule
from mkviz.ring import HostRings
from mkviz.schedule import Schedule
from mkviz.validate import check

REMEDY = "a shorter --context, fewer --pages, or a smaller model"
FUNCTIONS = {
    "embed": ops.embed, "qkv": ops.qkv, "attention": attention.attention, "merge": attention.merge, "o_proj": ops.o_proj,
    "router": ops.router, "expert_up": ops.expert_up, "shared_up": ops.dense_up, "dense_up": ops.dense_up,
    "expert_down": ops.expert_down, "dense_down": ops.dense_down, "lm_head": ops.lm_head,
    "pick": sampling.pick, "sample": sampling.sample,
}  # fmt: skip


@dataclass
class BoundTable:
    """A task table in memory: number of its graph, its block and arrays, steps it has run."""

    graph: int
    block: np.ndarray
    arrays: dict[str, np.ndarray]
    steps: int = 0


class CpuBackend:
    """Runs steps of one model on ``workers`` threads that play ``sms`` SMs.

    ``mode``: ``fp32``, or ``bf16``, which rounds where a kernel rounds and takes only weights that bf16 holds.
    ``pages``: KV pages of 64 tokens.  ``rows``: of a step at most.
    ``sampling``: rows are drawn by tasks, as their plan says.
    ``rings``: where records go while ``trace`` is on.  Same input, same bits, whatever ``workers``, ``sms``, ``policy``, batch.
    ``seed`` > 0 draws the order of play (and, with ``jitter_ns``, delays) at random: for tests.
    """

    name, max_rows, builds = "cpu", 64, True  # rows unless it is opened for others

    def __init__(self, config: ModelConfig, weights: Weights, *, sms: int = 16, workers: int | None = None, pages: int = 256,
                 mode: str = "fp32", policy: str = "", trace: bool = True, ring_capacity: int = 1 << 14,
                 tiling: Tiling | None = None, seed: int = 0, jitter_ns: int = 0, sampling: bool = False,
                 rows: int | None = None):  # fmt: skip
        if mode not in ("fp32", "bf16"):
            raise MkvizError(f"mode: {mode!r}", "fp32 or bf16")
        if rows not in (*ROW_BUCKETS, None):
            raise MkvizError(f"rows: {rows}", f"one of {', '.join(map(str, ROW_BUCKETS))}")
        for name, value in (("sms", sms), ("workers", workers or 1), ("pages", pages)):
            if value < 1:
                raise MkvizError(f"{name}: {value}", "at least 1")
        policy = policy or "round_robin"
        if policy not in POLICIES:
            raise MkvizError(f"unknown policy {policy!r}", f"one of {', '.join(POLICIES)}")
        self.config, self.sms, self.policy, self.mode, self.trace = config, sms, policy, mode, trace
        self.workers = min(sms, workers or os.cpu_count() or 1)
        self.sampling, self.pages, self.max_rows = sampling, pages, rows or self.max_rows
        # every worker norms and routes for itself
        self.tiling = replace(tiling or Tiling.for_sms(config, sms), sample=sms * sampling, norm_tasks=False, top_k_tasks=False)
        self.seed, self.jitter_ns = seed, jitter_ns
        self.rings = HostRings(sms, ring_capacity)
        self.graphs: dict[int, tuple[Graph, Schedule]] = {}
        self.serial = 0  # steps run; the number of the next step
        self._tables: dict[StepShape, BoundTable] = {}
        shapes = self._shapes(pages)
        sizes = {name: prod(shape) * np.dtype(dtype).itemsize for name, (dtype, shape) in shapes.items()}
        need = {"widened weights": widened_bytes(config, weights), "KV pages": sizes.pop("kv")}
        need["activations"] = sum(sizes.values())
        MemoryPlan("host memory", need, free_host_memory(), weights.source_bytes).enter(REMEDY)
        self._params = load_params(config, weights, mode)
        # zero pages of the OS: memory is taken when touched
        self._arrays = self._params.arrays | {name: np.zeros(shape, dtype) for name, (dtype, shape) in shapes.items()}
        self._arrays["route_expert"] -= 1
        self._binding = pack(Binding, **self._sizes(pages), **self._arrays)
        self._inv_freq, self._rope_scale = config.inv_freq(), np.float32(config.rope_scale)
        self._scratch = [self._make_scratch() for _ in range(self.workers)]
        self._jobs = [queue.SimpleQueue() for _ in range(self.workers - 1)]
        self._done: queue.SimpleQueue = queue.SimpleQueue()
        for worker, jobs in enumerate(self._jobs, 1):
            threading.Thread(target=self._serve, args=(jobs, worker), name=f"mkviz-worker-{worker}", daemon=True).start()

    # -- memory ---------------------------------------------------------------------------------------------------------

    @property
    def weight_bytes(self) -> int:
        return 2 if self._params.sizes["kind"] == math.BF16 else 4

    @property
    def widened_bytes(self) -> int:
        """Bytes of the one widened copy of the weights; 0 when the checkpoint is read in place."""
        return self._params.widened_bytes

    @property
    def kv_bytes(self) -> int:
        return self._arrays["kv"].nbytes

    @staticmethod
    def page_bytes(config: ModelConfig) -> int:
        """Bytes of one KV page: 64 tokens of K and V in every layer, f32."""
        return len(config.layers) * 2 * config.kv_heads * PAGE * config.head_dim * 4

    def _sizes(self, pages: int) -> dict[str, int]:
        a = self._arrays
        return self._params.sizes | {
            "rows": self.max_rows, "splits": a["part_max"].shape[2], "pages": pages, "table_width": a["page_table"].shape[1],
            "head_tiles": a["tile_max"].shape[1], "head_tile": self.tiling.lm_head,
            "sample_parts": self.tiling.sample, "matmul": math.matmul.address,
            "norm_rows": ops.norm.address, "route": routing.route.address,
        }  # fmt: skip

    def _shapes(self, pages: int) -> dict[str, tuple[type, tuple[int, ...]]]:
        """Name -> dtype and shape of all that steps work in."""
        c, s, rows = self.config, binding_sizes(self.config, self.mode), self.max_rows
        splits = StepShape.covering(1, c.max_positions).splits
        tiles = -(-c.vocab // self.tiling.lm_head)

        def f32(*shape):
            return np.float32, shape

        def i32(*shape):
            return np.int32, shape

        return {
            "count": i32(1), "token": i32(rows), "position": i32(rows), "sequence": i32(rows), "wants": i32(rows),
            "cos": f32(rows, c.head_dim // 2), "sin": f32(rows, c.head_dim // 2),
            "page_table": i32(rows, -(-c.max_positions // PAGE)),
            "x": f32(2, rows, c.hidden), "mid": f32(rows, c.hidden), "q": f32(rows, c.heads, c.head_dim),
            "kv": f32(pages, len(c.layers), 2, c.kv_heads, PAGE, c.head_dim), "part_max": f32(rows, c.heads, splits),
            "part_sum": f32(rows, c.heads, splits), "part_out": f32(rows, c.heads, splits, c.head_dim),
            "attention": f32(rows, c.heads * c.head_dim), "router": f32(rows, s["experts"]),
            "expert_hidden": f32(rows * s["top_k"], s["expert_width"]), "dense_hidden": f32(rows, s["dense_width"]),
            "shared_hidden": f32(rows, max(1, c.shared_width)), "logits": f32(rows, c.vocab), "tile_max": f32(rows, tiles),
            "tile_arg": i32(rows, tiles), "greedy": i32(rows), "route_expert": i32(len(c.layers), s["experts"]),
            "route_rows": i32(len(c.layers), s["experts"]), "ask": (np.int64, (rows, 6)), "ask_share": (np.float64, (rows, 2)),
            "tile_sums": (np.uint64, (rows, tiles)), "model_sums": (np.uint64, (rows, max(1, self.tiling.sample))),
            "told": (np.uint64, (rows,)), "bad": i32(rows),
        }  # fmt: skip

    def _make_scratch(self) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """(block, arrays) of one worker's scratch."""
        t, s, rows = self.tiling, self._params.sizes, self.max_rows
        tile = max(2 * t.qkv_pairs, t.o_proj, t.router, t.expert_up, t.shared_up, t.dense_up, t.lm_head)
        f32, i32 = np.float32, np.int32
        arrays = {
            "tag": np.full(2, -1, np.int64), "normed": np.zeros((rows, s["hidden"]), f32), "rows": np.zeros(rows, i32),
            "ranks": np.zeros(rows * s["top_k"], i32), "out": np.zeros((rows, tile), f32), "out2": np.zeros((rows, tile), f32),
            "scores": np.zeros(SPLIT, f32), "chosen": np.zeros((rows, s["top_k"]), i32),
            "weight": np.zeros((rows, s["top_k"]), f32), "slot_expert": np.full(s["experts"], -1, i32),
            "probs": np.zeros(s["experts"], f32),
        }  # fmt: skip
        return pack(Scratch, tile=tile, **arrays), arrays

    def zero_pages(self, pages: list[int]) -> None:
        """Clear pages that a sequence opens, so that nothing of their former owner can be read."""
        self._arrays["kv"][pages] = 0

    # -- task tables ----------------------------------------------------------------------------------------------------

    def program(self, shape: StepShape) -> BoundTable:
        """The task table for a step shape; built, scheduled and checked at first use."""
        if shape not in self._tables:
            built = build_graph(self.config, shape, self.tiling, self.weight_bytes)
            self.bind(built, make_schedule(built.graph, self.sms, self.policy))
        return self._tables[shape]

    def bind(self, built: StepGraph, schedule: Schedule) -> None:
        """Use this graph and schedule for its step shape.  Raises MkvizError when the validator refuses them."""
        g = built.graph
        if schedule.sms != self.sms:
            raise MkvizError(f"schedule over {schedule.sms} SMs", f"{self.sms}, as many as the backend plays")
        check(g, schedule)

        def i32(owner, *names):
            return {name: np.ascontiguousarray(getattr(owner, name), np.int32) for name in names}

        arrays = i32(g, "wait_ptr", "wait_counter", "raise_ptr", "raise_counter") | i32(schedule, "order_ptr", "order", "queue")
        arrays |= {
            "function": np.array([FUNCTIONS[op].address if op in FUNCTIONS else 0 for op in OPS], np.int64)[g.op],
            "where": self._where(built),
            "wait_need": np.ascontiguousarray(g.wait_need, np.uint32), "arrivals": g.arrivals,
            "counters": np.zeros(len(g.counters), np.uint32), "raised": np.zeros(len(g.counters), np.int64),
            "tickets": np.zeros(1, np.uint64), "finished": np.zeros(1, np.uint64), "lock": np.zeros(self.sms, np.uint32),
            "sm": np.full((self.sms, SM_WORDS), NOTHING, np.int64), "records": self.rings.records, "live": self.rings.live,
            "limit": self.rings.limit,
        }  # fmt: skip
        sizes = {"tasks": len(g), "sms": self.sms, "queued": len(schedule.queue), "capacity": self.rings.capacity}
        self._tables[built.shape] = BoundTable(len(self.graphs), pack(Table, **sizes, **arrays), arrays)
        self.graphs[len(self.graphs)] = (g, schedule)

    def _where(self, built: StepGraph) -> np.ndarray:
        """i64[tasks, 7]: what each op is told of its task.  In place of a slot, attention gets the layer's split slots."""
        g = built.graph
        slot = g.slot.astype(np.int64)
        is_attention = g.op == OPS.index("attention")
        splits = np.array([layer_splits(self.config, i, built.shape) for i in range(len(self.config.layers))])
        slot[is_attention] = splits[g.layer[is_attention]]
        return np.ascontiguousarray(np.column_stack([g.layer, slot, g.tile, built.args]), np.int64)

    # -- steps ----------------------------------------------------------------------------------------------------------

    def step(self, plan: StepPlan) -> StepResult:
        """Run one step.  Raises MkvizError when a row lies beyond the model's context."""
        keys = int(plan.position.max()) + 1
        if keys > self.config.max_positions:
            raise MkvizError(f"position {keys - 1}", f"below the model's context of {self.config.max_positions}")
        if len(plan) > self.max_rows:
            raise MkvizError(f"rows: {len(plan)} in one step", f"at most {self.max_rows} on the cpu backend")
        shape = StepShape.covering(len(plan), keys)
        table = self.program(shape if self.builds else nearest(shape, self._tables))
        self._fill(plan)
        it = pack(StepCall, binding=self._binding, epoch=table.steps, step=self.serial, trace=self.trace, seed=self.seed,
                  jitter=self.jitter_ns, workers=self.workers)  # fmt: skip
        begin = time.monotonic_ns()
        for jobs in self._jobs:
            jobs.put((table, it))
        self._play(table, it, 0)
        for _ in self._jobs:
            self._done.get()
        end = time.monotonic_ns()
        self.serial += 1
        table.steps += 1
        a, rows = self._arrays, len(plan)
        greedy, told = a["greedy"][:rows].copy(), None
        if self.sampling and plan.sampling:
            told = [told_of(ask, a["logits"][i], greedy[i], int(a["told"][i])) for i, ask in enumerate(plan.sampling)]
        return StepResult(a["logits"][:rows], greedy, self._routes(), table.graph, begin, end, told)

    def _fill(self, plan: StepPlan) -> None:
        a, rows = self._arrays, len(plan)
        a["count"][0] = rows
        a["token"][:rows], a["position"][:rows], a["sequence"][:rows] = plan.token, plan.position, plan.sequence
        a["wants"][:rows] = plan.wants_logits
        angle = plan.position.astype(np.float32)[:, None] * self._inv_freq
        a["cos"][:rows], a["sin"][:rows] = np.cos(angle) * self._rope_scale, np.sin(angle) * self._rope_scale
        a["page_table"][: len(plan.pages), : plan.pages.shape[1]] = plan.pages
        a["greedy"][:] = -1
        if self.sampling:
            a["bad"][:], a["ask"][:, 0] = 0, 0
            for row, ask in enumerate(plan.sampling or ()):
                if ask is not None:
                    a["ask"][row, :5], a["ask_share"][row] = words_of(ask)

    def _routes(self) -> list[tuple[int, int, int, int]]:
        expert, rows = self._arrays["route_expert"], self._arrays["route_rows"]
        layers, slots = np.nonzero(expert >= 0)
        return list(
            zip(layers.tolist(), slots.tolist(), expert[layers, slots].tolist(), rows[layers, slots].tolist(), strict=True)
        )

    def _play(self, table: BoundTable, it: np.ndarray, worker: int) -> None:
        scratch, _ = self._scratch[worker]
        play.ctypes(table.block.ctypes.data, it.ctypes.data, scratch.ctypes.data, worker)  # without the GIL

    def _serve(self, jobs: queue.SimpleQueue, worker: int) -> None:
        while (job := jobs.get()) is not None:
            self._play(*job, worker)
            self._done.put(None)

    def close(self) -> None:
        for jobs in self._jobs:
            jobs.put(None)
        self._jobs = []
