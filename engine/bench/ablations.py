"""Ablations: the same decode of the same weights and buffers with one idea of the kernel left out, to say what it is worth.

Two change the step's graph, which is then dealt out anew by the same policy; three change the loader (MK_ABLATE in cuda/).
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from engine.bench.paired import in_turn, ratio, spread
from engine.bench.runners import CudaRunner, longest_chain, twins
from engine.builder import StepShape
from engine.plan import StepPlan
from mkviz.errors import MkvizError
from mkviz.graph import Graph
from mkviz.simulator import kernel_of
from mkviz.whatif_graph import in_sequence

WARM = 2  # launches of each before those that count
READ_BY_LOADERS = ("qkv", "router", "top_k", "picked")  # counters that the kernel reads besides those of its tasks


def barrier_per_op(graph: Graph) -> Graph:
    """All tasks of an op of a layer wait for all of the op before, and for nothing else.  Every task arrives at the barrier.

    Raises MkvizError where the ops of a layer cannot be run one after the other.
    """
    kernel = kernel_of(graph)
    kernels, last = np.unique(kernel, return_index=True), int(kernel.max())
    kept = np.array([name.split(".")[0] in READ_BY_LOADERS for name in graph.counters])
    first = int(kept.sum())  # the barrier behind kernel k is counter first + k
    task = np.repeat(np.arange(len(graph)), np.diff(graph.raise_ptr))[kept[graph.raise_counter]]
    counter = (np.cumsum(kept) - 1)[graph.raise_counter[kept[graph.raise_counter]]]
    arrives = np.flatnonzero(kernel < last)
    task, counter = np.append(task, arrives), np.append(counter, first + kernel[arrives])
    order = np.argsort(task, kind="stable")
    waits = kernel > 0
    before = kernel[waits] - 1
    names = [name for name, keep in zip(graph.counters, kept, strict=True) if keep]
    for t in kernels[1][:-1].tolist():
        names.append(f"{graph.ops[graph.op[t]]}{f'.{graph.layer[t]}' if graph.layer[t] >= 0 else ''} is done")
    return replace(
        graph, counters=tuple(names), wait_ptr=_ptr(waits), wait_counter=(first + before).astype(np.int32),
        wait_need=np.bincount(kernel)[before].astype(np.uint32), raise_ptr=_ptr(np.bincount(task, minlength=len(graph))),
        raise_counter=counter[order].astype(np.int32),
    )  # fmt: skip


def attention_first(graph: Graph) -> Graph:
    """In each layer what runs beside attention begins when O-proj is done.  What a wait implies by itself is not waited for
    again: a task of the kernel has two waits.

    Raises MkvizError where nothing runs beside attention.
    """
    graph = in_sequence(graph, "o_proj")
    count = np.diff(graph.wait_ptr)
    keep = np.ones(len(graph.wait_counter), bool)
    crowded = np.flatnonzero(count == 3)  # one more than it had
    at = graph.wait_ptr[crowded][:, None] + np.arange(3)
    alike, of = np.unique(graph.wait_counter[at], axis=0, return_inverse=True)
    ptr, producer = graph.producers
    for i, counters in enumerate(alike.tolist()):
        known = {c for other in counters for c, _ in graph.waits(int(producer[ptr[other]]))}
        keep[at[of.reshape(-1) == i]] = [c not in known for c in counters]
    left = np.bincount(np.repeat(np.arange(len(graph)), count)[keep], minlength=len(graph))
    return replace(graph, wait_ptr=_ptr(left), wait_counter=graph.wait_counter[keep], wait_need=graph.wait_need[keep])


def _ptr(counts: np.ndarray) -> np.ndarray:
    return np.append(0, np.cumsum(counts)).astype(np.int32)


@dataclass(frozen=True)
class Ablation:
    """``ablate``: MK_ABLATE of its kernel; ``change``: of the graph; ``meta``: what the graph tells of it besides its name."""

    name: str
    words: str
    ablate: int = 0
    change: Callable[[Graph], Graph] = lambda graph: graph
    meta: dict = field(default_factory=dict)

    def graph(self, graph: Graph) -> Graph:
        meta = graph.meta | self.meta | {"ablation": self.name}
        return replace(self.change(graph), name=f"{graph.name} · {self.words}", meta=meta)


ABLATIONS = (
    Ablation("counters", "one row by the kernel for eight"),
    Ablation("barrier-per-op", "a grid barrier per op", change=barrier_per_op),
    Ablation("in-sequence", "attention and MoE in sequence", change=attention_first),
    Ablation("drained", "the ring drained per task", ablate=1),
    Ablation("no-prefetch", "no prefetch across tasks", ablate=2, meta={"prefetch": False}),
    Ablation("ticket", "a ticket per task, as if it were claimed", ablate=3),
)


class Ablated:
    """A runner's backend with each of the ablations; ``traced``: with kernels that trace, too."""

    def __init__(self, runner: CudaRunner, traced: bool = False):
        self.runner = runner
        self._kernels = {(0, 0): runner.backend._launch, (0, 1): runner._traced._launch}
        kinds = [{"ablate": a.ablate, "trace": trace} for a in ABLATIONS if a.ablate for trace in range(1 + traced)]
        for twin in twins(runner.backend, *kinds):
            self._kernels[twin.ablate, twin.trace] = twin._launch
        self._programs: dict[str, dict] = {a.name: {} for a in ABLATIONS}

    def backend(self, ablation: Ablation, shape: StepShape, trace: int = 0) -> Any:
        """The backend, ready for steps of the shape.  Raises MkvizError where there is nothing to leave out."""
        out = copy.copy(self.runner.backend)
        out.buckets = [b for b in out.buckets if b > 1]  # with one row nobody waits for counters, which is what these change
        out.ablate, out.trace, out._launch = ablation.ablate, trace, self._kernels[ablation.ablate, trace]
        out._programs = self._programs[ablation.name]
        if shape not in out._programs:
            built = out.graph_of(shape)
            graph = ablation.graph(built.graph)
            out.bind(replace(built, graph=graph), out.dealt(graph, shape))
        return out

    def measure(self, plan: StepPlan, steps: int, rounds: int) -> list[dict]:
        """Launches of the kernel as it is (the first entry) and with each ablation, in turn.  Times in ms a step."""
        shape = StepShape.covering(len(plan), int(plan.position.max()) + steps)
        told, backends = [{"name": "as-it-is", "words": "as it is"}], [self.runner.backend]
        told[0] |= _graph_figures(self.runner.backend, shape)
        left_out = []
        for ablation in ABLATIONS:
            entry = {"name": ablation.name, "words": ablation.words}
            try:
                backend = self.backend(ablation, shape)
            except MkvizError as error:
                left_out.append(entry | {"left_out": error.what})
                continue
            backends.append(backend)
            told.append(entry | _graph_figures(backend, shape))
        for entry, backend in zip(told, backends, strict=True):
            for _ in range(WARM):
                backend.run(plan, steps)
            entry["same_tokens"] = bool(np.array_equal(backend.greedy_steps, backends[0].greedy_steps))
        times = in_turn([partial(_launch, backend, plan, steps) for backend in backends], rounds)
        for entry, each in zip(told, times, strict=True):
            entry |= spread(each) | {"ratio": ratio(times[0], each)}
        return told + left_out


def _launch(backend: Any, plan: StepPlan, steps: int) -> float:
    backend.run(plan, steps)
    return backend.device_us / steps / 1e3


def _graph_figures(backend: Any, shape: StepShape) -> dict:
    graph = backend.program(shape)[1].graph
    return {"tasks": len(graph), "counters": len(graph.counters), "hops": longest_chain(graph)}


def lines(point: dict) -> str:
    """The table of one point for people."""
    rounds = point["ablations"][0]["ratio"]["pairs"]
    out = [f"  what each is worth, {rounds} launches of each in turn:"]
    for entry in point["ablations"]:
        if "left_out" in entry:
            out.append(f"  {entry['words']:<42} nothing to leave out: {entry['left_out']}")
            continue
        more, (low, high) = entry["ratio"]["mean"] - 1, entry["ratio"]["interval_95"]
        text = f"  {entry['words']:<42}{entry['ms_step']:8.3f} ms/step"
        if entry["name"] != "as-it-is":
            text += f"{more:+8.1%} (95 %: {low - 1:+.1%} to {high - 1:+.1%})"
        out.append(text + ("" if entry["same_tokens"] else "  OTHER TOKENS"))
    return "\n".join(out)
