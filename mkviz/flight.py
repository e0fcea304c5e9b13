"""FlightRecorder: a sink that keeps the times of all steps and, whole, the slowest ones, in bounded memory."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from mkviz.errors import MkvizError
from mkviz.many_steps import TIMES, ManySteps, Shape, of_times
from mkviz.protocols import ClockSink
from mkviz.record import KIND_MASK, KIND_TASK
from mkviz.step_records import MOST_NS, shape_of
from mkviz.store import LiveStore, step_bounds

if TYPE_CHECKING:
    from mkviz.clocks import Clocks
    from mkviz.graph import Graph
    from mkviz.protocols import RequestInfo, Sink, StepInfo, TokenInfo
    from mkviz.schedule import Schedule
    from mkviz.trace import Trace

SLOWEST = ", its slowest steps"  # on the label of what is kept: percentiles of these are not those of all
RECENT = 64  # steps of a group whose median says which step is a typical one
BYTES = 256 << 20
KEPT_TIMES = 1 << 20


@dataclass(order=True)
class _Kept:
    """A step as it came; ordered by its time."""

    ns: int
    number: int
    info: StepInfo = field(compare=False)
    events: np.ndarray = field(compare=False)

    @property
    def nbytes(self) -> int:
        return self.events.nbytes + 64 * (len(self.info.rows) + len(self.info.routes))


class _Group:
    """Steps that can be compared: the slowest (a heap, the mildest first), one near the recent median, recent times."""

    def __init__(self):
        self.worst: list[_Kept] = []
        self.typical: _Kept | None = None
        self.recent = np.zeros(RECENT, np.int64)
        self.seen = 0

    @property
    def kept(self) -> list[_Kept]:
        typical = [] if self.typical is None or self.typical in self.worst else [self.typical]
        return self.worst + typical

    @property
    def nbytes(self) -> int:
        return sum(step.nbytes for step in self.kept)


class FlightRecorder:
    """A sink (:class:`mkviz.protocols.ClockSink`) for recordings that never end: ``generator.add_sink(FlightRecorder())``.

    Of every group of steps (same graph, rows, rows of prefill) it keeps the ``worst`` slowest whole, and one near the median to
    compare them with, together at most ``max_bytes``: then the group that holds most gives up its mildest (``dropped`` counts).
    Of all steps it keeps the times, those of the newest ``times`` steps (``forgotten`` counts the older ones).  Steps that lost
    records are counted and never kept.  May be told and asked from any thread.
    """

    def __init__(self, label: str = "measured", kind: str = "measured", *, device: str = "", worst: int = 8,
                 max_bytes: int = BYTES, times: int = KEPT_TIMES):  # fmt: skip
        for name, value in (("worst", worst), ("max_bytes", max_bytes), ("times", times)):
            if value < 1:
                raise MkvizError(f"flight recorder: {name} {value}", "1 or more")
        self.label, self.kind, self.device, self.worst, self.max_bytes = label, kind, device, worst, max_bytes
        self.dropped = self.forgotten = self.lost_records = self.lost_steps = 0
        self._lock = threading.Lock()
        self._graphs: dict[int, tuple[Graph, Schedule]] = {}
        self._groups: dict[Shape, _Group] = {}
        self._nbytes = 0
        self._times, self._count, self._most = np.zeros(1024, TIMES), 0, times
        self._clocks: Clocks | None = None

    # the sink

    def clocks(self, clocks: Clocks) -> None:
        self._clocks = clocks

    def graph(self, graph_id: int, graph: Graph, schedule: Schedule) -> None:
        with self._lock:
            self._graphs[graph_id] = graph, schedule

    def step(self, info: StepInfo, events: np.ndarray) -> None:
        if info.graph not in self._graphs:
            raise MkvizError(f"step {info.step}: graph {info.graph} is unknown", "send the graph before its steps")
        graph, schedule = self._graphs[info.graph]
        is_task = events["flags"] & KIND_MASK == KIND_TASK
        is_good = is_task & (events["sm"] < schedule.sms) & (events["task"] < len(graph))
        begin, end = step_bounds(info, events if is_good.all() else events[is_good])  # mostly all are, and nothing is copied
        lost, shape = info.lost + int(is_task.sum() - is_good.sum()), shape_of(info)
        with self._lock:
            ns = min(end - begin, MOST_NS)  # what is longer cannot be; it is kept, and analyses refuse it by its number
            self._remember((info.step, *shape, begin, ns, lost))
            if not lost:
                self._keep(self._groups.setdefault(shape, _Group()), ns, replace(info, begin=begin, end=end), events)

    def token(self, info: TokenInfo) -> None: ...

    def request(self, info: RequestInfo) -> None: ...

    def lost(self, records: int, steps: int = 0) -> None:
        with self._lock:
            self.lost_records += records
            self.lost_steps += steps

    def close(self, complete: bool = True) -> None: ...

    # what it holds

    @property
    def nbytes(self) -> int:
        """Bytes of the steps that are kept."""
        return self._nbytes

    def many_steps(self) -> ManySteps:
        """The times of all steps, with the causes of those that are kept."""
        with self._lock:
            store = self._store()
            times, graphs = self._times[: self._count].copy(), {i: graph.name for i, (graph, _) in self._graphs.items()}
            kept = {step.number for group in self._groups.values() for step in group.kept}
            named = {shape: group.typical.number for shape, group in self._groups.items() if group.typical}
        held = set(times["step"].tolist())  # a kept step may be older than the times that are
        named = {shape: number for shape, number in named.items() if number in held}
        found = of_times(self.label, times, graphs, store, kept, named)
        if self.forgotten:
            found.notes.append(f"the times of {self.forgotten} older steps are forgotten")
        found.notes.append(f"{len(kept)} steps are kept whole")
        return found

    def store(self) -> LiveStore:
        """The kept steps, as a closed source that any analysis or view takes."""
        with self._lock:
            return self._store()

    def write(self, path: str | Path, overwrite: bool = False) -> Trace:
        """Write the kept steps as a trace and open it.  ``meta["flight"]`` says of how many steps they are, and how long those
        of each group took (ns)."""
        from mkviz.trace import Trace, TraceWriter

        groups = self.many_steps().groups()[["group", "steps", "min", "p50", "p90", "p99", "max", "worst"]]
        about = {"flight": {"steps": self._count + self.forgotten, "groups": groups.to_dict("records")}}
        head = {"kind": self.kind, "label": self.label + SLOWEST, "device": self.device, "about": about}
        with TraceWriter(path, overwrite=overwrite, **head) as writer:
            self.replay(writer)
        if writer.error:
            raise MkvizError(writer.error, "free space, or another place")
        return Trace.open(path)

    def replay(self, sink: Sink) -> None:
        """Tell a sink the kept steps and their clocks; it is not closed."""
        with self._lock:
            if self._clocks is not None and isinstance(sink, ClockSink):
                sink.clocks(self._clocks)
            self._tell(sink)

    def _store(self) -> LiveStore:
        store = LiveStore(self.label + SLOWEST, self.kind, max(4 * self._nbytes, 64 << 20))
        self._tell(store)
        store.close()
        return store

    def _tell(self, sink) -> None:
        kept = sorted((step for group in self._groups.values() for step in group.kept), key=lambda step: step.number)
        for graph_id in dict.fromkeys(step.info.graph for step in kept):
            sink.graph(graph_id, *self._graphs[graph_id])
        for step in kept:
            sink.step(step.info, step.events)

    def _remember(self, row: tuple) -> None:
        if self._count == self._most:  # the older half makes room at once, so that this costs little
            gone = max(1, self._most // 2)
            self.forgotten += gone
            self._count -= gone
            self._times[: self._count] = self._times[gone : gone + self._count].copy()
        if self._count == len(self._times):
            self._times = np.append(self._times, np.zeros(min(len(self._times), self._most - self._count), TIMES))
        self._times[self._count] = row
        self._count += 1

    def _keep(self, group: _Group, ns: int, info: StepInfo, events: np.ndarray) -> None:
        group.recent[group.seen % RECENT] = ns
        group.seen += 1
        median = int(np.median(group.recent[: min(group.seen, RECENT)]))
        typical = group.typical is None or abs(ns - median) < abs(group.typical.ns - median)
        slow = len(group.worst) < self.worst or ns > group.worst[0].ns
        if not (typical or slow):
            return
        step, before = _Kept(ns, info.step, info, events.copy()), group.nbytes
        if typical:
            group.typical = step
        if slow:
            heappush(group.worst, step)
            if len(group.worst) > self.worst:
                heappop(group.worst)
        self._nbytes += group.nbytes - before
        while self._nbytes > self.max_bytes:
            largest = max(self._groups.values(), key=lambda g: g.nbytes)
            before = largest.nbytes
            if largest.worst:
                heappop(largest.worst)
            else:
                largest.typical = None
            self._nbytes += largest.nbytes - before
            self.dropped += 1
