"""Level of detail: what a view of given width shows of a snapshot, by exact areas.

An image frame says for every lane and pixel column which class of task took most of the time, and how much was busy and how
much was wait.  A rect frame lists the tasks themselves, for views that hold few of them.  Neither knows anything of Bokeh.

A lane's time within a step divides at its tasks: *busy* from begin to end, *wait* from the moment the lane was free (the
step's begin, or the end before) to ready, *tail* from the last end to the step's end.  Ready to begin stays unclaimed here.
Times are float ns since the snapshot's origin.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from mkviz import lod_kernels
from mkviz.step_bytes import parts_of, shares_of

if TYPE_CHECKING:
    from mkviz.protocols import StepInfo
    from mkviz.store import Snapshot

NONE = 255  # class of a pixel in which nothing ran


class GraphTables:
    """Per-task columns of all graphs of a snapshot, end to end.

    ``op`` u8 (index into snapshot.ops), ``layer`` i16, ``bytes`` f64 as the graph counts them, and ``part`` u16, of which steps
    read shares (:meth:`shares`).  Task t of graph g is row ``start[g] + t``.
    """

    def __init__(self, snapshot: Snapshot):
        self.ids = tuple(snapshot.graphs)
        graphs = [graph for graph, _ in snapshot.graphs.values()]
        lengths = [len(g) for g in graphs]
        self.start = dict(zip(self.ids, np.cumsum([0, *lengths[:-1]]).tolist(), strict=True)) if graphs else {}
        index = {op: i for i, op in enumerate(snapshot.ops)}
        maps = [np.array([index[op] for op in g.ops], np.uint8)[g.op] for g in graphs]
        self.op = np.concatenate([*maps, np.zeros(0, np.uint8)])
        self.layer = np.concatenate([*(g.layer for g in graphs), np.zeros(0, np.int16)])
        self.bytes = np.concatenate([*(g.bytes for g in graphs), np.zeros(0)]).astype(np.float64)
        self.part = np.concatenate([*(parts_of(g).part for g in graphs), np.zeros(0, np.uint16)])
        self._most = max((len(parts_of(g)) for g in graphs), default=1)
        self._kept: dict[int, tuple[StepInfo, np.ndarray]] = {}  # shares, by step

    def offsets(self, snapshot: Snapshot) -> np.ndarray:
        """i64[C]: first row of each kept step's graph."""
        return np.array([self.start[g] for g in snapshot.steps["graph"].tolist()], np.int64)

    def shares(self, snapshot: Snapshot, rows: np.ndarray) -> np.ndarray:
        """f64[len(rows), parts]: what the steps in these rows of ``snapshot.steps`` read, over what their graphs count."""
        out = np.ones((len(rows), self._most))
        if self._most == 1:
            return out
        if len(self._kept) > 2 * len(snapshot.infos):  # most of them are of steps that have made room
            self._kept.clear()
        for i, row in enumerate(rows.tolist()):
            info = snapshot.infos[row]
            kept = self._kept.get(info.step)
            if kept is None or kept[0] is not info:
                kept = self._kept[info.step] = info, shares_of(parts_of(snapshot.graphs[info.graph][0]), info)
            out[i, : len(kept[1])] = kept[1]
        return out

    def read(self, snapshot: Snapshot, step: np.ndarray, task: np.ndarray) -> np.ndarray:
        """f64[n]: bytes that tasks (i64[n], as their graphs number them) read in the steps of these rows (i64[n])."""
        rows, of = np.unique(step, return_inverse=True)
        at = self.offsets(snapshot)[step] + task
        return self.bytes[at] * self.shares(snapshot, rows)[of.reshape(-1), self.part[at]]


@dataclass(frozen=True, eq=False)
class ImageFrame:
    """``cols`` columns of ``dx`` ns from ``x0``.

    ``grid`` u8[lanes, cols]: class with the largest weighted share (NONE: nothing); ``share``, ``busy``, ``wait`` f32 likewise:
    share of the pixel's time taken by that class, by any task, by waiting.  ``busy_lanes``, ``waiting_lanes``, ``tail_lanes``
    f64[cols]: mean number of lanes; ``rate`` f64[cols]: bytes/ns that the tasks read, spread evenly from begin to end.
    """

    x0: float
    dx: float
    grid: np.ndarray
    share: np.ndarray
    busy: np.ndarray
    wait: np.ndarray
    busy_lanes: np.ndarray
    waiting_lanes: np.ndarray
    tail_lanes: np.ndarray
    rate: np.ndarray

    @property
    def cols(self) -> int:
        return self.grid.shape[1]


@dataclass(frozen=True, eq=False)
class RectFrame:
    """The records that touch a view by work or wait.

    ``row`` i64[n] of the snapshot, ``lane``, ``step`` i64[n] (index of the step) and ``free`` f64[n], the ns since origin from
    which the lane was free for the task.
    """

    row: np.ndarray
    lane: np.ndarray
    step: np.ndarray
    free: np.ndarray


@dataclass(frozen=True, eq=False)
class Summary:
    """Exact totals of a range.

    Per op of the snapshot: ``count`` i64 (tasks that touch the range), ``busy`` ns, ``wait`` ns, ``bytes`` (each task's share).
    Over all lanes: ``tail`` and ``stepped`` ns (lane time inside steps); and how many ``steps`` it touches.
    """

    count: np.ndarray
    busy: np.ndarray
    wait: np.ndarray
    bytes: np.ndarray
    tail: float
    stepped: float
    steps: int

    @property
    def busy_share(self) -> float:
        return float(self.busy.sum()) / self.stepped if self.stepped else 0.0

    @property
    def wait_share(self) -> float:
        return float(self.wait.sum()) / self.stepped if self.stepped else 0.0

    @property
    def tail_share(self) -> float:
        return self.tail / self.stepped if self.stepped else 0.0

    @property
    def unbegun_share(self) -> float:
        """What is left: a task was ready and had not begun."""
        return max(0.0, 1 - self.busy_share - self.wait_share - self.tail_share) if self.stepped else 0.0


def _select(snapshot: Snapshot, tables: GraphTables, x0: float, x1: float):
    """Kernel arguments for the steps that touch [x0, x1): step rows, begin and end f64 ns, table offsets."""
    rows = snapshot.steps_in(x0, x1)
    begin, end = ((snapshot.steps[k][rows] - snapshot.origin).astype(np.float64) for k in ("begin", "end"))
    return rows, begin, end, tables.offsets(snapshot)[rows]


def image_frame(snapshot: Snapshot, tables: GraphTables, x0: float, x1: float, cols: int,
                classes: np.ndarray, weight: np.ndarray, kernels=lod_kernels) -> ImageFrame:  # fmt: skip
    """Divide [x0, x1) ns into ``cols`` columns.

    ``classes`` u8 per row of ``tables``; ``weight`` f64[K] multiplies a class's share when the dominant one is chosen (0: never
    shown).
    """
    rows, begin, end, offset = _select(snapshot, tables, x0, x1)
    dx = (x1 - x0) / cols
    out = kernels.image(
        snapshot.begin, snapshot.end, snapshot.ready, snapshot.task, snapshot.lane_ptr[rows], begin, end, offset,
        classes, tables.bytes, tables.part, tables.shares(snapshot, rows), np.asarray(weight, np.float64), snapshot.origin, x0,
        dx, cols,
    )  # fmt: skip
    grid, share, busy, wait, tail, rate = out
    return ImageFrame(x0, dx, grid, share, busy, wait, busy.sum(0, dtype=float), wait.sum(0, dtype=float), tail, rate)


def rect_frame(
    snapshot: Snapshot, tables: GraphTables, x0: float, x1: float, limit: int, kernels=lod_kernels, lanes: range | None = None
) -> RectFrame | None:
    """The tasks of [x0, x1) on ``lanes`` (consecutive; None: all), None when there are more than ``limit``."""
    lanes = range(snapshot.lanes) if lanes is None else lanes
    rows, begin, _, _ = _select(snapshot, tables, x0, x1)
    lane_ptr = snapshot.lane_ptr[rows, lanes.start : lanes.stop + 1]
    found, lane, step, free = kernels.rects(
        snapshot.begin, snapshot.end, snapshot.ready, lane_ptr, begin, snapshot.origin, x0, x1, limit
    )
    if len(found) > limit:
        return None
    return RectFrame(found, lane + lanes.start, rows[step], free)


def summary(snapshot: Snapshot, tables: GraphTables, x0: float, x1: float, kernels=lod_kernels) -> Summary:
    rows, begin, end, offset = _select(snapshot, tables, x0, x1)
    count, busy, wait, read, tail = kernels.totals(
        snapshot.begin, snapshot.end, snapshot.ready, snapshot.task, snapshot.op, snapshot.lane_ptr[rows], begin, end, offset,
        tables.bytes, tables.part, tables.shares(snapshot, rows), len(snapshot.ops), snapshot.origin, x0, x1,
    )  # fmt: skip
    inside = (np.minimum(end, x1) - np.maximum(begin, x0)).sum()
    return Summary(count, busy, wait, read, tail, float(inside) * snapshot.lanes, len(rows))
