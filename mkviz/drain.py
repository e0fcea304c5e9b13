"""Drain: empties the rings while the kernel runs, and hands whole steps to sinks."""

from __future__ import annotations

import logging
import threading
from collections import deque
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from mkviz.clocks import Clocks
from mkviz.decode import Gap, RingReader
from mkviz.protocols import ClockSink, FailureSink, RequestInfo, Sink, StepInfo, TokenInfo
from mkviz.record import EVENT, KIND_MASK, KIND_PHASES, KIND_TASK
from mkviz.ring import Link

if TYPE_CHECKING:
    from mkviz.graph import Graph
    from mkviz.schedule import Schedule

log = logging.getLogger(__name__)

END = 1 << 62  # beyond every step
BUDGET = 1 << 17  # records that one poll decodes in live mode, so that a view stays live however much is written


@dataclass
class Stats:
    """Counts since the start.  ``written`` = ``delivered`` + ``lost`` + ``withheld`` + ``waiting``, exactly.

    ``lost``: overwritten or not stored; ``withheld``: received, but of a step that is not whole (live mode); ``waiting``: still
    in the rings or of steps not over yet; ``torn``: lost because a check failed, must be 0; ``late``: withheld because its step
    had been closed, must be 0.
    """

    written: int = 0
    delivered: int = 0
    lost: int = 0
    withheld: int = 0
    torn: int = 0
    late: int = 0
    steps: int = 0
    steps_lost: int = 0

    @property
    def waiting(self) -> int:
        return self.written - self.delivered - self.lost - self.withheld


class Drain:
    """Reads rings through a link, groups events by step and delivers each step once to every sink, in order.

    A step is over when every ring's live line has passed it, and whole when nothing of it is missing: with a graph, when as
    many records have come as it has tasks; without, when no lost record can have belonged to it.  In live mode a step that is
    not whole is counted and left out; in capture mode it is delivered with ``info.lost`` set.  Times of the delivered
    :class:`StepInfo` are the drain's: the first ready and the last publish of the step's tasks.

    ``graph``, ``step_meta``, ``token`` and ``request`` may be called from any thread, never block and never raise; what they
    bring reaches the sinks, in order, at the next poll.  With ``expects_meta`` (the default) a step waits for its
    ``step_meta``, which may come before or after its records; without, unannounced steps go out under the graph that was told
    last (-1: none).

    Unless ``start`` has a thread poll, somebody must call ``poll`` at least every 2 s while records are written.  In live mode
    one poll decodes the newest ``budget`` records at most (None: all), or those of two steps like the newest, so that one is
    whole; ``close`` takes all that is left.

    A sink that raises is detached and its exception kept in ``detached``; neither the drain nor the kernel stops.  When the
    rings cannot be read any more, ``failure`` says why, as do the log and every :class:`FailureSink`, once.
    """

    def __init__(self, link: Link, *, clocks: Clocks | None = None, interval: float = 0.02, expects_meta: bool = True,
                 budget: int | None = BUDGET):  # fmt: skip
        self.reader = RingReader(link, clocks)
        self.clocks = self.reader.clocks
        self.interval, self.expects_meta, self.budget = interval, expects_meta, budget
        self.stats = Stats()
        self.detached: list[tuple[Sink, Exception]] = []
        self.failure: Exception | None = None  # why the rings could be read no more
        self.live = link.read_live()
        self._capture = link.capture
        self._sinks: list[Sink] = []
        self._graphs: dict[int, tuple[Graph, Schedule]] = {}
        self._inbox: deque = deque()
        self._meta: dict[int, StepInfo] = {}
        self._events: dict[int, list[np.ndarray]] = {}
        self._gaps: list[Gap] = []
        self._next: int | None = None  # the first step not closed yet
        self._frontier = 0
        self._announced, self._newest_graph = -1, -1  # the newest step whose meta has come, and its graph
        self._lock = threading.RLock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    # what the host knows; any thread

    def graph(self, graph_id: int, graph: Graph, schedule: Schedule) -> None:
        self._inbox.append(("graph", (graph_id, graph, schedule)))

    def step_meta(self, info: StepInfo) -> None:
        """What is known of a step besides its records; times are ignored."""
        self._inbox.append(("meta", (info,)))

    def token(self, info: TokenInfo) -> None:
        self._inbox.append(("token", (info,)))

    def request(self, info: RequestInfo) -> None:
        self._inbox.append(("request", (info,)))

    def add_sink(self, sink: Sink) -> None:
        """From here on the sink gets everything; graphs told before are told to it first."""
        with self._lock:
            self._sinks.append(sink)
            if isinstance(sink, ClockSink):
                self._tell("clocks", (self.clocks,), [sink])
            for graph_id, (graph, schedule) in self._graphs.items():
                self._tell("graph", (graph_id, graph, schedule), [sink])
            if self.failure is not None:
                self._tell_failure([sink])

    def remove_sink(self, sink: Sink, settle: bool = False) -> None:
        """The sink gets nothing more; it is not closed.  Unknown or detached sinks are ignored.

        With ``settle`` it gets what has happened so far first, and no token of a step that it does not get: what is told while
        this runs waits.  Where the rings cannot be read any more, it gets the steps that have been read, and ``failure`` says
        why there is no more.
        """
        with self._lock:
            if settle:
                try:
                    self._take_inbox()
                    for _ in range(2):  # the frontier trails by one reading
                        self._read()
                except Exception as error:  # with the device that the rings lie on, say
                    self._fail(error)
                    self._end()
            self._sinks = [s for s in self._sinks if s is not sink]

    # running

    def start(self) -> Drain:
        """Poll in a background thread every ``interval`` seconds until ``close``."""
        self._thread = threading.Thread(target=self._run, name="mkviz-drain", daemon=True)
        self._thread.start()
        return self

    def _run(self) -> None:
        while not self._stop.wait(self.interval):
            try:
                self.poll()
            except Exception as error:  # told, not raised: a profiler must not take its subject down
                self._fail(error)
                return

    def poll(self) -> int:
        """Read what is new and deliver what is whole; returns the number of steps delivered."""
        with self._lock:
            self._take_inbox()
            return self._read()

    def make_room(self) -> None:
        """Poll now, or wait for a poll that runs, if a ring is more than half full of what has not been read.

        Who calls this between steps (with ``budget`` None) loses nothing, as long as a step leaves fewer records in a ring than
        half of it holds.  The time this takes lies between steps, never in one.
        """
        with self._lock:
            if 2 * int(self.reader.unread.max()) > self.reader.link.capacity:
                self.poll()

    def close(self, complete: bool = True, close_sinks: bool = False) -> Stats:
        """The kernel has ended: read the rest and close every step that is left.

        With ``close_sinks`` the sinks are closed too, as ``complete`` or not.  Safe to call twice.
        """
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        with self._lock:
            self.budget = None  # nothing more will come that the rest could be late for
            for _ in range(2):  # the frontier trails by one reading
                try:
                    self.poll()
                except Exception as error:
                    self._fail(error)
            self._end()
            if close_sinks:
                self._tell("close", (complete,))
                self._sinks = []
        return self.stats

    def _fail(self, error: Exception) -> None:
        """Keep the first reason and tell it to whoever would wait for more without a word."""
        with self._lock:
            if self.failure is None:
                self.failure = error
                log.warning("records can be read no more: %s", self._why)
                self._tell_failure(self._sinks)

    @property
    def _why(self) -> str:
        """One line, and not a long one: it is drawn on a figure."""
        return " ".join(f"{type(self.failure).__name__}: {self.failure}".split())[:200]

    # under the lock

    def _tell_failure(self, sinks: list[Sink]) -> None:
        self._tell("failed", (self._why,), [sink for sink in sinks if isinstance(sink, FailureSink)])

    def _end(self) -> None:
        """Nothing more will come: close every step that is left."""
        before = self._counts()
        self.stats.lost += self.stats.waiting - sum(len(e) for parts in self._events.values() for e in parts)
        self._deliver(END)
        self._tell_lost(before)

    def _read(self) -> int:
        before = self._counts()
        least = 2 * len(self._graphs[self._newest_graph][0]) if self._newest_graph in self._graphs else 0
        batch = self.reader.read(None if self.budget is None else max(self.budget, least))
        self.live, self._frontier = batch.live, max(self._frontier, batch.frontier)
        self.stats.written, self.stats.lost = int(self.reader.written.sum()), int(self.reader.lost.sum())
        self.stats.torn = int(self.reader.torn.sum())
        self._gaps += batch.gaps
        self._sort_in(batch.events)
        delivered = self._deliver(self._frontier)
        self._tell_lost(before)
        return delivered

    def _take_inbox(self) -> None:
        while self._inbox:
            kind, args = self._inbox.popleft()
            if kind == "meta":
                self._meta[args[0].step] = args[0]
                if args[0].step > self._announced:
                    self._announced, self._newest_graph = args[0].step, args[0].graph
                continue
            if kind == "graph":
                self._graphs[args[0]] = args[1:]
            self._tell(kind, args)

    def _sort_in(self, events: np.ndarray) -> None:
        """File events under their steps; those of a closed step come too late to be shown as part of it."""
        if self._next is not None and (late := events["step"] < self._next).any():
            self.stats.late += int(late.sum())
            self.stats.withheld += int(late.sum())
            events = events[~late]
        if len(events):
            events = events[np.argsort(events["step"], kind="stable")]
            steps, first = np.unique(events["step"], return_index=True)
            for step, part in zip(steps.tolist(), np.split(events, first[1:]), strict=True):
                self._events.setdefault(step, []).append(part)

    def _deliver(self, frontier: int) -> int:
        """Close the steps below ``frontier``, in order, and tell the sinks of those that are whole."""
        delivered = 0
        for step in sorted(s for s in self._events.keys() | self._meta.keys() if s < frontier):
            if self.expects_meta and step > self._announced and frontier != END:
                break
            if self._next is not None and step > self._next:
                self.stats.steps_lost += self._touched(self._next, step)  # steps of which nothing at all has come
            delivered += self._close_step(step)
            self._next = max(step + 1, self._next or 0)
            self._gaps = [g for g in self._gaps if g.last > step]
        return delivered

    def _close_step(self, step: int) -> bool:
        events = np.concatenate(self._events.pop(step, [np.zeros(0, EVENT)]))
        info = self._meta.pop(step, None) or StepInfo(step, next(reversed(self._graphs), -1), 0, 0)
        if info.graph in self._graphs:
            records = int((events["flags"] & KIND_MASK != KIND_PHASES).sum())
            lost = max(0, len(self._graphs[info.graph][0]) - records)
        else:
            lost = sum(g.records for g in self._gaps if g.first <= step <= g.last)
        if lost and not self._capture:
            self.stats.withheld += len(events)
            self.stats.steps_lost += 1
            return False
        events = events[np.lexsort((events["begin"], events["sm"]))]
        tasks = events[events["flags"] & KIND_MASK == KIND_TASK]
        begin, end = (int(tasks["ready"].min()), int(tasks["publish"].max())) if len(tasks) else (0, 0)
        self._tell("step", (replace(info, begin=begin, end=end, lost=lost), events))
        self.stats.delivered += len(events)
        self.stats.steps += 1
        return True

    def _touched(self, first: int, stop: int) -> int:
        """How many of the steps first..stop-1 lost records may have belonged to."""
        count = 0
        for gap in sorted(self._gaps, key=lambda g: g.first):
            low, high = max(gap.first, first), min(gap.last, stop - 1)
            if high >= low:
                count, first = count + high - low + 1, high + 1
        return count

    def _counts(self) -> tuple[int, int]:
        return self.stats.lost + self.stats.withheld, self.stats.steps_lost

    def _tell_lost(self, before: tuple[int, int]) -> None:
        """Tell the sinks how many records and steps they will never see."""
        records, steps = (now - then for now, then in zip(self._counts(), before, strict=True))
        if records or steps:
            self._tell("lost", (records, steps))

    def _tell(self, method: str, args: tuple, sinks: list[Sink] | None = None) -> None:
        for sink in list(self._sinks if sinks is None else sinks):
            try:
                getattr(sink, method)(*args)
            except Exception as error:
                self.detached.append((sink, error))
                self.remove_sink(sink)
