"""StepRecords: what analyses read of one step, of a snapshot, source or trace alike; LaneTimes: its math roles in order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from mkviz.errors import MkvizError
from mkviz.graph import Graph, GraphBuilder
from mkviz.record import EVENT, FLAG_SATURATED, KIND_MASK, KIND_PHASES, KIND_TASK
from mkviz.schedule import Schedule
from mkviz.step_bytes import step_bytes
from mkviz.store import NO_CHUNK, Snapshot, last_chunks, step_bounds

if TYPE_CHECKING:
    from mkviz.protocols import Source, StepInfo
    from mkviz.trace import Trace

NO_GRAPH = "(no graph)"  # as in the summary
MOST_NS = (1 << 63) - 1  # SM time of a step or of several, in ns, is an i64 in every table


@dataclass(frozen=True)
class LaneTimes:
    """The records of a step on their lanes; arrays over its events, times i64 ns since the step began, cut to the step.

    ``sound`` bool: the record has an end that does not precede its begin, times that fitted, and is its task's first one.
    ``free``: when the sound tasks before it had left the lane (0: there is none); ``holder``: which left last (-1: none).
    ``doubt`` bool: the record before it on the lane is not sound, so nobody knows what the lane did until this one.
    ``left`` i64[sms]: when the last sound task left each lane; ``open_end`` bool[sms]: a record that is not sound follows.
    """

    claim: np.ndarray
    ready: np.ndarray
    begin: np.ndarray
    end: np.ndarray
    publish: np.ndarray
    sound: np.ndarray
    free: np.ndarray
    holder: np.ndarray
    doubt: np.ndarray
    left: np.ndarray
    open_end: np.ndarray

    @classmethod
    def of(cls, events: np.ndarray, lane: np.ndarray, lanes: int, since, makespan, sound: np.ndarray) -> LaneTimes:
        """Of EVENT records on ``lanes`` lanes, ordered by lane, begin and end; ``since`` and ``makespan``: when their step
        began and how long it took, one of each or one per record.  lanes * (longest makespan + 1) must fit 63 bits."""
        n, apart = len(events), lane * (int(np.max(makespan, initial=0)) + 1)  # between lanes: one running maximum serves all
        claim, ready, begin, end, publish = (
            np.clip(events[name], since, since + makespan) - since for name in ("claim", "ready", "begin", "end", "publish")
        )
        own = np.where(sound, end, 0) + apart
        latest = np.maximum.accumulate(own)
        newest = np.maximum.accumulate(np.where(sound & (own == latest), np.arange(n), -1))
        before, same = np.arange(n) - 1, np.append(np.False_, lane[1:] == lane[:-1])[:n]
        holder = np.where(same, newest[before], -1)
        holder[lane[holder] != lane] = -1
        free = np.where(same, latest[before] - apart, 0)
        last = np.append(lane[1:] != lane[:-1], np.True_)[:n]
        left, open_end = np.zeros(lanes, np.int64), np.zeros(lanes, bool)
        left[lane[last]], open_end[lane[last]] = (latest - apart)[last], ~sound[last]
        return cls(claim, ready, begin, end, publish, sound, free, holder, same & ~sound[before], left, open_end)


@dataclass(frozen=True, eq=False)
class StepRecords:
    """One step: its number, bounds (ns), SMs and graph, and ``events`` EVENT[k], its tasks' records by SM, begin, end.

    ``lost``: records that are gone, of which ``strays`` name an SM or task that is not there.  ``info`` tells its rows and
    routes.  ``last_chunk`` u32[k]: ns from begin until the task's last bytes were seen, NO_CHUNK where no record of its phases
    (level 2) says.
    """

    step: int
    begin: int
    end: int
    sms: int
    graph: Graph
    events: np.ndarray
    last_chunk: np.ndarray
    info: StepInfo
    lost: int = 0
    strays: int = 0

    @property
    def shape(self) -> tuple[int, int, int]:
        """(graph id, rows, rows of prefill): what steps have in common that can be compared."""
        return shape_of(self.info)

    @cached_property
    def bytes(self) -> np.ndarray:
        """i64 per task of the graph: what it reads in this step, if it runs."""
        return step_bytes(self.graph, self.info)

    @property
    def makespan(self) -> int:
        return self.end - self.begin

    @property
    def sm_time(self) -> int:
        return self.makespan * self.sms

    @cached_property
    def broken(self) -> np.ndarray:
        """bool[k]: records that end before they begin (or have no end), or whose times did not fit into the record."""
        return broken(self.events)

    @cached_property
    def repeated(self) -> np.ndarray:
        """bool[k]: records, not broken, of tasks that an earlier one in order of ``events`` tells of already."""
        return repeated(self.events["task"].astype(np.int64), self.broken)

    @cached_property
    def lanes(self) -> LaneTimes:
        sound, lane = ~(self.broken | self.repeated), self.events["sm"].astype(np.int64)
        return LaneTimes.of(self.events, lane, self.sms, self.begin, self.makespan, sound)

    @property
    def landed(self) -> np.ndarray:
        """i64[k]: when each task's last bytes had landed as far as records tell (level 1: its end), ns since the step began."""
        at, told = self.lanes, self.last_chunk != NO_CHUNK
        return np.where(told, np.minimum(at.begin + self.last_chunk, at.end), at.end)

    @cached_property
    def row_of(self) -> np.ndarray:
        """i64 per task of the graph: the index of its sound record, -1 where there is none."""
        out, sound = np.full(len(self.graph), -1, np.int64), np.flatnonzero(self.lanes.sound)
        out[self.events["task"][sound]] = sound
        return out

    @cached_property
    def published(self) -> np.ndarray:
        """i64[k]: publish, or end where that is later; ns since the step began."""
        return np.maximum(self.lanes.publish, self.lanes.end)

    @cached_property
    def met_by(self) -> np.ndarray:
        """i64 per wait of the graph (as in ``wait_counter``): the index of the record whose publish met it, -1 where none of
        the counter's producers has a sound record.  Of a counter those count whose arrivals are needed, the earliest ones;
        where fewer have a record than are needed, the last that has."""
        graph, never = self.graph, np.int64(MOST_NS)
        ptr, producers = graph.producers
        rows = self.row_of[producers]
        at = np.append(self.published, never)[rows]  # -1, no record: never
        rows = rows[np.lexsort((at, np.repeat(np.arange(len(ptr) - 1), np.diff(ptr))))]
        recorded = np.diff(np.append(0, np.cumsum(rows >= 0))[ptr])
        needed = np.minimum(graph.wait_need, recorded[graph.wait_counter]).astype(np.int64)
        out = np.full(len(needed), -1, np.int64)
        out[needed > 0] = rows[(ptr[graph.wait_counter] + needed - 1)[needed > 0]]
        return out


def steps_of(source: Snapshot | Source | Trace | str | Path, steps=None) -> Iterator[StepRecords]:
    """The steps of a snapshot, a source, a trace or the trace at a path, ascending; ``steps``: a step number or several.

    Raises MkvizError for a step that is not there, and for a step so long that its SM time in ns does not fit 63 bits.
    """
    if isinstance(source, str | Path):
        from mkviz.trace import Trace

        source = Trace.open(source)
    if isinstance(source, Snapshot) or hasattr(source, "snapshot"):
        found = _of_snapshot(source if isinstance(source, Snapshot) else source.snapshot(), steps)
    else:
        found = _of_trace(source, steps)
    wanted = None if steps is None else {int(s) for s in np.atleast_1d(steps)}
    for step in found:
        refuse_endless(step.step, step.begin, step.end, step.sms)
        if wanted is not None:
            wanted.discard(step.step)
        yield step
    if wanted:
        raise MkvizError(f"step {min(wanted)} is not there", "a step that the source holds")


def refuse_endless(step: int, begin: int, end: int, sms: int) -> None:
    """Raises MkvizError for a step whose SM time in ns does not fit 63 bits."""
    if (end - begin + 1) * sms > MOST_NS:
        raise MkvizError(f"step {step} lasts {end - begin} ns (from {begin} to {end})",
                         "a record of it or its StepInfo has a time that cannot be; leave the step out")  # fmt: skip


def _of_snapshot(snapshot: Snapshot, steps) -> Iterator[StepRecords]:
    wanted = None if steps is None else {int(s) for s in np.atleast_1d(steps)}
    for c, (number, graph_id, begin, end, lost) in enumerate(snapshot.steps.tolist()):
        if wanted is not None and number not in wanted:
            continue
        graph, schedule = snapshot.graphs[graph_id]
        ptr = snapshot.lane_ptr[c]
        rows = slice(int(ptr[0]), int(ptr[-1]))
        events = np.zeros(rows.stop - rows.start, EVENT)
        events["step"], events["sm"] = number, np.repeat(np.arange(len(ptr) - 1), np.diff(ptr))
        for name in ("claim", "ready", "begin", "end", "publish", "task", "last_wait", "fill", "flags"):
            events[name] = getattr(snapshot, name)[rows]
        order = in_order(events)
        yield StepRecords(number, begin, end, schedule.sms, graph, events[order], snapshot.last_chunk[rows][order],
                          snapshot.infos[c], lost)  # fmt: skip


def _of_trace(trace: Trace, steps) -> Iterator[StepRecords]:
    from mkviz.trace.selection import Selection

    graphless = None
    for info, events in trace.walk(Selection.of(trace, steps, None, None, None)):
        graph = trace.graphs.get(info.graph)
        if graph is None:
            graph = graphless = graphless or stand_in(trace)
        yield of_events(info, events, *graph)


def stand_in(trace: Trace) -> tuple[Graph, Schedule]:
    """For steps without a graph: tasks of one op that depend on nothing, on as many SMs as the records name."""
    records = trace.table("records", ["sm", "task"])
    sms, tasks = (int(records[name].to_numpy().astype(np.int64).max(initial=-1)) + 1 for name in ("sm", "task"))
    builder = GraphBuilder(NO_GRAPH, [NO_GRAPH])
    for _ in range(tasks):
        builder.task(NO_GRAPH)
    return builder.build(), Schedule.from_lists([[] for _ in range(max(trace.sms, sms))])


def of_events(info: StepInfo, events: np.ndarray, graph: Graph, schedule: Schedule) -> StepRecords:
    """A step of EVENT records; only those of tasks count, and what those of their phases say of them."""
    kind = events["flags"] & KIND_MASK
    tasks = events[kind == KIND_TASK]
    good = tasks[(tasks["sm"] < schedule.sms) & (tasks["task"] < len(graph))]
    good = good[in_order(good)]
    strays = len(tasks) - len(good)
    begin, end = step_bounds(info, good)
    last = last_chunks(events[kind == KIND_PHASES], len(graph))[good["task"]]
    return StepRecords(info.step, begin, end, schedule.sms, graph, good, last, info, info.lost + strays, strays)


def shape_of(info: StepInfo) -> tuple[int, int, int]:
    return info.graph, len(info.rows), sum(row.kind == "prefill" for row in info.rows)


def broken(events: np.ndarray) -> np.ndarray:
    return (events["end"] < events["begin"]) | (events["flags"] & FLAG_SATURATED != 0)


def repeated(key: np.ndarray, broken: np.ndarray) -> np.ndarray:
    """bool[k]: records, not broken, whose ``key`` (i64, 0 or more) an earlier one has that is not broken either."""
    whole = np.flatnonzero(~broken)
    out, keys = np.zeros(len(key), bool), key[whole]
    if keys.max(initial=0) < 16 * len(key):  # a table of them is faster than sorting them
        first = np.empty(int(keys.max(initial=-1)) + 1, np.int64)
        first[keys[::-1]] = whole[::-1]  # of several that share a key the last assignment, the earliest record, stays
        out[whole] = first[keys] != whole
    else:
        out[whole] = True
        out[whole[np.unique(keys, return_index=True)[1]]] = False
    return out


def in_order(events: np.ndarray, lane: np.ndarray | None = None) -> np.ndarray | slice:
    """What orders EVENT records by lane (the SM, unless given), begin and end: all of them, where they are so already."""
    lane, begin, end = events["sm"] if lane is None else lane, events["begin"], events["end"]
    a, b = slice(None, -1), slice(1, None)
    in_lane = (begin[a] < begin[b]) | (begin[a] == begin[b]) & (end[a] <= end[b])
    if ((lane[a] < lane[b]) | (lane[a] == lane[b]) & in_lane).all():
        return slice(None)
    return np.lexsort((end, begin, lane))
