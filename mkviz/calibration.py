"""Calibration: the simulator against a trace: what it says of steps that ran, and what a machine fitted to the trace says."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from mkviz.costs import Costs
from mkviz.errors import MkvizError
from mkviz.machine import H200, Machine
from mkviz.record import FLAG_BYTES_LAST, KIND_MASK, KIND_SKIPPED, KIND_TASK
from mkviz.simulator import simulate

if TYPE_CHECKING:
    from mkviz.graph import Graph
    from mkviz.protocols import StepInfo
    from mkviz.trace import Trace

FASTEST = 10  # percentile of an op's times that is taken for a task whose bytes are all there


@dataclass(frozen=True)
class Replayed:
    """A graph of a trace.  ``steps`` whole steps of it took ``measured`` ns (median, first ready to last publish); it takes
    ``simulated`` ns on the machine as it is, ``fitted`` ns on ``machine``, which is fitted to the last of these steps."""

    graph: str
    steps: int
    measured: int
    simulated: int
    fitted: int
    machine: Machine

    @property
    def error(self) -> float:
        """Of the machine as it is, as a share of what was measured; above 0: too slow."""
        return self.simulated / self.measured - 1

    @property
    def fitted_error(self) -> float:
        return self.fitted / self.measured - 1

    def to_text(self) -> str:
        m = self.machine
        steps = f"{self.steps} steps" if self.steps > 1 else "1 step"
        return (
            f"{self.graph}: simulated {self.simulated / 1e3:.1f} µs, measured {self.measured / 1e3:.1f} µs ({steps}), "
            f"error {self.error:+.1%}\n"
            f"  fitted to the trace (publish {m.publish_ns} ns, hop {m.hop_ns} ns, feed {m.feed_ns} ns, math per op): "
            f"simulated {self.fitted / 1e3:.1f} µs, error {self.fitted_error:+.1%}"
        )


def replayed(trace: Trace, machine: Machine = H200) -> list[Replayed]:
    """The simulator's error on every graph of which the trace holds a whole step, under the schedule that it ran.

    Raises MkvizError for a trace of a device that ``machine`` does not describe, of simulated steps, or without whole steps.
    """
    if trace.kind == "simulated" or machine.name not in str(trace.meta["device"]):
        device = "a simulation" if trace.kind == "simulated" else trace.meta["device"]
        raise MkvizError(f"trace {trace.path} is of {device}", f"a trace of what ran on an {machine.name}, which is simulated")
    by_graph: dict[int, list[StepInfo]] = {}
    for info in trace.infos():
        if info.lost == 0:
            by_graph.setdefault(info.graph, []).append(info)
    found = []
    for graph_id, infos in by_graph.items():
        graph, schedule = trace.graphs[graph_id]
        tasks = [t for info in infos if len(t := _tasks(trace.events(steps=info.step), len(graph)))]
        if not tasks:
            continue
        times = [int(t["publish"].max() - t["ready"].min()) for t in tasks]
        fitted = fit(graph, tasks[-1], machine)
        costs = replace(Costs.of_machine(graph, fitted), math=math_of(graph, tasks[-1], machine))
        found.append(
            Replayed(
                graph.name, len(times), int(np.median(times)), simulate(graph, schedule, machine).makespan,
                simulate(graph, schedule, fitted, costs=costs).makespan, fitted,
            )
        )  # fmt: skip
    if not found:
        raise MkvizError(f"trace {trace.path} holds no whole step", "one in which no record of a step is lost")
    return found


def fit(graph: Graph, tasks: np.ndarray, machine: Machine = H200) -> Machine:
    """``machine`` with the hand-over of a measured step (EVENT records of tasks): medians of end to publish, of the last
    producer's publish to ready, and of ready to begin.  The latter two are of tasks that an SM had in hand by then, the last of
    tasks that waited for no bytes.  A figure that no task tells stays the machine's."""
    last = _last_publish(graph, tasks)[tasks["task"]]
    waited = last > tasks["claim"]
    fed = waited & ((tasks["flags"] & FLAG_BYTES_LAST) == 0)
    raises = np.diff(graph.raise_ptr)[tasks["task"]] > 0

    def median(ns: np.ndarray, default: int) -> int:
        return max(0, round(float(np.median(ns)))) if len(ns) else default

    return replace(
        machine,
        publish_ns=median((tasks["publish"] - tasks["end"])[raises], machine.publish_ns),
        hop_ns=median((tasks["ready"] - last)[waited], machine.hop_ns),
        feed_ns=median((tasks["begin"] - tasks["ready"])[fed], machine.feed_ns),
    )


def math_of(graph: Graph, tasks: np.ndarray, machine: Machine = H200) -> np.ndarray:
    """i64[T]: ns of math of every task: what the fastest tenth of the tasks of its op and size took from begin to end, for they
    found their bytes there; where the step has no such task, what the machine says."""
    math = machine.math_ns(graph)
    kind = np.unique(np.stack([graph.op.astype(np.int64), graph.bytes]), axis=1, return_inverse=True)[1].reshape(-1)
    long = tasks["end"] - tasks["begin"]
    for k in np.unique(kind[tasks["task"]]):
        mine = long[kind[tasks["task"]] == k]
        math[kind == k] = max(1, int(np.percentile(mine, FASTEST, method="inverted_cdf")))
    return math


def _tasks(events: np.ndarray, count: int) -> np.ndarray:
    """Those of a step's records that are tasks that ran; none where the step lacks a record for one of its ``count`` slots."""
    kind = events["flags"] & KIND_MASK
    ran = events[kind == KIND_TASK]
    return ran if len(ran) + (kind == KIND_SKIPPED).sum() == count else ran[:0]


def _last_publish(graph: Graph, tasks: np.ndarray) -> np.ndarray:
    """i64[T]: when the last producer of all that a task waits for had published; -1 where it waits for nothing."""
    publish = np.full(len(graph), -1, np.int64)
    publish[tasks["task"]] = tasks["publish"]
    complete = np.full(len(graph.counters), -1, np.int64)
    np.maximum.at(complete, graph.raise_counter, np.repeat(publish, np.diff(graph.raise_ptr)))
    last = np.full(len(graph), -1, np.int64)
    np.maximum.at(last, np.repeat(np.arange(len(graph)), np.diff(graph.wait_ptr)), complete[graph.wait_counter])
    return last
