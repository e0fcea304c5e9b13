"""CpuBackend: binds a model to task tables and runs steps on worker threads."""

from __future__ import annotations

import os
import queue
import threading
import time

import numpy as np

from engine.builder import OPS, StepGraph, StepShape, build_graph, layer_splits
from engine.checkpoint import Weights
from engine.config import ModelConfig
from engine.cpu import attention, math, ops, routing
from engine.cpu.binding import Binding, Scratch, pack
from engine.cpu.params import load_params
from engine.cpu.worker import NOTHING, SM_WORDS, Shared, StepCall, Table, play
from engine.plan import StepPlan, StepResult
from engine.tiling import PAGE, ROW_BUCKETS, SPLIT, Tiling
from mkviz.errors import MkvizError
from mkviz.graph import Graph
from mkviz.policies import make_schedule
from mkviz.ring import HostRings
from mkviz.schedule import Schedule
from mkviz.validate import check

MAX_ROWS = ROW_BUCKETS[-1]  # rows of a step
FUNCTIONS = {
    "embed": ops.embed, "qkv": ops.qkv, "attention": attention.attention, "merge": attention.merge, "o_proj": ops.o_proj,
    "router": ops.router, "expert_up": ops.expert_up, "shared_up": ops.dense_up, "dense_up": ops.dense_up,
    "expert_down": ops.expert_down, "dense_down": ops.dense_down, "lm_head": ops.lm_head, "pick": ops.pick,
}  # fmt: skip


class CpuBackend:
    """Runs steps of one model on ``workers`` threads that play ``sms`` SMs.

    ``mode``: ``fp32``, or ``bf16``, which rounds where a kernel rounds.  ``pages``: KV pages of 64 tokens.
    ``rings``: where records go while ``trace`` is on.  Same input, same bits, whatever ``workers``, ``sms``, ``policy``, batch.
    ``seed`` > 0 draws the order of play (and, with ``jitter_ns``, delays) at random: for tests.
    """

    name, max_rows = "cpu", MAX_ROWS

    def __init__(self, config: ModelConfig, weights: Weights, *, sms: int = 16, workers: int | None = None, pages: int = 256,
                 mode: str = "fp32", policy: str = "round_robin", trace: bool = True, ring_capacity: int = 1 << 14,
                 tiling: Tiling | None = None, seed: int = 0, jitter_ns: int = 0):  # fmt: skip
        if mode not in ("fp32", "bf16"):
            raise MkvizError(f"mode: {mode!r}", "fp32 or bf16")
        if sms < 1:
            raise MkvizError(f"sms: {sms}", "at least 1")
        self.config, self.sms, self.policy, self.mode, self.trace = config, sms, policy, mode, trace
        self.workers = min(sms, workers or os.cpu_count() or 1)
        self.tiling = tiling or Tiling.for_sms(config, sms)
        self.seed, self.jitter_ns = seed, jitter_ns
        self.rings = HostRings(sms, ring_capacity)
        self.graphs: dict[int, tuple[Graph, Schedule]] = {}
        self.serial = 0  # steps run; the number of the next step
        self._tables: dict[StepShape, tuple[int, Table, Shared, list[int]]] = {}
        self._params = load_params(config, weights, mode)
        self._arrays = self._params.arrays | self._allocate(pages)
        self._binding = pack(Binding, self._sizes(pages), self._arrays)
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
            "rows": MAX_ROWS, "splits": a["part_max"].shape[2], "pages": pages, "table_width": a["page_table"].shape[1],
            "head_tiles": a["tile_max"].shape[1], "matmul": math.matmul.address, "route": routing.route.address,
        }  # fmt: skip

    def _allocate(self, pages: int) -> dict[str, np.ndarray]:
        c, s, rows = self.config, self._params.sizes, MAX_ROWS
        splits = StepShape.covering(1, c.max_positions).splits
        tiles = -(-c.vocab // self.tiling.lm_head)

        def f32(*shape):
            return np.zeros(shape, np.float32)  # zero pages of the OS: memory is taken when touched

        def i32(*shape):
            return np.zeros(shape, np.int32)

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
            "tile_arg": i32(rows, tiles), "greedy": i32(rows), "route_expert": i32(len(c.layers), s["experts"]) - 1,
            "route_rows": i32(len(c.layers), s["experts"]),
        }  # fmt: skip

    def _make_scratch(self) -> tuple[int, np.ndarray, dict[str, np.ndarray]]:
        """(address, block, arrays) of one worker's scratch."""
        t, s, rows = self.tiling, self._params.sizes, MAX_ROWS
        tile = max(2 * t.qkv_pairs, t.o_proj, t.router, t.expert_up, t.shared_up, t.dense_up, t.lm_head)
        f32, i32 = np.float32, np.int32
        arrays = {
            "tag": np.full(2, -1, np.int64), "normed": np.zeros((rows, s["hidden"]), f32), "rows": np.zeros(rows, i32),
            "ranks": np.zeros(rows * s["top_k"], i32), "out": np.zeros((rows, tile), f32), "out2": np.zeros((rows, tile), f32),
            "scores": np.zeros(SPLIT, f32), "chosen": np.zeros((rows, s["top_k"]), i32),
            "weight": np.zeros((rows, s["top_k"]), f32), "slot_expert": np.full(s["experts"], -1, i32),
            "probs": np.zeros(s["experts"], f32),
        }  # fmt: skip
        block = pack(Scratch, {"tile": tile}, arrays)
        return block.ctypes.data, block, arrays

    def zero_pages(self, pages: list[int]) -> None:
        """Clear pages that a sequence opens, so that nothing of their former owner can be read."""
        self._arrays["kv"][pages] = 0

    # -- task tables ----------------------------------------------------------------------------------------------------

    def table(self, shape: StepShape) -> tuple[int, Table, Shared, list[int]]:
        """(graph id, Table, Shared, [steps run]) for a step shape; built, scheduled and checked at first use."""
        if shape not in self._tables:
            built = build_graph(self.config, shape, self.tiling, self.weight_bytes)
            self.bind(built, make_schedule(built.graph, self.sms, self.policy))
        return self._tables[shape]

    def bind(self, built: StepGraph, schedule: Schedule) -> None:
        """Use this graph and schedule for its step shape.  Raises MkvizError when the validator refuses them."""
        g = built.graph
        check(g, schedule)
        slot = g.slot.astype(np.int64)
        is_attention = g.op == OPS.index("attention")
        slots = np.array([layer_splits(self.config, i, built.shape) for i in range(len(self.config.layers))])
        slot[is_attention] = slots[g.layer[is_attention]]
        where = np.column_stack([g.layer.astype(np.int64), slot, g.tile.astype(np.int64), built.args.astype(np.int64)])
        function = np.array([FUNCTIONS[op].address for op in OPS], np.int64)[g.op]
        table = Table(
            function, np.ascontiguousarray(where), g.wait_ptr, g.wait_counter, g.wait_need, g.raise_ptr, g.raise_counter,
            g.arrivals, schedule.order_ptr, schedule.order, schedule.queue, schedule.sms,
        )  # fmt: skip
        shared = Shared(
            np.zeros(len(g.counters), np.uint32), np.zeros(len(g.counters), np.int64), np.zeros(1, np.uint64),
            np.zeros(1, np.uint64), np.zeros(1, np.uint32),
            np.zeros(self.sms, np.uint32), np.full((self.sms, SM_WORDS), NOTHING, np.int64), self.rings.records,
            self.rings.live.view(np.uint64).reshape(-1), self.rings.limit,
        )  # fmt: skip
        graph_id = len(self.graphs)
        self.graphs[graph_id] = (g, schedule)
        self._tables[built.shape] = (graph_id, table, shared, [0])

    # -- steps ----------------------------------------------------------------------------------------------------------

    def step(self, plan: StepPlan) -> StepResult:
        """Run one step.  Raises MkvizError when a row lies beyond the model's context."""
        keys = int(plan.position.max()) + 1
        if keys > self.config.max_positions:
            raise MkvizError(f"position {keys - 1}", f"below the model's context of {self.config.max_positions}")
        graph_id, table, shared, epoch = self.table(StepShape.covering(len(plan), keys))
        self._fill(plan)
        it = StepCall(self._binding.ctypes.data, epoch[0], self.serial, self.trace, self.seed, self.jitter_ns)
        begin = time.monotonic_ns()
        for jobs in self._jobs:
            jobs.put((table, shared, it))
        errors = [self._play((table, shared, it), 0)] + [self._done.get() for _ in self._jobs]
        end = time.monotonic_ns()
        self.serial += 1
        epoch[0] += 1
        error = next((e for e in errors if e is not None), None)
        if error is not None:
            for state in (shared.counters, shared.tickets, shared.finished, shared.abort, shared.lock):
                state[:] = 0
            shared.sm[:], epoch[0] = NOTHING, 0
            raise error
        a, rows = self._arrays, len(plan)
        return StepResult(a["logits"][:rows], a["greedy"][:rows].copy(), self._routes(), graph_id, begin, end)

    def _fill(self, plan: StepPlan) -> None:
        a, rows = self._arrays, len(plan)
        a["count"][0] = rows
        a["token"][:rows], a["position"][:rows], a["sequence"][:rows] = plan.token, plan.position, plan.sequence
        a["wants"][:rows] = plan.wants_logits
        angle = plan.position.astype(np.float32)[:, None] * self._inv_freq
        a["cos"][:rows], a["sin"][:rows] = np.cos(angle) * self._rope_scale, np.sin(angle) * self._rope_scale
        a["page_table"][: len(plan.pages), : plan.pages.shape[1]] = plan.pages
        a["greedy"][:] = -1

    def _routes(self) -> list[tuple[int, int, int, int]]:
        expert, rows = self._arrays["route_expert"], self._arrays["route_rows"]
        layers, slots = np.nonzero(expert >= 0)
        return list(
            zip(layers.tolist(), slots.tolist(), expert[layers, slots].tolist(), rows[layers, slots].tolist(), strict=True)
        )

    def _play(self, job: tuple[Table, Shared, StepCall], worker: int) -> BaseException | None:
        try:
            play(*job, self._scratch[worker][0], worker, self.workers)
        except BaseException as error:  # handed to the caller of step
            job[1].abort[0] = 1  # nobody may spin on what this worker will never raise
            return error
        return None

    def _serve(self, jobs: queue.SimpleQueue, worker: int) -> None:
        while (job := jobs.get()) is not None:
            self._done.put(self._play(job, worker))

    def close(self) -> None:
        for jobs in self._jobs:
            jobs.put(None)
        self._jobs = []
