"""Landings: when the bytes of a step came into the rings of its SMs, as far as its records tell.

An SM's bytes land in the order in which its tasks use them.  At a reading of the ring's fill (:mod:`mkviz.ring_fill`) those of
all tasks before have landed, and as much more as the reading says; when a task's last bytes were seen (level 2) or it ended
(level 1), all of its own.  Between readings they count evenly, from the claim of the SM's first task with bytes on, unless a
task would end before its bytes are there: then they are all there just then.  On an SM without a reading the bytes of a task
count evenly from its begin until its last were seen, or its end.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mkviz.record import FLAG_BYTES_LAST
from mkviz.step_records import StepRecords


@dataclass(frozen=True, eq=False)
class Landings:
    """``size`` f64[n] bytes land evenly from ``start`` to ``stop`` (f64[n], ns since the step began; a loader may be ahead of
    it).  ``bytes`` in all, ``dated`` of them on SMs with readings."""

    start: np.ndarray
    stop: np.ndarray
    size: np.ndarray
    bytes: int
    dated: float


def landings(step: StepRecords, ring_bytes: int) -> Landings:
    """Of a step without lost records; ``ring_bytes``: how large an SM's ring is, 0: not known, then no reading counts."""
    at, events, sm = step.lanes, step.events, step.events["sm"].astype(np.int64)
    size = np.where(at.sound, step.bytes[events["task"]], 0).astype(np.float64)
    reading = at.sound & ((events["fill"] > 0) | (events["flags"] & FLAG_BYTES_LAST != 0)) & (ring_bytes > 0)
    read_on = np.zeros(step.sms, bool)
    read_on[sm[reading]] = True
    told = read_on[sm]
    evenly = ~told & (size > 0)
    start, stop, sizes = (part[evenly].astype(np.float64) for part in (at.begin, step.landed, size))
    total = int(size.sum())
    told &= at.sound
    if not told.any():
        return Landings(start, stop, sizes, total, 0.0)
    rows = np.flatnonzero(told)  # by SM, then begin: the order in which bytes are used
    after = np.cumsum(size[rows])
    before, sm, first = after - size[rows], sm[rows], np.append(True, np.diff(sm[rows]) > 0)
    bounds = np.flatnonzero(first), np.append(np.flatnonzero(first)[1:], len(rows)) - 1
    lane_end = after[bounds[1]][np.cumsum(first) - 1]  # with the bytes of all SMs before: one curve serves all
    apart = 2.0 * (step.makespan + 1)
    claim = np.clip(events["claim"][rows], step.begin - min(step.makespan, step.begin + (1 << 63)), step.end) - step.begin
    claim = np.minimum(np.where(size[rows] > 0, claim, step.makespan), at.begin[rows])
    since = np.minimum.reduceat(claim, bounds[0]) + sm[bounds[0]] * apart
    x_end = step.landed[rows] + sm * apart
    told = reading[rows]
    x = np.concatenate([since, (at.begin[rows] + sm * apart)[told], np.maximum.reduceat(x_end, bounds[0])])
    ahead = events["fill"][rows] * (ring_bytes / 16)
    y = np.concatenate([before[bounds[0]], np.minimum(before + ahead, lane_end)[told], after[bounds[1]]])
    x, y = _rising(x, y)
    late = np.interp(x_end, x, y) < after
    x, y = _rising(np.append(x, x_end[late]), np.append(y, after[late]))
    base = np.floor(x[:-1] / apart + 0.5) * apart
    grown = np.diff(y) > 0
    start, stop, sizes = (
        np.concatenate(pair)
        for pair in ((start, (x[:-1] - base)[grown]), (stop, (x[1:] - base)[grown]), (sizes, np.diff(y)[grown]))
    )
    return Landings(start, stop, sizes, total, float(after[-1]))


def _rising(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    order = np.lexsort((y, x))
    return x[order], np.maximum.accumulate(y[order])
