"""Ring fill: how full an SM's shared-memory ring is, as far as records tell.

A record holds one reading: at the task's begin, the share of the ring that had landed and was not consumed, in sixteenths,
rounded down (15: that much or more).  Between readings nothing is known; a view holds each until the next one on the same SM,
at most until its step ends.  A 0 where bytes did not come last is no reading: the task took nothing from the ring, or the
kernel did not look (at level 1 the megakernel looks at every sixteenth task; where bytes came last and it did not look, 0
stands for what had only just landed).  Chunks that are on their way and have not landed are not in it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from mkviz import role_kernels
from mkviz.record import FLAG_BYTES_LAST

if TYPE_CHECKING:
    from mkviz.store import Snapshot


@dataclass(frozen=True, eq=False)
class RingFill:
    """Over columns of ``dx`` ns from ``x0``: ``mean`` f64[cols], share of the ring (0 to 1) over the SMs of which a reading
    holds, NaN where there is none; ``readings``: how many there were in all."""

    x0: float
    dx: float
    mean: np.ndarray
    readings: int


def stages_told(fill: np.ndarray) -> int:
    """How many chunks the ring has whose readings are just those (sixteenths) that occur; 0: it cannot be told."""
    seen = set(np.unique(fill).tolist())
    return next((n for n in range(2, 17) if seen == {min(15, 16 * k // n) for k in range(n + 1)}), 0)


def readings(snapshot: Snapshot, rows: slice) -> np.ndarray:
    """i8 per record: sixteenths of the ring at begin, -1 where that is no reading."""
    fill = snapshot.fill[rows].astype(np.int8)
    return np.where((fill == 0) & (snapshot.flags[rows] & FLAG_BYTES_LAST == 0), np.int8(-1), fill)


def ring_fill(snapshot: Snapshot, x0: float, x1: float, cols: int, lanes: range, kernels=role_kernels) -> RingFill:
    """[x0, x1) ns in ``cols`` columns for the SMs ``lanes`` (consecutive)."""
    steps, dx = snapshot.steps_in(x0, x1), (x1 - x0) / cols
    if not len(steps):
        return RingFill(x0, dx, np.full(cols, np.nan), 0)
    rows = slice(int(snapshot.lane_ptr[steps[0], 0]), int(snapshot.lane_ptr[steps[-1], -1]))
    if not (snapshot.fill[rows].any() or (snapshot.flags[rows] & FLAG_BYTES_LAST).any()):  # most sources have no reading at all
        return RingFill(x0, dx, np.full(cols, np.nan), 0)
    ptr = snapshot.lane_ptr[steps, lanes.start : lanes.stop + 1] - rows.start
    value = readings(snapshot, rows)
    at = (snapshot.begin[rows] - snapshot.origin).astype(np.float64)
    end = (snapshot.steps["end"][steps] - snapshot.origin).astype(np.float64)
    total, known = kernels.held(at, value, ptr, end, x0, dx, cols)
    mean = np.divide(total / 16, known, out=np.full(cols, np.nan), where=known > 1e-9)
    return RingFill(x0, dx, mean, int((value >= 0).sum()))
