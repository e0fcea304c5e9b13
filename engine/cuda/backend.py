"""CudaBackend: runs steps of a model in one persistent kernel."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from engine.builder import StepGraph, StepShape, build_graph
from engine.checkpoint import Weights
from engine.config import ModelConfig
from engine.cuda import abi, memory
from engine.cuda.asks import sampling_of, told_of
from engine.cuda.build import THREADS, megakernels
from engine.cuda.defines import fixed_shared, kernel_defines, model_defines, model_fields
from engine.cuda.device import Device, open_device
from engine.cuda.link import DeviceRings
from engine.cuda.options import check_options
from engine.cuda.program import Program, dealt, make_program, tiling_of
from engine.cuda.random_weights import RandomWeights
from engine.cuda.stuck import StuckStep, stuck_step
from engine.cuda.weights import PackedWeights, check_supported
from engine.pick import Logprobs
from engine.plan import StepPlan, StepResult
from engine.tables import nearest
from engine.tiling import Tiling
from mkviz.errors import MkvizError
from mkviz.graph import Graph
from mkviz.schedule import Schedule
from mkviz.validate import check

POLL_BUDGET = 2_000_000  # polls of a wait before the launch is given up: seconds, when a poll takes about 1 us
LINE = 32  # u32 words from one counter to the next: a cache line each


def nvtx_range(text: str):
    """Open an NVTX range (Nsight shows it) and return what closes it; does nothing where nvtx is not installed."""
    try:
        import nvtx
    except ImportError:
        return lambda: None
    mark = nvtx.start_range(message=text, domain="mkviz")
    return lambda: nvtx.end_range(mark)


class CudaBackend:
    """Runs steps of at most ``rows`` rows: 8, 16, 32, 64, 128 or 256 (None: up to 64, as shared memory has room for), with a
    kernel for each of these numbers up to it.

    ``pages``: KV pages of 64 tokens; ``fit``: or as many as the free memory holds beside all else and a margin.  ``trace``:
    level 0 (off), 1 or 2; ``ring_capacity``: records of a ring (None: of two of the largest steps).  ``sampling``: rows are
    drawn in the kernel, as their plan says.

    ``weights=None`` draws random ones on the device.  Raises MkvizError, before anything is allocated, for a model that the
    kernel does not support or that does not fit.
    """

    name, max_rows, builds = "cuda", abi.USUAL_ROWS, True  # rows unless it is opened for others
    known = True  # kernels for up to eight rows are compiled for this model alone; one that serves all is up to 9 % slower
    ablate = 0  # MK_ABLATE of the kernel (cuda/block.cuh): how much of loading ahead is left out, for measurements

    def __init__(self, config: ModelConfig, weights: Weights | None, *, pages: int = 256, policy: str = "",
                 trace: bool | int = True, ring_capacity: int | None = 1 << 10, capture: bool = False, max_steps: int = 256,
                 poll_budget: int = POLL_BUDGET, delays: int = 0, sms: int | None = None, sampling: bool = False,
                 rows: int | None = abi.ROWS, fit: bool = False):  # fmt: skip
        check_supported(config)
        check_options(policy, trace, rows, ring_capacity, pages, max_steps, poll_budget)
        self.device: Device = open_device()
        self.config, self.policy, self.trace = config, policy or "balanced", int(trace)
        self.sms = self.device.sms if sms is None else sms
        if not 1 <= self.sms <= self.device.sms:
            raise MkvizError(
                f"sms: {self.sms}", f"1 to the {self.device.sms} of {self.device.name}: all blocks must be resident"
            )
        self.cupy = self.device.cupy
        self.max_steps, self.poll_budget, self.delays = max_steps, poll_budget, delays
        self.sampling = sampling
        self.tiling = Tiling.for_tensor_cores(config, self.sms, sampling)
        self.x_stride = (config.hidden // 2 + 7) // 8 * 8 + 4  # u32 words from one row of resident activations to the next
        self.buckets = self._buckets(rows)
        self.max_rows, tiles = self.buckets[-1], -(-config.vocab // self.tiling.lm_head)
        ring_capacity = ring_capacity or self._ring_capacity()
        sizes = memory.work_arrays(config, pages, max_steps, self.sms, tiles, sampling, self.max_rows)
        need = memory.bytes_needed(config, sizes, self.sms, ring_capacity)
        if fit:
            memory.fit(sizes, need, self.device.free)
        self.pages = sizes["kv"][1][0]
        plan = memory.plan(need, self.pages, self.device)
        plan.enter(memory.REMEDY)
        cubins = self._compile()
        self._stream = self.cupy.cuda.Stream(non_blocking=True)
        try:
            with self._stream:
                self.weights = PackedWeights(config, weights, self.cupy) if weights else RandomWeights(config, self.cupy)
                self.rings = DeviceRings(self.cupy, self.sms, ring_capacity, capture)
                self._arrays = {name: self.cupy.zeros(shape, dtype) for name, (dtype, shape) in sizes.items()}
                self._arrays["rope_table"].set(memory.rope_table(config))
        except self.cupy.cuda.memory.OutOfMemoryError:  # packing takes some more for a while, and others may be quicker
            raise MkvizError(str(plan), memory.REMEDY) from None
        self._stream.synchronize()
        self._launch = {bucket: self._load(cubin) for bucket, cubin in cubins.items()}
        self._events = (self.cupy.cuda.Event(), self.cupy.cuda.Event())
        self.device_us = 0.0  # of the last launch, by events
        self._programs: dict[StepShape, tuple[int, Program, dict[str, Any], list[int]]] = {}
        self.graphs: dict[int, tuple[Graph, Schedule]] = {}
        self.serial = 0
        self._tags = memory.Tags(len(config.layers) + 1, self._clear_tags)

    # -- memory ---------------------------------------------------------------------------------------------------------

    page_bytes = staticmethod(memory.page_bytes)

    @property
    def kv_bytes(self) -> int:
        return self._arrays["kv"].nbytes

    @property
    def widened_bytes(self) -> int:
        """Bytes of the packed copy of the weights on the device."""
        return self.weights.nbytes

    def zero_pages(self, pages: list[int]) -> None:
        """Clear pages that a sequence opens: attention multiplies what it masks by zero, so stale NaNs would leak."""
        with self._stream:
            for page in pages:
                self._arrays["kv"][page].fill(0)

    def _ring_capacity(self) -> int:
        """Records of a ring that holds those of two of the largest steps: the storers of an SM's tiles leave those of every
        third task, and a policy may give an SM half as many tasks more than its share."""
        if not self.trace:
            return 1 << 10
        tasks = len(self.graph_of(StepShape.covering(self.max_rows, self.config.max_positions)).graph)
        records = 3 * self.trace * tasks // (self.sms * (abi.STORERS - 1))
        return max(1 << 10, 1 << records.bit_length())

    # -- the kernel -----------------------------------------------------------------------------------------------------

    def _buckets(self, rows: int | None) -> list[int]:
        """Rows that a kernel is needed for, in steps of up to ``rows``."""
        one = memory.one_row(self.config) and self.device.arch >= 90  # below, its tracing kernel has too few registers
        buckets = [1] * one + [b for b in abi.BUCKETS if b <= (rows or abi.USUAL_ROWS)]
        for bucket in buckets:
            try:
                self.layout(bucket, bucket)
            except MkvizError:
                if rows or bucket <= abi.ROWS:
                    raise
                return buckets[: buckets.index(bucket)]
        return buckets

    def layout(self, rows: int, bucket: int = abi.ROWS) -> tuple[int, int]:
        """(ring stages, bytes of a block's shared memory) for steps of up to ``rows`` rows in the kernel for ``bucket``: what
        is left beside the fixed part, q and the activations (which the wide kernels leave in global memory) is the ring."""
        c, fixed = self.config, fixed_shared(bucket)
        activations = rows * self.x_stride if bucket <= abi.ROWS else 0
        attention_rows = StepShape(bucket, 1).row_block  # of a task, whose q is there twice: for math and for the next task
        words = activations + self._held(bucket) + 2 * abi.ROWS * attention_rows * (c.head_dim // 2 + 4)
        resident = 4 * words + len(c.layers) * abi.LAYER.itemsize
        stages = min(16, (self.device.shared - fixed - resident) // abi.CHUNK)
        if stages < 3:
            least = fixed_shared(abi.ROWS) + 3 * abi.CHUNK
            if self.device.shared < least:
                what = f"{self.device.name}: {self.device.shared} bytes of shared memory for a block"
                raise MkvizError(what, f"{least} and what rows need; or use --backend cpu")
            what = f"hidden_size: {c.hidden}" if bucket <= abi.ROWS else f"rows: {bucket} in one step"
            right = f"what leaves 48 KiB of the {self.device.shared} bytes of shared memory of a block of {self.device.name}"
            raise MkvizError(what, f"{right}; or use --backend cpu")
        return stages, fixed + stages * abi.CHUNK + resident

    def _held(self, bucket: int) -> int:
        """u32 of shared memory for the activations of a projection back into the residual."""
        return memory.held_words(self.config) if bucket == 1 else 0

    def _bucket(self, shape: StepShape) -> int:
        return next(b for b in self.buckets if b >= shape.rows)

    def _compile(self) -> dict[int, Path]:
        cubins = megakernels(self.device.arch, [self._defines(bucket) for bucket in self.buckets])
        return dict(zip(self.buckets, cubins, strict=True))

    def _defines(self, bucket: int) -> dict[str, int]:
        defines = kernel_defines(self.config.experts, self.trace, self.delays > 0, self.config.qk_norm, self.sampling, bucket)
        known = model_defines(self.config) if self.known and self.trace < 2 and bucket <= abi.ROWS else {}  # others spill
        return defines | known | ({"MK_ABLATE": self.ablate} if self.ablate else {})

    def _load(self, cubin: Path):
        kernel = self.cupy.RawModule(path=str(cubin)).get_function("megakernel")
        kernel.max_dynamic_shared_size_bytes = self.device.shared
        return kernel

    def program(self, shape: StepShape) -> tuple[int, Program, dict[str, Any], list[int]]:
        """(graph id, program, its device arrays, [steps run]) for a step shape; built, scheduled and checked at first use."""
        if shape not in self._programs:
            built = self.graph_of(shape)
            self.bind(built, self.dealt(built.graph, shape), validate=False)  # who deals validates
        return self._programs[shape]

    def graph_of(self, shape: StepShape) -> StepGraph:
        return build_graph(self.config, shape, tiling_of(self.config, self.tiling, self._bucket(shape)), 2)

    def dealt(self, graph: Graph, shape: StepShape) -> Schedule:
        return dealt(graph, self.sms, self.policy, self._bucket(shape))

    def bind(self, built: StepGraph, schedule: Schedule, validate: bool = True) -> None:
        """Use this graph and schedule for its step shape (``validate=False``: for tests of the watchdog)."""
        if validate:
            check(built.graph, schedule)
        program = make_program(self.config, built, schedule, self.weights)
        xp = self.cupy
        with self._stream:
            arrays = {
                "tasks": xp.asarray(program.tasks.view(np.uint8)), "task_ptr": xp.asarray(program.task_ptr),
                "storer_first": xp.asarray(program.storer_first),
                "layers": xp.asarray(program.layers.view(np.uint8)),
                "counters": xp.zeros(len(program.graph.counters) * LINE, xp.uint32),
            }  # fmt: skip
        self._stream.synchronize()
        graph_id = len(self.graphs)
        self.graphs[graph_id] = (program.graph, schedule)
        self._programs[built.shape] = (graph_id, program, arrays, [0])

    def _params(self, program: Program, arrays: dict[str, Any], epoch: int, steps: int, rows: int, bucket: int) -> np.ndarray:
        c, p = self.config, np.zeros(1, abi.PARAMS)
        pointers = {name: a for name, a in (self._arrays | arrays).items() if not name.startswith(memory.ONE)}
        if bucket == 1:
            pointers |= {name: self._arrays[memory.ONE + name] for name in pointers if memory.ONE + name in self._arrays}
        for name, a in pointers.items():
            p[name] = a.data.ptr
        p["embed"], p["head"], p["final_norm"] = (self.weights.address(n) for n in ("embed", "head", "norm"))
        p["records"], p["live"], p["limit"] = (a.data.ptr for a in (self.rings.records, self.rings.live, self.rings.limit))
        fields = model_fields(c) | {
            "dense_k16": memory.widths(c)[1] // 16, "layer_count": len(c.layers), "rows": rows,
            "table_width": self._arrays["page_table"].shape[1], "splits": self._arrays["part_max"].shape[2],
            "head_tiles": program.head_tiles, "ring_capacity": self.rings.capacity, "epoch": epoch & 0xFFFFFFFF, "steps": steps,
            "step_low": self.serial & 0xFFFFFFFF, "step_high": self.serial >> 32, "poll_budget": self.poll_budget,
            "stages": self.layout(rows, bucket)[0], "x_stride": self.x_stride, "picked_counter": program.picked_counter,
            "picked_arrivals": int(program.graph.arrivals[program.picked_counter]), "delay_seed": self.delays,
            "held": self._held(bucket), "tag": self._tags.take(steps) if bucket == 1 else 0, "head_tile": self.tiling.lm_head,
            "sample_parts": self.tiling.sample, "eps": c.eps, "logit_scale": c.logit_scale, "attention_scale": c.head_dim**-0.5,
        }  # fmt: skip
        for name, value in fields.items():
            p[name] = value
        return p

    def _clear_tags(self) -> None:
        with self._stream:
            for name, array in self._arrays.items():
                if name.startswith(memory.ONE):
                    array.fill(0)

    def step(self, plan: StepPlan) -> StepResult:
        """One step."""
        return self.run(plan, 1)

    def run(self, plan: StepPlan, steps: int) -> StepResult:
        """``steps`` steps in one launch; more than one only for rows that decode (each takes its greedy token as its next).

        ``greedy`` of the result is i32[rows] of the last step; :attr:`greedy_steps` has all.  Raises :class:`StuckStep` when a
        wait ran out of polls; the next launch starts from clean counters.
        """
        self.start(plan, steps)
        return self.finish()

    def start(self, plan: StepPlan, steps: int) -> None:
        """Launch and return; :meth:`finish` waits.  Between the two the rings may be drained and :meth:`stop` called."""
        rows, keys = len(plan), int(plan.position.max()) + steps
        if not 1 <= steps <= self.max_steps:
            raise MkvizError(f"steps: {steps} in one launch", f"1 to {self.max_steps}")
        if keys > self.config.max_positions:
            raise MkvizError(f"position {keys - 1}", f"below the model's context of {self.config.max_positions}")
        if rows > self.max_rows:
            raise MkvizError(f"rows: {rows} in one step", f"at most {self.max_rows} on the cuda backend")
        if len(plan.pages) > self.max_rows:
            raise MkvizError(f"sequences: {len(plan.pages)} in one step", f"at most {self.max_rows} on the cuda backend")
        if steps > 1 and len(np.unique(plan.sequence)) < rows:
            raise MkvizError(f"steps: {steps} in one launch with several rows of a sequence", "1, or one row of each")
        wide = rows > abi.ROWS  # then one table for all of a prompt, rather than another whenever it has grown
        shape = StepShape.covering(rows, max(keys, plan.keys) if wide else keys)
        if not self.builds:
            shape = nearest(shape, self._programs)
        bucket, (graph_id, program, arrays, epoch) = self._bucket(shape), self.program(shape)
        first = np.array([plan.position[plan.sequence == s].min() for s in plan.sequence], np.uint32)
        a = self._arrays
        with self._stream:
            for name, value in (("token", plan.token), ("position", plan.position), ("first", first),
                                ("sequence", plan.sequence), ("wants", plan.wants_logits)):  # fmt: skip
                a[name][:rows] = self.cupy.asarray(np.asarray(value).astype(np.uint32))
            a["page_table"][: len(plan.pages), : plan.pages.shape[1]] = self.cupy.asarray(plan.pages.astype(np.uint32))
            a["stop"].fill(0)
            if self.sampling:
                asks = np.array([sampling_of(ask) for ask in plan.sampling or [None] * rows])
                a["sampling"][:rows] = self.cupy.asarray(asks.view(np.uint8).reshape(rows, -1))
                a["go"].fill(1)
        self._stream.synchronize()  # the kernel must find everything there, and nothing may be allocated once it runs
        params = self._params(program, arrays, epoch[0], steps, rows, bucket)
        self._range = nvtx_range(f"mkviz steps {self.serial}–{self.serial + steps - 1}")
        self._begin = time.monotonic_ns()
        self._events[0].record(self._stream)
        launch, shared = self._launch[bucket], self.layout(rows, bucket)[1]
        launch((self.sms,), (THREADS,), (params,), shared_mem=shared, stream=self._stream)
        self._events[1].record(self._stream)
        self._running = (plan, steps, rows, graph_id, program, arrays, epoch, bucket)

    def finish(self) -> StepResult:
        plan, steps, rows, graph_id, program, arrays, epoch, bucket = self._running
        try:
            self._stream.synchronize()
        finally:
            end = time.monotonic_ns()
            self._range()
        self.device_us = self.cupy.cuda.get_elapsed_time(*self._events) * 1e3
        a = self._arrays
        abort = a["abort"].get(stream=self._stream).view(abi.ABORT)[0]
        if abort["word"]:
            raise self._give_up(abort, program, arrays, epoch, steps)
        go = a["go"].get(stream=self._stream)
        done = next((s for s in range(1, steps) if not go[s]), steps)
        self.serial += done
        epoch[0] += done
        self.greedy_steps = self._of_steps("greedy", bucket, done).get(stream=self._stream)[:, :rows].astype(np.int32)
        greedy, wanted, told = np.where(plan.wants_logits, self.greedy_steps[-1], -1), plan.wants_logits, None
        if self.sampling and plan.sampling:  # who has its token needs no logits
            wanted = wanted & np.array([ask is None or token < 0 for ask, token in zip(plan.sampling, greedy, strict=True)])
            told = self._told(plan, greedy, done, bucket)
        logits = np.empty((rows, self.config.vocab if wanted.any() else 0), np.float32)
        for row in np.flatnonzero(wanted):  # a megabyte each, of a large vocabulary
            a["logits"][row].get(stream=self._stream, out=logits[row])
        return StepResult(logits, greedy, self._routes(bucket), graph_id, self._begin, end, told)

    def _of_steps(self, name: str, bucket: int, steps: int) -> Any:
        """The first steps of an array [steps, rows, ...]: the kernel for ``bucket`` rows has so many in a step."""
        a = self._arrays[name]
        more = a.shape[2:]
        return a.reshape(-1, *more)[: steps * bucket].reshape(steps, bucket, *more)

    def _told(self, plan: StepPlan, picked: np.ndarray, done: int, bucket: int) -> list[Logprobs | None]:
        """Log-probabilities of the last step's rows that ask for them and have a token."""
        asked = [ask is not None and ask.logprobs is not None and t >= 0 for ask, t in zip(plan.sampling, picked, strict=True)]
        if not any(asked):
            return [None] * len(plan)
        told = self._of_steps("told", bucket, done)[-1].get(stream=self._stream).view(abi.TOLD)[:, 0]
        return [told_of(told[i]) if a else None for i, a in enumerate(asked)]

    def stop(self) -> None:
        """Ask a running launch to end after the step it is in."""
        side = self.rings._stream
        self._arrays["stop"].set(np.ones(1, np.uint32), stream=side)
        side.synchronize()

    def _routes(self, bucket: int) -> list[tuple[int, int, int, int]]:
        """(layer, slot, expert, rows) of the last step; the kernel notes them where it traces."""
        if not (self.trace and self.config.experts):
            return []
        slots = abi.route_slots(bucket)
        routes = (
            self._arrays["routes"].get(stream=self._stream).reshape(-1)[: len(self.config.layers) * slots].reshape(-1, slots)
        )
        routed = np.array([s.mlp == "moe" for s in self.config.layers])
        layers, slots = np.nonzero(routes * routed[:, None])
        words = routes[layers, slots]
        columns = (layers, slots, (words & 0xFFFF).astype(np.int64) - 1, words >> 16)
        return list(zip(*(c.tolist() for c in columns), strict=True))

    def _give_up(self, abort, program: Program, arrays, epoch, steps: int) -> StuckStep:
        """The error of a stuck launch; counters are set back, so that the next one starts clean."""
        counters = arrays["counters"].get(stream=self._stream)[::LINE]
        with self._stream:
            arrays["counters"].fill(0)
            self._arrays["abort"].fill(0)
            if self.sampling:
                self._arrays["cursor"].fill(0)
        self._stream.synchronize()
        error = stuck_step(program.graph, program.schedule, abort, counters, epoch[0])
        epoch[0] = 0
        self.serial += steps
        return error

    def close(self) -> None:
        with suppress(self.cupy.cuda.runtime.CUDARuntimeError):  # of a broken device: the step that broke it has said so
            self._stream.synchronize()
