"""Runners: the same decode steps launched again and again on a backend, timed, and looked at once for what they touch."""

from __future__ import annotations

import copy
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from engine.builder import StepShape
from engine.checkpoint import Weights
from engine.config import ModelConfig
from engine.plan import StepPlan
from engine.tiling import PAGE
from mkviz.graph import Graph

SLICE = 1 << 26  # elements of KV drawn at a time


def decode_plan(rows: int, context: int, steps: int, vocab: int) -> StepPlan:
    """``rows`` sequences of ``context`` tokens, each with another token to go on from, and with pages of its own that ``steps``
    steps more fit into."""
    i32 = np.int32
    pages = np.arange(rows * pages_for(context + steps), dtype=i32).reshape(rows, -1)
    tokens = (np.arange(1, rows + 1) * vocab // (rows + 1)).astype(i32)
    return StepPlan(tokens, np.full(rows, context, i32), np.arange(rows, dtype=i32), np.zeros(rows, bool), pages)


def pages_for(tokens: int) -> int:
    return -(-tokens // PAGE)


def longest_chain(graph: Graph) -> int:
    """Tasks of the longest chain of waits: as many hand-overs, since the last of them hands over to the next step's first."""
    from mkviz.order import topological_order

    deep = [0] * len(graph.counters)  # longest chain that ends with a producer of the counter
    longest = 0
    waits, raises = graph.wait_counter.tolist(), graph.raise_counter.tolist()
    wait_ptr, raise_ptr = graph.wait_ptr.tolist(), graph.raise_ptr.tolist()
    for t in topological_order(graph).tolist():
        depth = 1 + max((deep[c] for c in waits[wait_ptr[t] : wait_ptr[t + 1]]), default=0)
        longest = max(longest, depth)
        for c in raises[raise_ptr[t] : raise_ptr[t + 1]]:
            deep[c] = max(deep[c], depth)
    return longest


class Runner:
    """Launches of a :func:`decode_plan`.  Every launch begins anew at the plan's position, so that all read the same bytes;
    what it writes to the pages is what the launch before wrote there."""

    name: str
    kv_element: int  # bytes

    def __init__(self, config: ModelConfig, weights: Weights | None, backend: Any):
        self.config, self.weights, self.backend = config, weights, backend

    @property
    def weight_bytes(self) -> int:
        """Of the weights where steps read them."""
        return self.backend.widened_bytes or self.weights.source_bytes

    def graph(self, plan: StepPlan, steps: int) -> Graph:
        """Of the launch's last steps, which see the most keys."""
        program = self.backend.program(StepShape.covering(len(plan), int(plan.position.max()) + steps))
        return self.backend.graphs[self._graph_id(program)][0]

    @staticmethod
    def max_rows() -> int:
        """Of a step."""
        raise NotImplementedError

    def launch(self, plan: StepPlan, steps: int) -> float:
        """Milliseconds a step."""
        raise NotImplementedError

    def experts(self, plan: StepPlan, steps: int) -> np.ndarray:
        """i64[steps, routed layers]: distinct experts that each step of a launch touches in each routed layer."""
        routed = [i for i, spec in enumerate(self.config.layers) if spec.mlp == "moe"]
        found = np.zeros((steps, len(routed)), np.int64)
        for step in range(steps if routed else 0):
            routes, plan = self._step(plan)
            layers = np.array([layer for layer, *_ in routes], np.int64)
            found[step] = np.bincount(layers, minlength=len(self.config.layers))[routed]
        return found

    def _step(self, plan: StepPlan) -> tuple[list, StepPlan]:
        """(routes of one step, the plan of the next)."""
        raise NotImplementedError

    def logits(self, plan: StepPlan) -> np.ndarray:
        """f32[rows, vocab] of one step."""
        wanting = copy.copy(plan)
        wanting.wants_logits = np.ones(len(plan), bool)
        return self.backend.step(wanting).logits.copy()

    def kv(self, layer: int, pages: np.ndarray) -> tuple[Any, Any]:
        """(K, V), each [kv_heads, tokens, head_dim], of pages in order: u16 bf16 bits or f32, where the backend has them."""
        raise NotImplementedError

    @staticmethod
    def _graph_id(program: Any) -> int:
        raise NotImplementedError


def _next(plan: StepPlan, greedy: np.ndarray) -> StepPlan:
    return StepPlan(greedy.astype(np.int32), plan.position + 1, plan.sequence, plan.wants_logits, plan.pages)


def twins(backend: Any, *changes: dict[str, int]) -> list[Any]:
    """The same CudaBackend, its weights, buffers and programs, with kernels compiled as each of the ``changes`` of its fields
    (``trace``, ``ablate``) says."""
    made = [copy.copy(backend) for _ in changes]
    for twin, change in zip(made, changes, strict=True):
        vars(twin).update(change)
    with ThreadPoolExecutor() as pool:
        cubins = list(pool.map(lambda twin: twin._compile(), made))
    for twin, of_bucket in zip(made, cubins, strict=True):
        twin._launch = {bucket: twin._load(cubin) for bucket, cubin in of_bucket.items()}
    return made


class CudaRunner(Runner):
    """The megakernel, tracing compiled out: all steps of a launch in one, timed by events.  ``weights`` None: random."""

    name, kv_element = "cuda", 2

    def __init__(self, config: ModelConfig, weights: Weights | None, *, pages: int, steps: int, rows: int, policy: str,
                 ring_capacity: int = 1 << 10):  # fmt: skip
        from engine.cuda.abi import BUCKETS
        from engine.cuda.backend import CudaBackend

        options = {"policy": policy, "trace": 0, "max_steps": steps, "rows": next(b for b in BUCKETS if b >= rows),
                   "ring_capacity": ring_capacity}  # fmt: skip
        super().__init__(config, weights, CudaBackend(config, weights, pages=pages, **options))
        self._fill_kv()
        (self._traced,) = twins(self.backend, {"trace": 1})  # its kernel notes its routes

    @staticmethod
    def max_rows() -> int:
        from engine.cuda.abi import BUCKETS

        return BUCKETS[-1]

    def _fill_kv(self) -> None:
        """Standard normal keys and values."""
        xp, flat = self.backend.cupy, self.backend._arrays["kv"].reshape(-1)
        generator = xp.random.Generator(xp.random.XORWOW(1))
        for at in range(0, flat.size, SLICE):
            n = min(SLICE, flat.size - at)
            bits = generator.standard_normal(n, xp.float32).view(xp.uint32)
            flat[at : at + n] = (bits + xp.uint32(0x8000)) >> xp.uint32(16)
        xp.cuda.Device().synchronize()

    def launch(self, plan: StepPlan, steps: int) -> float:
        self.backend.run(plan, steps)
        return self.backend.device_us / steps / 1e3

    def _step(self, plan: StepPlan) -> tuple[list, StepPlan]:
        result = self._traced.step(plan)
        return result.routes, _next(plan, self._traced.greedy_steps[-1])

    def kv(self, layer: int, pages: np.ndarray) -> tuple[Any, Any]:
        from engine.bench.unpack import pages as unpacked

        xp = self.backend.cupy
        return unpacked(self.backend._arrays["kv"], self.config, layer, xp.asarray(pages), xp)

    @staticmethod
    def _graph_id(program: Any) -> int:
        return program[0]


class CpuRunner(Runner):
    """The interpreter, a call a step, timed by the clock."""

    name, kv_element = "cpu", 4

    def __init__(self, config: ModelConfig, weights: Weights, *, pages: int, steps: int, rows: int, policy: str):
        from engine.cpu.backend import CpuBackend

        super().__init__(config, weights, CpuBackend(config, weights, pages=pages, policy=policy, trace=False))
        kv = self.backend._arrays["kv"]
        np.random.default_rng(1).standard_normal(out=kv, dtype=np.float32)

    @staticmethod
    def max_rows() -> int:
        from engine.cpu.backend import CpuBackend

        return CpuBackend.max_rows

    def launch(self, plan: StepPlan, steps: int) -> float:
        begin = time.perf_counter()
        for _ in range(steps):
            plan = self._step(plan)[1]
        return (time.perf_counter() - begin) * 1e3 / steps

    def _step(self, plan: StepPlan) -> tuple[list, StepPlan]:
        result = self.backend.step(plan)
        return result.routes, _next(plan, result.greedy)

    def kv(self, layer: int, pages: np.ndarray) -> tuple[Any, Any]:
        k, v = self.backend._arrays["kv"][pages, layer].transpose(1, 2, 0, 3, 4)
        return tuple(np.ascontiguousarray(x).reshape(len(x), -1, x.shape[-1]) for x in (k, v))

    @staticmethod
    def _graph_id(program: Any) -> int:
        return program.graph
