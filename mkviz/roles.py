"""Roles: what each role of a block did for a task, as far as its record tells, and the sub-lanes that show it.

Every role's time for a task lies between two stamps:

* loader: from claim until its bytes were there.  Level 1 knows only that math had its first operands at begin; level 2 knows
  when the last chunk was there.  Bytes are asked for ahead, so these spans of one SM overlap.  Tasks without bytes have none.
* feeder: from ready to begin; and its wait, from claim to ready, while a counter was still short.  Taken up ahead, these
  overlap too: a wait here is not yet a loss.
* math: from begin to end; and its wait, as on the lane of the SM.
* storer: from end to publish.

The record does not say which role did a task that needs only one, nor how long a role rested between its two stamps: a span is
the most that the role can have worked on the task.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from mkviz import role_kernels
from mkviz.slack import free_of_step
from mkviz.store import NO_CHUNK

if TYPE_CHECKING:
    from mkviz.lod import GraphTables
    from mkviz.store import Snapshot

ROLES = ("loader", "feeder", "math", "storer")
LOADER, FEEDER, MATH, STORER = range(4)


@dataclass(frozen=True, eq=False)
class RoleFrame:
    """``cols`` columns of ``dx`` ns from ``x0``; sub-lane ``4 * l + role`` belongs to the l-th lane asked for.

    ``grid`` u8[sub-lanes, cols]: class with the largest weighted share (lod.NONE: nothing); ``share``, ``busy``, ``wait`` f32
    likewise: time of that class, of all tasks, and of waiting, in columns.  They exceed 1 where spans overlap.
    """

    x0: float
    dx: float
    grid: np.ndarray
    share: np.ndarray
    busy: np.ndarray
    wait: np.ndarray

    @property
    def cols(self) -> int:
        return self.grid.shape[1]


@dataclass(frozen=True, eq=False)
class RoleRects:
    """The records of which any role's span touches a view: ``row`` i64[n] of the snapshot, ``lane``, ``step`` i64[n] (index),
    and ``free`` f64[n], the ns since origin from which the lane was free for the task."""

    row: np.ndarray
    lane: np.ndarray
    step: np.ndarray
    free: np.ndarray


def loaded(snapshot: Snapshot, rows: slice | np.ndarray) -> np.ndarray:
    """i64: when the bytes of each record's task were there as far as it tells, ns on the trace's clock."""
    last = snapshot.last_chunk[rows]
    return snapshot.begin[rows] + np.where(last == NO_CHUNK, 0, last)


def level(snapshot: Snapshot, rows: slice | np.ndarray) -> int:
    """2 when any of the records has its phases, else 1."""
    return 2 if (snapshot.last_chunk[rows] != NO_CHUNK).any() else 1


def spans(snapshot: Snapshot, rows: slice | np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    """Per role (start, stop), i64 ns on the trace's clock, of the records ``rows``.  The loader's counts for tasks with
    bytes."""
    claim, ready, begin, end, publish = (getattr(snapshot, n)[rows] for n in ("claim", "ready", "begin", "end", "publish"))
    return [(claim, loaded(snapshot, rows)), (ready, begin), (begin, end), (end, publish)]


def touching(snapshot: Snapshot, x0: float, x1: float) -> np.ndarray:
    """Indices of the steps of which a record's claim ... publish touches [x0, x1): a loader is a step ahead of the step's
    begin."""
    full = np.flatnonzero(snapshot.lane_ptr[:, -1] > snapshot.lane_ptr[:, 0])
    if not len(full):
        return full
    first, stop = snapshot.lane_ptr[full[0], 0], snapshot.lane_ptr[full[-1], -1]
    starts = snapshot.lane_ptr[full, 0] - first
    claim = np.minimum.reduceat(snapshot.claim[first:stop], starts) - snapshot.origin
    publish = np.maximum.reduceat(snapshot.publish[first:stop], starts) - snapshot.origin
    return full[(claim < x1) & (publish > x0)]


def role_frame(snapshot: Snapshot, tables: GraphTables, x0: float, x1: float, cols: int, lanes: range, classes: np.ndarray,
               weight: np.ndarray, kernels=role_kernels) -> RoleFrame:  # fmt: skip
    """Divide [x0, x1) ns into ``cols`` columns for the roles of ``lanes`` (consecutive); ``classes`` and ``weight`` as in
    lod.image_frame."""
    steps, dx = touching(snapshot, x0, x1), (x1 - x0) / cols
    shape = (len(lanes), len(ROLES), cols)
    grid = np.full(shape, 255, np.uint8)
    share, busy, wait = (np.zeros(shape, np.float32) for _ in range(3))
    if len(steps):
        rows = slice(int(snapshot.lane_ptr[steps[0], 0]), int(snapshot.lane_ptr[steps[-1], -1]))
        ptr = snapshot.lane_ptr[steps, lanes.start : lanes.stop + 1] - rows.start
        offset, task, weight = tables.offsets(snapshot)[steps], snapshot.task[rows], np.asarray(weight, np.float64)
        everything = np.ones(len(classes), np.bool_)
        for role, (start, stop) in enumerate(spans(snapshot, rows)):
            counts = tables.bytes > 0 if role == LOADER else everything
            grid[:, role], share[:, role], busy[:, role] = kernels.spans(
                _since(start, snapshot), _since(stop, snapshot), task, ptr, offset, classes, counts, weight, x0, dx, cols
            )
        free = np.zeros(rows.stop - rows.start)
        for step in steps:
            of_step, _, at = free_of_step(snapshot, int(step))
            free[of_step.start - rows.start : of_step.stop - rows.start] = at
        ready = _since(snapshot.ready[rows], snapshot)
        for role, since in ((FEEDER, _since(snapshot.claim[rows], snapshot)), (MATH, free)):
            *_, wait[:, role] = kernels.spans(
                since, ready, task, ptr, offset, np.zeros_like(classes), everything, np.ones(1), x0, dx, cols
            )
    flat = (len(lanes) * len(ROLES), cols)
    return RoleFrame(x0, dx, *(a.reshape(flat) for a in (grid, share, busy, wait)))


def _since(times: np.ndarray, snapshot: Snapshot) -> np.ndarray:
    return (times - snapshot.origin).astype(np.float64)


def role_rects(snapshot: Snapshot, x0: float, x1: float, lanes: range, limit: int) -> RoleRects | None:
    """The records of ``lanes`` that [x0, x1) ns shows something of, None when there are more than ``limit``."""
    found: list[tuple[np.ndarray, ...]] = []
    count = 0
    for step in touching(snapshot, x0, x1):
        rows, lane, free = free_of_step(snapshot, int(step))
        last = np.maximum(snapshot.publish[rows], loaded(snapshot, rows)) - snapshot.origin
        first = np.minimum(snapshot.claim[rows] - snapshot.origin, free)
        at = np.flatnonzero((lane >= lanes.start) & (lane < lanes.stop) & (first < x1) & (last > x0))
        count += len(at)
        if count > limit:
            return None
        found.append((rows.start + at, lane[at], np.full(len(at), step), free[at]))
    if not found:
        none = np.zeros(0, np.int64)
        return RoleRects(none, none, none, np.zeros(0))
    return RoleRects(*(np.concatenate(column) for column in zip(*found, strict=True)))


def role_hit(snapshot: Snapshot, tables: GraphTables, time: float, lane: int, role: int) -> tuple[int, int] | None:
    """(step index, row) of the task that a role worked on at ``time`` (ns since origin): of several the one taken up last."""
    best = None
    for step in touching(snapshot, time, time + 1):
        rows = slice(*(int(p) for p in snapshot.lane_ptr[step, lane : lane + 2]))
        start, stop = (edge - snapshot.origin for edge in spans(snapshot, rows)[role])
        inside = (start <= time) & (time < stop)
        if role == LOADER:
            inside &= tables.bytes[tables.start[int(snapshot.steps["graph"][step])] + snapshot.task[rows]] > 0
        at = np.flatnonzero(inside)
        if len(at):
            best = int(step), rows.start + int(at[np.argmax(start[at])])
    return best
