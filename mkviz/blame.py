"""Blame path: from a step's end back to its begin, always to what came last; docs/analyses.md has the rules.

Each ns of the makespan is in exactly one segment, and each segment has a name: what the step would have had to do faster there.
Beside it stand two bounds: the critical path (the longest chain of dependencies, had there been an SM for every task) and the
bandwidth floor (the bytes, had the machine read all the time).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from heapq import heappop, heappush
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from mkviz.accounting import refuse_thinned
from mkviz.errors import MkvizError
from mkviz.faults import Faults
from mkviz.record import FLAG_BYTES_LAST
from mkviz.step_records import StepRecords, steps_of

if TYPE_CHECKING:
    import pandas as pd
    from bokeh.plotting import figure

    from mkviz.graph import Graph
    from mkviz.machine import Machine
    from mkviz.protocols import Source
    from mkviz.store import Snapshot
    from mkviz.trace import Trace

CAUSES = ("compute", "publish", "hop", "starved", "overhead", "tail", "unknown")
SEGMENT = np.dtype([("begin", "<i8"), ("end", "<i8"), ("cause", "u1"), ("task", "<i4"), ("sm", "<i4")])
"""ns since the step began; ``cause`` indexes CAUSES; ``task`` and ``sm`` of the record it is charged to, -1: of none."""


@dataclass
class Blame:
    """``segments`` SEGMENT[n], ascending, from 0 to ``makespan`` (ns) without gap or overlap.

    ``critical`` ns: the longest chain of dependencies, each task lasting from begin to publish as recorded (None where records
    are lost).  ``bytes``: what the recorded tasks read; ``floor`` ns: these at ``bandwidth`` (None without a machine or bytes).
    """

    label: str
    step: int
    makespan: int
    graph: Graph
    segments: np.ndarray
    critical: int | None
    bytes: int
    floor: int | None
    bandwidth: float | None
    faults: dict[str, int]
    notes: list[str] = field(default_factory=list)

    @property
    def totals(self) -> dict[str, int]:
        """ns by cause."""
        ns = self.segments["end"] - self.segments["begin"]
        return {cause: int(ns[self.segments["cause"] == i].sum()) for i, cause in enumerate(CAUSES)}

    def frame(self) -> pd.DataFrame:
        """The segments: begin, end (ns since the step began), ns, cause, op, layer, task, sm; "" and -1 for none."""
        import pandas as pd

        s, graph = self.segments, self.graph
        task = s["task"]
        return pd.DataFrame({
            "begin": s["begin"], "end": s["end"], "ns": s["end"] - s["begin"],
            "cause": np.array(CAUSES, object)[s["cause"]],
            "op": [graph.ops[graph.op[t]] if t >= 0 else "" for t in task.tolist()],
            "layer": [int(graph.layer[t]) if t >= 0 else -1 for t in task.tolist()],
            "task": task, "sm": s["sm"],
        })  # fmt: skip

    def largest(self) -> list[tuple[str, str, int, int]]:
        """(cause, op, segments, ns) of each cause and op, most first; the ns add up to the makespan."""
        found: dict[tuple[str, str], list[int]] = {}
        for begin, end, cause, task, _ in self.segments.tolist():
            op = self.graph.ops[self.graph.op[task]] if task >= 0 else ""
            found.setdefault((CAUSES[cause], op), []).append(end - begin)
        return sorted(((*key, len(ns), sum(ns)) for key, ns in found.items()), key=lambda row: (-row[3], *row[:2]))

    def waterfall(self) -> pd.DataFrame:
        """The same as a dataframe, with their share of the makespan."""
        import pandas as pd

        out = pd.DataFrame(self.largest(), columns=["cause", "op", "segments", "ns"])
        return out.assign(share=out["ns"] / self.makespan)

    def plot(self, dark: bool = False) -> figure:
        """The waterfall, largest first, beside the longest chain of dependencies and the bandwidth floor."""
        from mkviz import plots

        rows = [(f"{cause} {op}".strip(), cause, ns) for cause, op, _, ns in self.largest()]
        marks = {"bandwidth floor": self.floor, "longest chain": self.critical}
        head = plots.Head(f"what held step {self.step}", self.label, self.notes)
        return plots.waterfall(rows, "step", head, "time on the blame path", dark,
                               marks={name: ns for name, ns in marks.items() if ns is not None})  # fmt: skip

    def to_json(self) -> dict:
        """Times in ns, bandwidth in bytes/s."""
        names = ("step", "makespan", "critical", "floor", "bytes", "bandwidth", "faults", "notes")
        rows = [dict(zip(("cause", "op", "segments", "ns"), row, strict=True)) for row in self.largest()]
        return {name: getattr(self, name) for name in names} | {"causes": self.totals, "waterfall": rows}


def blame(source: Snapshot | Source | Trace | str | Path, step: int, machine: Machine | None = None) -> Blame:
    """The blame path of a step (its number); ``machine`` gives the bandwidth of the floor, by default none.

    Raises MkvizError for a step that is not there and for a trace that was cut to some SMs, ops or times.
    """
    if isinstance(source, str | Path):
        from mkviz.trace import Trace

        source = Trace.open(source)
    refuse_thinned(source)
    for records in steps_of(source, step):
        return blame_of(records, machine, getattr(source, "label", ""))
    raise MkvizError(f"step {step} is not there", "a step that the source holds")


def blame_of(step: StepRecords, machine: Machine | None = None, label: str = "", chain: bool = True) -> Blame:
    """The same of one step's records; without ``chain`` ``critical``, which takes longest to find, is None."""
    path, notes = _Path(step), []
    if step.lost:
        path.cut("unknown", 0)
        notes.append(f"{step.lost} records are lost: what held the step cannot be told")
    else:
        path.walk()
    if not len(step.graph.wait_counter):
        notes.append("no dependencies: the path follows lanes only, and what waited is unknown or overhead")
    size = int(step.bytes[step.events["task"][step.lanes.sound]].sum())
    if not size:
        notes.append("no bytes: there is no bandwidth floor")
    floor = -(-size * 10**9 // int(machine.bandwidth)) if machine and size else None
    segments, faults = np.array(path.segments[::-1], SEGMENT), Faults()
    faults.add(step)
    critical = critical_path(step) if chain and not step.lost else None
    return Blame(label, step.step, step.makespan, step.graph, segments, critical, size, floor,
                 machine.bandwidth if machine else None, faults.counts, notes)  # fmt: skip


class _Path:
    """Cuts the step from its end backwards; ``cursor``: where the part begins that has its segments."""

    def __init__(self, step: StepRecords):
        self.step, self.at, self.cursor = step, step.lanes, step.makespan
        self.segments: list[tuple[int, int, int, int, int]] = []

    def cut(self, cause: str, start: int, row: int = -1) -> None:
        """Charge what lies between ``start`` and the cursor; a start past the cursor charges nothing."""
        if start < self.cursor:
            task, sm = (int(self.step.events[name][row]) if row >= 0 else -1 for name in ("task", "sm"))
            self.segments.append((start, self.cursor, CAUSES.index(cause), task, sm))
            self.cursor = start

    def walk(self) -> None:
        at, published, sound = self.at, self.step.published, np.flatnonzero(self.at.sound)
        row = int(sound[np.argmax(published[sound])]) if len(sound) else -1
        if row >= 0:
            self.cut("tail", int(published[row]))
        seen = set()
        while row >= 0 and row not in seen:
            seen.add(row)
            self.cut("publish", int(at.end[row]), row)
            self.cut("compute", int(at.begin[row]), row)
            row = self._before(row)
        self.cut("unknown", 0)  # a path that ran in a circle, or a lane whose records are in doubt

    def _before(self, row: int) -> int:
        """Charge the time before the begin of a record and return the record that it waited for, -1 at the step's begin."""
        at = self.at
        free, ready, claim = int(at.free[row]), int(at.ready[row]), int(at.claim[row])
        if at.doubt[row]:
            self.cut("unknown", free)
            return int(at.holder[row])
        late = "starved" if self.step.events["flags"][row] & FLAG_BYTES_LAST else "overhead"
        self.cut(late, max(free, ready), row)
        if ready <= free:  # the lane came last
            return int(at.holder[row])
        producer = self._last_producer(row)
        if producer >= 0 and not (claim > free and claim >= self.step.published[producer]):
            self.cut("hop", int(self.step.published[producer]), row)
            return producer
        if producer == UNRECORDED:
            self.cut("unknown", free, row)
        else:  # nothing to wait for, or taken up after all had come
            if producer >= 0:
                self.cut("hop", claim, row)
            self.cut("overhead", free, row)
        return int(at.holder[row])

    def _last_producer(self, row: int) -> int:
        """The record whose publish met the task's last wait; NO_PRODUCER for a task without waits, UNRECORDED for one of whose
        producers there is no record."""
        ptr, task = self.step.graph.wait_ptr, int(self.step.events["task"][row])
        met = self.step.met_by[ptr[task] : ptr[task + 1]]
        if not len(met):
            return NO_PRODUCER
        met = met[met >= 0]
        return int(met[np.argmax(self.step.published[met])]) if len(met) else UNRECORDED


NO_PRODUCER, UNRECORDED = -1, -2


def critical_path(step: StepRecords) -> int:
    """ns of the longest chain of dependencies with an SM for every task: each begins when its counters have the arrivals it
    needs and lasts from begin to publish as recorded (no time where it was not), hand-overs take none."""
    graph, at = step.graph, step.lanes
    took = np.zeros(len(graph), np.int64)
    took[step.events["task"][at.sound]] = (step.published - at.begin)[at.sound]
    waiters: dict[int, list[tuple[int, int]]] = {}
    for task in np.flatnonzero(np.diff(graph.wait_ptr)).tolist():
        for counter, need in graph.waits(task):
            waiters.setdefault(counter, []).append((need, task))
    for of_counter in waiters.values():
        of_counter.sort(reverse=True)  # the smallest need last, to be popped first
    unmet, arrived = np.diff(graph.wait_ptr), [0] * len(graph.counters)
    ends = [(int(took[task]), task) for task in np.flatnonzero(unmet == 0).tolist()]
    ends.sort()
    longest = 0
    while ends:
        longest, task = heappop(ends)
        for counter in graph.raises(task):
            arrived[counter] += 1
            held = waiters.get(counter, [])
            while held and held[-1][0] <= arrived[counter]:
                freed = held.pop()[1]
                unmet[freed] -= 1
                if unmet[freed] == 0:
                    heappush(ends, (longest + int(took[freed]), freed))
    return longest
