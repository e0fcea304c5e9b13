"""BlameSteps: what held many steps: their blame paths added up by cause and op, and of each its bounds."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from mkviz.accounting import is_large, refuse_thinned
from mkviz.blame import CAUSES, blame_of
from mkviz.errors import MkvizError
from mkviz.faults import Faults
from mkviz.order import topological_order
from mkviz.step_records import MOST_NS, steps_of
from mkviz.sweep import Lanes, Sweep, Swept, joined_faults

if TYPE_CHECKING:
    import pandas as pd
    from bokeh.plotting import figure

    from mkviz.graph import Graph
    from mkviz.machine import Machine
    from mkviz.protocols import Source
    from mkviz.store import Snapshot
    from mkviz.trace import Trace

COMPILED = 1 << 17  # records of a trace: beyond, loading what is compiled for them pays
HELD = np.dtype([(name, "<i8") for name in ("step", "makespan", "critical", "bytes", *CAUSES)])
"""A step: what ``Blame`` has of it; ``critical`` -1: not known; ns of its path by cause, together its makespan."""


@dataclass
class BlameSteps:
    """``held`` HELD[n], ascending.  ``path``: (cause, op, segments, ns) of all their paths, most first; the ns add up to all
    makespans.  ``bandwidth`` bytes/s, for the floors, None without a machine."""

    label: str
    held: np.ndarray
    path: list[tuple[str, str, int, int]]
    bandwidth: float | None
    faults: dict[str, int]
    notes: list[str] = field(default_factory=list)

    @property
    def totals(self) -> dict[str, int]:
        """ns by cause."""
        return {cause: int(self.held[cause].sum()) for cause in CAUSES}

    def frame(self) -> pd.DataFrame:
        """A row for each step: HELD, and its ``floor`` in ns; NA where one is not known."""
        import pandas as pd

        out = pd.DataFrame({name: self.held[name] for name in HELD.names})
        out["critical"] = out["critical"].astype("Int64").mask(out["critical"] < 0)
        size, known = [int(n) for n in self.held["bytes"]], self.bandwidth is not None
        floor = [-(-n * 10**9 // int(self.bandwidth)) if known and n else None for n in size]
        out.insert(3, "floor", pd.array(floor, "Int64"))
        return out

    def waterfall(self) -> pd.DataFrame:
        """cause, op, segments, ns and their share of all makespans, most first."""
        import pandas as pd

        out = pd.DataFrame(self.path, columns=["cause", "op", "segments", "ns"])
        return out.assign(share=out["ns"] / max(int(self.held["makespan"].sum()), 1))

    def plot(self, dark: bool = False) -> figure:
        """The waterfall, largest first."""
        from mkviz import plots

        rows = [(f"{cause} {op}".strip(), cause, ns) for cause, op, _, ns in self.path]
        head = plots.Head(f"what held {len(self.held):,} steps", self.label, self.notes)
        return plots.waterfall(rows, "all steps", head, "time on the blame paths", dark)


def blame_steps(source: Snapshot | Source | Trace | str | Path, steps=None, machine: Machine | None = None) -> BlameSteps:
    """The blame paths of all steps of a source, or of some (``steps``: one or several); ``machine`` gives the bandwidth of the
    floors, by default none.

    Raises MkvizError for a step that is not there, for a trace that was cut to some SMs, ops or times, and for steps that
    take 2^63 ns together.
    """
    if isinstance(source, str | Path):
        from mkviz.trace import Trace

        source = Trace.open(source)
    refuse_thinned(source)
    held, path, waits, faults = (_swept if is_large(source, steps, COMPILED) else _one_by_one)(source, steps)
    if (together := sum(held["makespan"].tolist())) > MOST_NS:
        raise MkvizError(f"{len(held)} steps of {together} ns", "fewer steps, of 2^63 ns together")
    notes = faults.notes(lost="unknown as a whole")
    if faults.steps and not waits:
        notes.append("no dependencies: the path follows lanes only, and what waited is unknown or overhead")
    if faults.steps and not held["bytes"].any():
        notes.append("no bytes: there is no bandwidth floor")
    rows = sorted(((*key, *both) for key, both in path.items()), key=lambda row: (-row[3], *row[:2]))
    return BlameSteps(getattr(source, "label", ""), held, rows, machine.bandwidth if machine else None, faults.counts, notes)


Found = tuple[np.ndarray, dict[tuple[str, str], tuple[int, int]], bool, Faults]  # held, path, whether any step has waits


def _one_by_one(source, steps) -> Found:
    held, path, waits, faults = [], {}, False, Faults()
    for step in steps_of(source, steps):
        faults.add(step)
        found = blame_of(step)
        critical = -1 if found.critical is None else found.critical
        held.append((step.step, step.makespan, critical, found.bytes, *found.totals.values()))
        for cause, op, count, ns in found.largest():
            before = path.get((cause, op), (0, 0))
            path[cause, op] = before[0] + count, before[1] + ns
        waits |= len(step.graph.wait_counter) > 0
    return np.array(held, HELD), path, waits, faults


def _swept(trace: Trace, steps) -> Found:
    sweep = Sweep(trace, steps)
    ops, plans = sweep.ops(), {i: _Plan(graph, sweep.ops()) for i, (graph, _) in sweep.graphs.items()}
    workers = sweep.run(lambda: _Adder(sweep, plans, len(ops)), ("claim", "ready", "publish"))
    sums, names = sum(worker.sums for worker in workers), [*ops, ""]
    path = {(CAUSES[cause], names[op]): (int(sums[cause, op, 0]), int(sums[cause, op, 1]))
            for cause, op in np.argwhere(sums[..., 0])}  # fmt: skip
    held = np.array([row for worker in workers for row in worker.held], HELD)
    waits = any(len(sweep.graph_of(i)[0].wait_counter) for i in np.unique(sweep.table["graph"]).tolist())
    return held, path, waits, joined_faults(worker.lanes for worker in workers)


class _Plan:
    """What is the same in all steps of a graph."""

    def __init__(self, graph: Graph, ops: dict[str, int]):
        self.op_of = np.array([ops.get(op, -1) for op in graph.ops], np.int64)[graph.op]
        self.waits = [graph.wait_ptr.astype(np.int64), graph.wait_counter.astype(np.int64), graph.wait_need.astype(np.int64)]
        self.raises = graph.raise_ptr.astype(np.int64), graph.raise_counter.astype(np.int64)
        ptr, producers = graph.producers
        self.producers = ptr, producers.astype(np.int64)
        _, counter, need = self.waits
        self.order = topological_order(graph).astype(np.int64) if (need == graph.arrivals[counter]).all() else None
        by = np.lexsort((need, counter))
        waiter_ptr = np.searchsorted(counter[by], np.arange(len(graph.counters) + 1))
        task = np.repeat(np.arange(len(graph)), np.diff(graph.wait_ptr))
        self.waiters = np.diff(self.waits[0]), waiter_ptr, task[by], need[by]


class _Adder:
    """``held``: rows of HELD; ``sums`` i64[causes, ops + 1, 2]: as of ``add_path``."""

    def __init__(self, sweep: Sweep, plans: dict[int, _Plan], ops: int):
        self.lanes, self._sweep, self._plans, self.held = Lanes(sweep.graphs), sweep, plans, []
        self.sums = np.zeros((len(CAUSES), ops + 1, 2), np.int64)
        self._work = {i: np.empty((2, len(graph)), np.int64) for i, (graph, _) in sweep.graphs.items()}
        self._latest = {i: np.empty(len(graph.counters), np.int64) for i, (graph, _) in sweep.graphs.items()}

    def add(self, step: Swept) -> None:
        from mkviz.blame_kernels import add_path, chain_by_time, chain_in_order, durations
        from mkviz.sweep_kernels import TASK

        self.lanes.take(step)
        plan, times, makespan = self._plans[step.graph], self.lanes.times, step.until - step.since
        row_of, took = self._work[step.graph]
        sums, critical = np.zeros_like(self.sums), -1
        if step.lost:
            sums[CAUSES.index("unknown"), -1] = makespan > 0, makespan
        else:
            add_path(times, self.lanes.ptr, step.column("flags"), step.column("claim"), step.since, step.until, *plan.waits,
                     *plan.producers, plan.op_of, row_of, sums)  # fmt: skip
            durations(times, took)
            if plan.order is not None:
                critical = chain_in_order(plan.order, took, *plan.waits[:2], *plan.raises, self._latest[step.graph])
            else:
                critical = chain_by_time(took, *plan.waiters, *plan.raises)
        self.sums += sums
        size = int(self._sweep.bytes_of(step)[times[TASK]].sum())
        self.held.append((step.number, makespan, critical, size, *sums[..., 1].sum(axis=1).tolist()))
