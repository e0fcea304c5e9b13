"""LiveStore: the steps that views look at, in memory, bounded; Snapshot: what a view reads of it at one instant."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from mkviz.errors import MkvizError
from mkviz.protocols import RequestInfo, StepInfo, TokenInfo
from mkviz.record import EVENT, KIND_MASK, KIND_PHASES, KIND_SKIPPED, KIND_TASK

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from mkviz.graph import Graph
    from mkviz.protocols import Source
    from mkviz.schedule import Schedule
    from mkviz.trace import Trace

COLUMNS = {
    "begin": np.int64, "end": np.int64, "ready": np.int64, "claim": np.int64, "publish": np.int64,
    "task": np.uint32, "last_wait": np.uint16, "op": np.uint8, "fill": np.uint8, "flags": np.uint8,
    "last_chunk": np.uint32,
}  # fmt: skip
RECORD_BYTES = sum(np.dtype(t).itemsize for t in COLUMNS.values())
STEP = np.dtype([("step", "<i8"), ("graph", "<i8"), ("begin", "<i8"), ("end", "<i8"), ("lost", "<i8")])
MAX_OPS = 255  # op ids are u8 and 255 means "none" in image frames
DEFAULT_BYTES = 512 << 20
KEPT_TOKENS, KEPT_REQUESTS = 65536, 1024
NO_CHUNK = 0xFFFFFFFF  # last_chunk of a task whose phases were not recorded (level 1)


@dataclass(frozen=True, eq=False)
class Snapshot:
    """The kept steps at one version.  Never changes; costs no copy of records.

    Records are columns: ``begin end ready claim publish`` i64 ns on the trace's clock; ``task`` u32, ``last_wait`` u16,
    ``op`` u8 (index into ``ops``), ``fill`` u8, ``flags`` u8, ``last_chunk`` u32 (ns from begin until math saw the task's last
    bytes, from its level-2 record; NO_CHUNK without one).  Step c of the C kept steps owns, for lane l, the rows
    ``lane_ptr[c, l]:lane_ptr[c, l+1]``, ascending by begin.  ``steps`` is STEP[C]; ``infos`` the C ``StepInfo``.
    ``requests``: each one's state now, ``changes``: all its states, first to last.
    Views show times since ``origin`` (ns), which stays the same for the life of a source.  ``cut``: see :func:`cut_by`.
    """

    version: int
    lanes: int
    origin: int
    ops: tuple[str, ...]
    graphs: dict[int, tuple[Graph, Schedule]]
    begin: np.ndarray
    end: np.ndarray
    ready: np.ndarray
    claim: np.ndarray
    publish: np.ndarray
    task: np.ndarray
    last_wait: np.ndarray
    op: np.ndarray
    fill: np.ndarray
    flags: np.ndarray
    last_chunk: np.ndarray
    lane_ptr: np.ndarray
    steps: np.ndarray
    infos: list[StepInfo]
    tokens: list[TokenInfo]
    requests: dict[int, RequestInfo]
    changes: dict[int, tuple[RequestInfo, ...]] = field(default_factory=dict)
    lost_records: int = 0
    lost_steps: int = 0
    dropped_records: int = 0
    dropped_steps: int = 0
    skipped: int = 0
    closed: bool = False
    complete: bool = True
    cut: str = ""

    def __len__(self) -> int:
        """Number of records that are kept."""
        return int(self.lane_ptr[-1, -1] - self.lane_ptr[0, 0]) if len(self.steps) else 0

    @property
    def extent(self) -> tuple[int, int]:
        """First begin and last end in ns since origin; (0, 0) without steps."""
        if not len(self.steps):
            return 0, 0
        return int(self.steps["begin"].min()) - self.origin, int(self.steps["end"].max()) - self.origin

    def step_at(self, time: float) -> int:
        """Index of the step that runs at ``time`` (ns since origin), -1 for none; of overlapping ones the last."""
        inside = (self.steps["begin"] - self.origin <= time) & (time <= self.steps["end"] - self.origin)
        hits = np.flatnonzero(inside)
        return int(hits[-1]) if len(hits) else -1

    def index_of(self, step: int) -> int:
        """Row of ``steps`` that holds step number ``step``, -1 when it is not kept."""
        hits = np.flatnonzero(self.steps["step"] == step)
        return int(hits[-1]) if len(hits) else -1

    def steps_in(self, x0: float, x1: float) -> np.ndarray:
        """Rows of ``steps`` of those that touch [x0, x1), ns since the origin."""
        begin, end = (self.steps[k] - self.origin for k in ("begin", "end"))
        return np.flatnonzero((begin < x1) & (end > x0))

    def graph_of(self, index: int) -> Graph:
        return self.graphs[int(self.steps["graph"][index])][0]


class LiveStore:
    """A Sink that keeps whole steps in memory and the Source that shows them.

    Holds at most ``max_bytes`` (a quarter is set aside for step tables); the oldest steps make room and are counted
    (``dropped_steps``, ``dropped_records``), as are records that were lost before they came here.  One thread or several may
    write; snapshots may be taken from any thread and never wait for more than one append.
    """

    def __init__(self, label: str = "measured (cpu)", kind: str = "measured", max_bytes: int = DEFAULT_BYTES, cut: str = ""):
        if max_bytes < 1 << 16:
            raise MkvizError(f"store: max_bytes {max_bytes}", "at least 65536")
        self.label, self.kind, self.max_bytes, self.cut = label, kind, max_bytes, cut
        self.words = ""  # why nothing more comes, where that is not its end
        self._lock = threading.Lock()
        self._snapshot: Snapshot | None = None
        self._version = 0
        self._graphs: dict[int, tuple[Graph, Schedule]] = {}
        self._ops: list[str] = []
        self._op_map: dict[int, np.ndarray] = {}
        self._lanes = 0
        self._origin: int | None = None
        self._tokens: deque[TokenInfo] = deque(maxlen=KEPT_TOKENS)
        self._changes: dict[int, tuple[RequestInfo, ...]] = {}
        self._lost_records = self._lost_steps = self._dropped_records = self._dropped_steps = self._skipped = 0
        self._closed, self._complete = False, True
        self._columns = {name: np.empty(0, t) for name, t in COLUMNS.items()}
        self._steps, self._lane_ptr = np.empty(0, STEP), np.empty((0, 1), np.int64)
        self._infos: deque[StepInfo] = deque()
        self._first = self._last = 0  # rows of _steps in use
        self._fill = 0  # rows of the columns written

    # Source

    @property
    def version(self) -> int:
        return self._version

    @property
    def lanes(self) -> int:
        return self._lanes

    @property
    def graphs(self) -> dict[int, tuple[Graph, Schedule]]:
        return dict(self._graphs)

    def snapshot(self) -> Snapshot:
        with self._lock:
            if self._snapshot is None or self._snapshot.version != self._version:
                steps = slice(self._first, self._last)
                self._snapshot = Snapshot(
                    self._version, self._lanes, self._origin or 0, tuple(self._ops), dict(self._graphs),
                    **{name: column[: self._fill] for name, column in self._columns.items()},
                    lane_ptr=self._lane_ptr[steps], steps=self._steps[steps], infos=list(self._infos),
                    tokens=list(self._tokens), changes=dict(self._changes),
                    requests={number: changes[-1] for number, changes in self._changes.items()},
                    lost_records=self._lost_records, lost_steps=self._lost_steps,
                    dropped_records=self._dropped_records, dropped_steps=self._dropped_steps, skipped=self._skipped,
                    closed=self._closed, complete=self._complete, cut=self.cut,
                )  # fmt: skip
            return self._snapshot

    @property
    def nbytes(self) -> int:
        """Bytes allocated for records and step tables."""
        return sum(c.nbytes for c in self._columns.values()) + self._steps.nbytes + self._lane_ptr.nbytes

    # Sink

    def graph(self, graph_id: int, graph: Graph, schedule: Schedule) -> None:
        with self._lock:
            new = [op for op in graph.ops if op not in self._ops]
            if len(self._ops) + len(new) > MAX_OPS:
                raise MkvizError(f"graph {graph.name}: {len(self._ops) + len(new)} ops in one source", f"at most {MAX_OPS}")
            self._ops += new
            self._op_map[graph_id] = np.array([self._ops.index(op) for op in graph.ops], np.uint8)[graph.op]
            self._graphs[graph_id] = (graph, schedule)
            self._widen(schedule.sms)
            self._version += 1

    def step(self, info: StepInfo, events: np.ndarray) -> None:
        """Append one step.  Records that are no tasks are skipped, but phases (level 2) join their task's; those that name an
        SM or task out of range count as lost."""
        if info.graph not in self._graphs:
            raise MkvizError(f"step {info.step}: graph {info.graph} is unknown", "send the graph before its steps")
        op_of = self._op_map[info.graph]
        kind = events["flags"] & KIND_MASK
        tasks = events[kind == KIND_TASK]
        good = tasks[(tasks["sm"] < self._graphs[info.graph][1].sms) & (tasks["task"] < len(op_of))]
        bad = len(tasks) - len(good)
        sm, at = good["sm"], good["begin"]
        if not ((sm[1:] > sm[:-1]) | (sm[1:] == sm[:-1]) & (at[1:] >= at[:-1])).all():  # as traces are, sorted long ago
            good = good[np.lexsort((at, sm))]
        derived = {"op": op_of[good["task"]], "last_chunk": last_chunks(events[kind == KIND_PHASES], len(op_of))[good["task"]]}
        with self._lock:
            self._lost_records += bad  # ``info.lost`` of a step is told by ``lost`` too, as part of the total
            self._skipped += int((kind == KIND_SKIPPED).sum())
            self._version += 1
            if not self._make_room(len(good)):
                self._dropped_steps += 1
                self._dropped_records += len(good)
                return
            begin, end = step_bounds(info, good)
            if self._origin is None:
                self._origin = begin
            rows = slice(self._fill, self._fill + len(good))
            for name, column in self._columns.items():
                column[rows] = derived[name] if name in derived else good[name]
            counts = np.bincount(good["sm"], minlength=self._lanes)
            self._lane_ptr[self._last, 0] = self._fill
            np.cumsum(counts, out=self._lane_ptr[self._last, 1:])
            self._lane_ptr[self._last, 1:] += self._fill
            self._steps[self._last] = (info.step, info.graph, begin, end, info.lost + bad)
            self._infos.append(info)
            self._fill += len(good)
            self._last += 1

    def token(self, info: TokenInfo) -> None:
        with self._lock:
            self._tokens.append(info)
            self._version += 1

    def request(self, info: RequestInfo) -> None:
        with self._lock:
            self._changes[info.request] = (*self._changes.get(info.request, ()), info)
            while len(self._changes) > KEPT_REQUESTS:
                self._changes.pop(next(iter(self._changes)))
            self._version += 1

    def lost(self, records: int, steps: int = 0) -> None:
        with self._lock:
            self._lost_records += records
            self._lost_steps += steps
            self._version += 1

    def failed(self, why: str) -> None:
        """Nothing more can come, though what is recorded goes on; the steps so far stay."""
        with self._lock:
            self.words = f"Nothing new is shown: records can be read no more ({why})"
            self._version += 1

    def close(self, complete: bool = True) -> None:
        with self._lock:
            self._closed, self._complete = True, complete
            self._version += 1

    def left_out(self, records: int, steps: int, skipped: int) -> None:
        """Count what would have been dropped again, and so was not even read."""
        with self._lock:
            self._dropped_records += records
            self._dropped_steps += steps
            self._skipped += skipped
            self._version += 1

    # room

    def _widen(self, sms: int) -> None:
        if sms > self._lanes:
            wide = np.empty((len(self._lane_ptr), sms + 1), np.int64)
            wide[:, : self._lanes + 1] = self._lane_ptr
            wide[:, self._lanes + 1 :] = self._lane_ptr[:, -1:]
            self._lane_ptr, self._lanes = wide, sms

    def _make_room(self, records: int) -> bool:
        """Drop the oldest steps and move to fresh arrays as needed so that one more step fits; False when it never can.

        Old arrays are left to the snapshots that still look at them.  Arrays are a quarter larger than what may be kept, so
        that at the limit only every fourth part of the store's size in new records costs a copy.
        """
        most = int(self.max_bytes * 0.75) // RECORD_BYTES
        most_steps = int(self.max_bytes * 0.25) // (STEP.itemsize + 8 * (self._lanes + 1))
        keep, keep_steps = most * 4 // 5, most_steps * 4 // 5
        if records > keep:
            return False
        while self._last > self._first and (self._live() + records > keep or self._last - self._first >= keep_steps):
            first = self._lane_ptr[self._first]
            self._dropped_steps += 1
            self._dropped_records += int(first[-1] - first[0])
            self._infos.popleft()
            self._first += 1
        if self._fill + records > len(self._columns["task"]):
            size, start = min(max(2 * (self._live() + records), 16384), most), self._fill - self._live()
            for name, column in self._columns.items():
                fresh = np.empty(size, column.dtype)
                fresh[: self._fill - start] = column[start : self._fill]
                self._columns[name] = fresh
            self._lane_ptr = self._lane_ptr - start  # a copy: snapshots keep the old one
            self._fill -= start
        if self._last == len(self._steps):
            size, used = min(max(2 * (self._last - self._first + 1), 256), most_steps), slice(self._first, self._last)
            steps, lane_ptr = np.zeros(size, STEP), np.zeros((size, self._lanes + 1), np.int64)
            count = self._last - self._first
            steps[:count], lane_ptr[:count] = self._steps[used], self._lane_ptr[used]
            self._steps, self._lane_ptr, self._first, self._last = steps, lane_ptr, 0, count
        return True

    def _live(self) -> int:
        if self._first == self._last:
            return 0
        return int(self._lane_ptr[self._last - 1, -1] - self._lane_ptr[self._first, 0])


def step_bounds(info: StepInfo, events: np.ndarray) -> tuple[int, int]:
    """Begin and end of a step in ns: what the host says, widened by its records."""
    begin, end = info.begin, max(info.end, info.begin)
    if len(events):
        begin = min(begin, int(events["begin"].min())) if info.end > info.begin else int(events["claim"].min())
        end = max(end, int(events["end"].max()))
    return begin, end


def last_chunks(phases: np.ndarray, tasks: int) -> np.ndarray:
    """u32 per task: ns from begin until its last bytes were seen, NO_CHUNK where no record of its phases says."""
    out = np.full(tasks, NO_CHUNK, np.uint32)
    phases = phases[phases["task"] < tasks]
    out[phases["task"]] = np.clip(phases["publish"] - phases["begin"], 0, NO_CHUNK - 1)
    return out


def store_of(events: np.ndarray, graphs: dict[int, tuple[Graph, Schedule]], steps: Iterable[StepInfo] = (), *,
             label: str = "recorded", kind: str = "recorded", max_bytes: int = DEFAULT_BYTES) -> LiveStore:  # fmt: skip
    """A closed store of EVENT records.

    Steps that ``steps`` does not describe use the first graph and the times of their records.
    """
    if events.dtype != EVENT:
        raise MkvizError(f"events: dtype {events.dtype}", "mkviz.record.EVENT")
    store = LiveStore(label, kind, max_bytes)
    for graph_id, (graph, schedule) in graphs.items():
        store.graph(graph_id, graph, schedule)
    infos = {info.step: info for info in steps}
    events = events[np.argsort(events["step"], kind="stable")]
    for number in sorted(infos.keys() | set(np.unique(events["step"]).tolist())):
        info = infos.get(number) or StepInfo(number, next(iter(graphs)), 0, 0)
        store.step(info, events[slice(*np.searchsorted(events["step"], [number, number + 1]))])
    store.close()
    return store


def cut_by(source: Trace | Source | Snapshot) -> str:
    """What the records of the steps of a trace were cut by, ``time``, ``sms`` or ``ops``, or those of a source or a snapshot of
    one; "" where all that were kept are there."""
    if not hasattr(source, "meta"):
        return getattr(source, "cut", "")
    parts = [part.get("slice") or {} for part in (source.meta, *source.meta.get("merged", []))]
    return next((name for part in parts for name in ("time", "sms", "ops") if part.get(name)), "")


def store_of_trace(trace: Trace | str | Path, max_bytes: int = DEFAULT_BYTES) -> LiveStore:
    """The steps of a trace or of the one at a path (the newest, where ``max_bytes`` does not hold them all), with its label.

    Raises MkvizError for a path that is no readable trace.
    """
    from mkviz.trace import Trace

    trace = trace if isinstance(trace, Trace) else Trace.open(trace)
    store = LiveStore(trace.label, trace.kind, max_bytes, cut_by(trace))
    since = _first_that_fits(trace, max_bytes)
    trace.replay(store, since=since)
    if since is not None:
        _leave_out(store, trace, since)
    store.close(trace.complete)
    return store


def _first_that_fits(trace: Trace, max_bytes: int) -> int | None:
    """The number of a step with all behind which a store has more than it can keep; None where it keeps all."""
    table = trace.table("steps", ["step", "records"])
    step, records = table["step"].to_numpy(), table["records"].to_numpy()
    order = np.argsort(step)[::-1]
    full = np.flatnonzero(np.cumsum(records[order], dtype=np.int64) * RECORD_BYTES > max_bytes)
    return int(step[order[full[0]]]) if len(full) and full[0] + 1 < len(step) else None


def _leave_out(store: LiveStore, trace: Trace, since: int) -> None:
    """Count the steps before ``since`` and their records: tasks, and slots that were skipped."""
    table = trace.table("steps", ["step"])["step"].to_numpy()
    first, steps = int(table.min()), int((table < since).sum())
    kinds = np.zeros(KIND_MASK + 1, np.int64)
    for columns in trace.columns(["flags"], (first, since - 1)):
        kinds += np.bincount(columns["flags"] & KIND_MASK, minlength=KIND_MASK + 1)
    store.left_out(int(kinds[KIND_TASK]), steps, int(kinds[KIND_SKIPPED]))
