"""Progress: what has happened in a step up to a moment: which tasks have begun and ended, and how far its counters are."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from mkviz.slack import free_of_step

if TYPE_CHECKING:
    from mkviz.store import Snapshot

BEGIN, END, PUBLISH = range(3)
WORDS = ("begin", "end", "publish")


@dataclass(frozen=True)
class CounterState:
    """A counter at a moment: arrivals so far (``value``), how many its waiters need (``target``), how many arrivals of the step
    nobody recorded (``untold``: slots without work, lost records), the row of the task that raised it last, when it was raised
    first and last (ns since origin), and how many SMs wait for it now."""

    counter: int
    value: int
    target: int
    untold: int
    row: int
    first: float
    last: float
    waiting: int

    @property
    def met(self) -> bool:
        return self.value + self.untold >= self.target


@dataclass(frozen=True, eq=False)
class Moment:
    """``begun``, ``ended``, ``running``: tasks; ``waiting``: SMs idle because a dependency is unmet; ``counters``: those raised
    or waited for by now, by the time they were first raised, those not raised yet last."""

    begun: int
    ended: int
    running: int
    waiting: int
    counters: list[CounterState]


class Progress:
    """Of step ``step`` (an index) of a snapshot; times are ns since its origin."""

    def __init__(self, snapshot: Snapshot, step: int):
        self.snapshot, self.step, self.graph = snapshot, step, snapshot.graph_of(step)
        self.begin, self.end = (int(snapshot.steps[k][step]) - snapshot.origin for k in ("begin", "end"))
        self.rows, self.lane, self.free = free_of_step(snapshot, step)
        begin, end, publish, self._ready = (
            getattr(snapshot, name)[self.rows] - snapshot.origin for name in ("begin", "end", "publish", "ready")
        )
        self._times = (begin, end, publish)
        self._begins, self._ends = np.sort(begin), np.sort(end)
        graph, task = self.graph, snapshot.task[self.rows].astype(np.int64)
        raises = np.diff(graph.raise_ptr)[task]
        row = np.repeat(np.arange(len(task)), raises)
        place = np.arange(len(row)) - np.repeat(np.cumsum(raises) - raises, raises)
        counter = graph.raise_counter[graph.raise_ptr[task[row]] + place]
        order = np.argsort(publish[row], kind="stable")
        self._raised, self._counter, self._by = publish[row][order], counter[order], row[order] + self.rows.start
        self._untold = graph.arrivals.astype(np.int64) - np.bincount(counter, minlength=len(graph.counters))
        self._target = np.zeros(len(graph.counters), np.int64)
        np.maximum.at(self._target, graph.wait_counter, graph.wait_need.astype(np.int64))
        self._target = np.where(self._target > 0, self._target, graph.arrivals)

    @cached_property
    def _waited_for(self) -> np.ndarray:
        """i64 per record: the counter that its task waited for last, -1 for none."""
        graph, task = self.graph, self.snapshot.task[self.rows].astype(np.int64)
        last, count = self.snapshot.last_wait[self.rows].astype(np.int64), np.diff(graph.wait_ptr)[task]
        at = graph.wait_ptr[task] + np.minimum(last, np.maximum(count - 1, 0))
        known = last < count
        return np.where(known, graph.wait_counter[np.where(known, at, 0)] if len(graph.wait_counter) else -1, -1)

    def at(self, time: float) -> Moment:
        """Everything that has happened by ``time``."""
        k = int(np.searchsorted(self._raised, time, side="right"))
        n, counter = len(self.graph.counters), self._counter[:k]
        value, last, first = np.bincount(counter, minlength=n), np.full(n, -1), np.full(n, -1)
        last[counter], first[counter[::-1]] = np.arange(k), np.arange(k)[::-1]
        idle = (self.free <= time) & (time < self._ready)
        # of a lane that waits, only the task it waits for next
        _, next_up = np.unique(self.lane[idle], return_index=True)
        of = self._waited_for[idle][next_up]
        waiting = np.bincount(of[of >= 0], minlength=n)
        shown = np.flatnonzero((value > 0) | (waiting > 0))
        shown = shown[np.argsort(np.where(first[shown] < 0, k, first[shown]), kind="stable")]
        states = [
            CounterState(int(c), int(value[c]), int(self._target[c]), int(self._untold[c]),
                         int(self._by[last[c]]) if value[c] else -1, self._raised[first[c]] if value[c] else np.inf,
                         self._raised[last[c]] if value[c] else -np.inf, int(waiting[c]))
            for c in shown
        ]  # fmt: skip
        begun = int(np.searchsorted(self._begins, time, side="right"))
        ended = int(np.searchsorted(self._ends, time, side="right"))
        return Moment(begun, ended, begun - ended, len(next_up), states)

    def next_event(self, time: float, direction: int, lanes: range) -> float:
        """When the next begin, end or publish on ``lanes`` after (1) or before (-1) ``time`` is; the step's end or begin if
        none."""
        on = (self.lane >= lanes.start) & (self.lane < lanes.stop)
        times = np.concatenate([t[on] for t in self._times])
        times = times[times > time] if direction > 0 else times[times < time]
        if not len(times):
            return float(self.end if direction > 0 else self.begin)
        return float(times.min() if direction > 0 else times.max())

    def events_at(self, time: float, lanes: range) -> list[tuple[str, int]]:
        """[(begin, end or publish; row)] of what happens on ``lanes`` at exactly ``time``."""
        on = (self.lane >= lanes.start) & (self.lane < lanes.stop)
        return [
            (word, self.rows.start + int(row))
            for word, times in zip(WORDS, self._times, strict=True) for row in np.flatnonzero(on & (times == time))
        ]  # fmt: skip
