"""Slack: of the dependencies of a task, which one its lane waited for (exposed), and how much earlier the others came than they
were needed (slack).

A task can begin when its lane is *free* for it (the task before has ended, the step has begun) and every dependency is *met*: a
counter is met by the publish of the producer that makes its arrivals enough.  The dependencies are *needed* at the later of the
two, free and the last one met: a producer that publishes earlier than that has slack, it may be so much later and the task
still begins when it did.  What is left is *exposed*: from free to ready the lane waited.  A wait hidden behind other work is
slack and no loss.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from mkviz.store import Snapshot


@dataclass(frozen=True)
class Dependency:
    """One producer that a task needed: its ``row`` in the snapshot, the ``counter`` it raised, its ``publish`` (ns since
    origin) and ``slack`` (ns, 0 for the one that came last where the lane waited for it)."""

    row: int
    counter: int
    publish: float
    slack: float


@dataclass(frozen=True)
class Waited:
    """What a task's lane did before it: ``free``, ``ready`` (ns since origin), ``exposed`` ns that the lane waited for its
    dependencies, ``late`` ns of these after the last producer had published, and the ``dependencies``, last publish first."""

    free: float
    ready: float
    exposed: float
    late: float
    dependencies: list[Dependency]

    @property
    def spare(self) -> float | None:
        """ns by which the dependencies as a whole came earlier than the lane needed them; None where it waited or has none."""
        return self.dependencies[0].slack if self.dependencies and not self.exposed else None

    @property
    def next_slack(self) -> float | None:
        """Slack of the producer before the last: a faster last one gains at most so much.  None where there is only one."""
        return self.dependencies[1].slack if len(self.dependencies) > 1 else None


def free_of_step(snapshot: Snapshot, step: int) -> tuple[slice, np.ndarray, np.ndarray]:
    """Rows of a step; of each its lane, and the time (ns since origin) from which the lane was free for it."""
    ptr = snapshot.lane_ptr[step]
    rows, lane = slice(int(ptr[0]), int(ptr[-1])), np.repeat(np.arange(len(ptr) - 1), np.diff(ptr))
    begin = int(snapshot.steps["begin"][step])
    apart = int(snapshot.steps["end"][step]) - begin + 1  # between lanes, so that one running maximum serves all of them
    latest = np.maximum.accumulate(np.clip(snapshot.end[rows] - begin, 0, apart - 1) + lane * apart) - lane * apart
    free = np.concatenate([[0], latest[:-1]])[: len(lane)]
    free[(ptr[:-1] - ptr[0])[np.diff(ptr) > 0]] = 0
    return rows, lane, free + begin - snapshot.origin


def rows_by_task(snapshot: Snapshot, step: int) -> np.ndarray:
    """i64 per task of the step's graph: its row in the snapshot, -1 where it was not recorded."""
    rows = slice(int(snapshot.lane_ptr[step, 0]), int(snapshot.lane_ptr[step, -1]))
    by_task = np.full(len(snapshot.graph_of(step)), -1, np.int64)
    by_task[snapshot.task[rows]] = np.arange(rows.start, rows.stop)
    return by_task


def waited_for(snapshot: Snapshot, step: int, row: int, free: float) -> Waited:
    """What the task of ``row`` needed and what it waited for; ``free`` as of ``free_of_step``.

    Of a counter's producers those count whose arrivals it needed, the earliest ones; unrecorded producers are left out.
    """
    graph, task, origin = snapshot.graph_of(step), int(snapshot.task[row]), snapshot.origin
    by_task, (ptr, producers) = rows_by_task(snapshot, step), graph.producers
    found: list[tuple[float, int, int]] = []
    for counter, need in graph.waits(task):
        rows = by_task[producers[ptr[counter] : ptr[counter + 1]]]
        rows = rows[rows >= 0]
        rows = rows[np.argsort(snapshot.publish[rows], kind="stable")][:need]
        found += [(float(snapshot.publish[r] - origin), int(r), counter) for r in rows]
    found.sort(key=lambda f: -f[0])
    ready = float(snapshot.ready[row] - origin)
    exposed = max(0.0, ready - free)
    needed = max(free, found[0][0]) if found else free
    late = max(0.0, ready - needed) if found and exposed else 0.0
    return Waited(free, ready, exposed, late, [Dependency(r, c, at, needed - at) for at, r, c in found])
