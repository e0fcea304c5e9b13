"""SimulatedSource: the steps of another source as a machine would run them, step for step."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from mkviz.errors import MkvizError
from mkviz.machine import H200, Machine
from mkviz.policies import POLICIES, make_schedule
from mkviz.protocols import StepInfo
from mkviz.simulator import Simulated, simulate
from mkviz.store import LiveStore
from mkviz.stored import Stored

if TYPE_CHECKING:
    from mkviz.graph import Graph
    from mkviz.protocols import Source
    from mkviz.schedule import Schedule
    from mkviz.store import Snapshot

MAX_BYTES = 128 << 20  # of simulated records that are kept
NEWEST = 512  # steps: of a source that holds more when it is first read, or has run so far ahead, the newest are simulated
ENDS = 1024  # steps whose end is remembered for tokens that come later than their step


class SimulatedSource(Stored):
    """A Source that follows the source ``of``: the same step numbers, rows, routes and tokens, times of ``machine``.

    Each step is the whole graph of its shape, also where the real one had slots without work.  A graph for as many SMs as the
    machine has keeps its schedule.  One for fewer is cut anew by ``tiled(graph, sms)`` where its maker can do that (see
    :class:`mkviz.protocols.Generator`), and dealt out by the policy of its own schedule.  Steps follow each other without a
    pause, and a token's time is the end of its step.

    ``snapshot`` never waits: when ``of`` has more to tell, a thread simulates it, so a source nobody looks at costs nothing.
    ``words`` says what it is at, or what went wrong.
    """

    kind = "simulated"

    def __init__(
        self,
        of: Source,
        machine: Machine = H200,
        *,
        barrier_per_op: bool = False,
        tiled: Callable[[Graph, int], Graph] | None = None,
    ):
        self.of, self.machine, self.barrier_per_op, self._tiled = of, machine, barrier_per_op, tiled
        self.label = f"simulated ({machine.name}{', a kernel per op' if barrier_per_op else ''})"
        self.words = ""
        self._store = LiveStore(self.label, self.kind, MAX_BYTES)
        self._nothing = self._store.snapshot()
        self._steps: dict[int, Simulated] = {}  # by graph
        self._ends: dict[int, int] = {}  # by step
        self._clock, self._last, self._seen = 0, -1, -1
        self._gave_up = False
        self._token = None  # the newest that was told
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def snapshot(self) -> Snapshot:
        """What is simulated so far; of a source that will not grow, nothing before all of it is."""
        with self._lock:
            if self._thread is None and not self._gave_up and self.of.version != self._seen:
                self._thread = threading.Thread(target=self._follow, name="mkviz-simulate", daemon=True)
                self._thread.start()
            busy = self._thread is not None
        found = self._store.snapshot()
        return self._nothing if busy and not found.closed and self.of.snapshot().closed else found

    def wait(self) -> Snapshot:
        """The snapshot once all that ``of`` holds now is simulated; for programs, not for a server's loop."""
        for _ in range(2):  # a pass that runs already may have begun before the newest steps came
            self.snapshot()
            if (thread := self._thread) is not None:
                thread.join()
        return self._store.snapshot()

    # the thread

    def _follow(self) -> None:
        snapshot = self.of.snapshot()
        try:
            if any(info.step > self._last for info in snapshot.infos):
                first = "" if self._steps else " (loading the simulator, which is compiled once)"
                self.words = f"Simulating on {self.machine.name} …{first}"
            for info in snapshot.infos[-NEWEST:]:
                if info.step > self._last:
                    self._step(snapshot, info)
            self._tell_tokens(snapshot)
            self.words = ""
            if snapshot.closed:
                self._store.close(snapshot.complete)
        except Exception as error:  # whatever it is, pages say so in one line and live on
            what = str(error) if isinstance(error, MkvizError) else f"{type(error).__name__}: {error}"
            self.words = f"This cannot be simulated: {what}"
            self._store.close(complete=False)
            self._gave_up = True
        with self._lock:
            self._seen, self._thread = snapshot.version, None

    def _step(self, snapshot: Snapshot, info: StepInfo) -> None:
        step = self._steps.get(info.graph) or self._simulate(info.graph, *snapshot.graphs[info.graph])
        begin, self._clock, self._last = self._clock, self._clock + step.makespan, info.step
        events = step.events.copy()
        events["step"] = info.step
        for name in ("claim", "ready", "begin", "end", "publish"):
            events[name] += begin
        self._store.step(replace(info, begin=begin, end=self._clock, lost=0), events)
        self._ends[info.step] = self._clock
        while len(self._ends) > ENDS:
            del self._ends[next(iter(self._ends))]

    def _simulate(self, graph_id: int, graph: Graph, schedule: Schedule) -> Simulated:
        if schedule.sms != self.machine.sms:
            graph = self._tiled(graph, self.machine.sms) if self._tiled else graph
            policy = schedule.policy if schedule.policy in POLICIES else "round_robin"
            schedule = make_schedule(graph, self.machine.sms, policy)
        whole = {name: value for name, value in graph.meta.items() if name not in ("keys", "slot_bytes")}
        graph = replace(graph, meta=whole)  # a step of it reads all that the graph counts
        step = simulate(graph, schedule, self.machine, barrier_per_op=self.barrier_per_op)
        self._store.graph(graph_id, graph, schedule)
        self._steps[graph_id] = step
        return step

    def _tell_tokens(self, snapshot: Snapshot) -> None:
        """Those since the last one told, up to the first whose step has still to come."""
        new = []
        for token in reversed(snapshot.tokens):
            if token is self._token:
                break
            new.append(token)
        for token in reversed(new):
            if token.step > self._last:
                return
            self._token = token
            if token.step in self._ends:
                self._store.token(replace(token, time=self._ends[token.step]))
