"""Clocks: from SM cycles and host time to the trace's clock, with the error that is left.

Every SM counts cycles of its own, from its own zero and at a rate that follows the power state; the global timer is shared.
Anchors, pairs read at the same instant, tie them together.  A record's claim is global time already, so only the *rate* of its
SM matters: the zeros, which lie up to 10^7 cycles apart, never enter.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mkviz.errors import MkvizError

WINDOW = 16  # anchors of one clock that a fit looks back on: half a minute
SPACING = 2 * 10**9  # ns between anchors that are kept once a clock has been seen for long enough
KEPT = 1 << 16  # anchors kept for traces that have not fetched them yet

ANCHOR = np.dtype([("sm", "<i4"), ("step", "<i8"), ("ns", "<i8"), ("cycles", "<u8")])
"""One anchor: global ns and SM cycles of the same instant; ``sm`` ``HOST`` pairs global ns with host ns (in ``cycles``)."""
HOST = -1


@dataclass(frozen=True)
class ClockFit:
    """Piecewise-linear map y(x): segments start at ``x0`` (i64, ascending), pass through (x0, ``y0``) with slope ``rate``.

    ``error`` is the largest distance of an anchor from its segment, in units of x.
    """

    x0: np.ndarray
    y0: np.ndarray
    offset: np.ndarray  # f64: what least squares adds to y0, kept apart because y0 does not fit a double
    rate: np.ndarray
    error: float

    def _segment(self, x):
        return np.clip(np.searchsorted(self.x0, x, side="right") - 1, 0, len(self.x0) - 1)

    def rate_at(self, x):
        """dy/dx at x (scalar or array); before the first and after the last anchor the nearest segment's."""
        return self.rate[self._segment(x)]

    def at(self, x):
        """y(x), i64, for x an i64 scalar or array."""
        s = self._segment(x)
        return self.y0[s] + np.rint((x - self.x0[s]) * self.rate[s] + self.offset[s]).astype(np.int64)


def fit(x: Sequence[int], y: Sequence[int], tolerance: float = 200.0) -> ClockFit:
    """Fit anchors, i64, x strictly ascending, at least two of them.

    A segment grows by least squares for as long as each of its anchors stays within ``tolerance`` (units of x) of the line;
    then the next one begins at the last anchor of the former, so that a step of the frequency is followed instead of averaged.
    """
    x, y = np.asarray(x, np.int64), np.asarray(y, np.int64)
    if len(x) < 2 or np.any(np.diff(x) <= 0):
        raise MkvizError(f"clock fit: {len(x)} anchors", "at least two, in strictly ascending time")
    segments, first = [], 0
    while first < len(x) - 1:
        stop, line = first + 2, _line(x[first : first + 2], y[first : first + 2])
        while stop < len(x):
            longer = _line(x[first : stop + 1], y[first : stop + 1])
            if longer[2] > tolerance:
                break
            stop, line = stop + 1, longer
        segments.append((x[first], y[first], *line))
        first = stop - 1
    x0, y0, offset, rate, error = zip(*segments, strict=True)
    return ClockFit(np.array(x0), np.array(y0), np.array(offset), np.array(rate), max(error))


def _line(x: np.ndarray, y: np.ndarray) -> tuple[float, float, float]:
    """(offset, rate, largest residual in units of x) of the least-squares line, relative to the first anchor."""
    dx, dy = (x - x[0]).astype(np.float64), (y - y[0]).astype(np.float64)
    mx, my = dx.mean(), dy.mean()
    rate = float(((dx - mx) * (dy - my)).sum() / ((dx - mx) ** 2).sum())
    offset = float(my - rate * mx)
    residual = np.abs(dy - (offset + rate * dx)).max()
    return offset, rate, float(residual / abs(rate)) if rate else math.inf


class Clocks:
    """The clocks of one recording.  ``cycles_per_ns`` is the rate until an SM has anchors enough for one of its own;
    ``fixed`` says that it is exact (the cpu backend counts nanoseconds: rate 1, error 0)."""

    def __init__(self, cycles_per_ns: float = 1.0, *, fixed: bool = False, tolerance_ns: float = 200.0):
        if not cycles_per_ns > 0:
            raise MkvizError(f"clocks: cycles_per_ns {cycles_per_ns}", "a positive rate, e.g. 1.98 for 1.98 GHz")
        self.cycles_per_ns, self.fixed, self.tolerance_ns = float(cycles_per_ns), fixed, tolerance_ns
        self.rejected = 0  # anchors that ran backwards
        self.count = 0  # anchors taken
        self._anchors: deque = deque(maxlen=KEPT)
        self._recent: dict[int, list[tuple[int, int]]] = {}
        self._first: dict[int, int] = {}
        self._fits: dict[int, ClockFit] = {}
        self._stale: set[int] = set()
        self._gcd, self._steps = 0, 0  # of the ns between neighbouring anchors

    def add(self, sm: int, ns: int, cycles: int, step: int = 0) -> None:
        """An anchor of one SM.  One that runs backwards is rejected and counted; one that follows the last too closely to
        tell a rate (closer than a quarter of the time since the first, and than 2 s) is ignored."""
        if self._take(sm, ns, cycles):
            self._keep(sm, step, ns, cycles)
            if len(recent := self._recent[sm]) > 1:
                self._gcd, self._steps = math.gcd(self._gcd, ns - recent[-2][0]), self._steps + 1

    def add_host(self, ns: int, host_ns: int) -> None:
        """The same instant on the trace's clock and on the host's (``time.monotonic_ns``)."""
        if self._take(HOST, host_ns, ns):
            self._keep(HOST, 0, ns, host_ns)

    def _take(self, clock: int, x: int, y: int) -> bool:
        recent = self._recent.setdefault(clock, [])
        if recent:
            last_x, last_y = recent[-1]
            if x < last_x or y < last_y or (x == last_x) != (y == last_y):
                self.rejected += 1
                return False
            if x == last_x or x - last_x < min(SPACING, (last_x - self._first[clock]) // 4):
                return False
        self._first.setdefault(clock, x)
        recent.append((x, y))
        del recent[:-WINDOW]
        self._stale.add(clock)
        return True

    def _keep(self, sm: int, step: int, ns: int, cycles: int) -> None:
        self._anchors.append((sm, step, ns, cycles))
        self.count += 1

    def since(self, count: int) -> np.ndarray:
        """ANCHOR[]: what was taken after the first ``count`` anchors, as far as it is still kept."""
        new = min(self.count - count, len(self._anchors))
        return np.array([self._anchors[i] for i in range(len(self._anchors) - new, len(self._anchors))], ANCHOR)

    def fit_of(self, sm: int) -> ClockFit | None:
        """The fit of one SM's cycles over global ns (``HOST``: of global over host ns), or None with fewer than two anchors."""
        if sm in self._stale:
            self._stale.discard(sm)
            if len(self._recent[sm]) >= 2:
                self._fits[sm] = fit(*zip(*self._recent[sm], strict=True), self.tolerance_ns)
        return self._fits.get(sm)

    def to_ns(self, sm: np.ndarray, claim: np.ndarray, cycles: np.ndarray) -> np.ndarray:
        """i64[k, m]: cycle deltas u32[k, m] of tasks claimed at ``claim`` (i64[k], ns) on ``sm`` (int[k]) in ns.

        Rounding is monotonic: stamps that are ordered in cycles stay ordered in ns.
        """
        if self.fixed and self.cycles_per_ns == 1.0:
            return cycles.astype(np.int64)
        rate = np.full(len(sm), self._common_rate())
        if not self.fixed:
            for s in np.unique(sm).tolist():
                if (f := self.fit_of(s)) is not None:
                    mine = sm == s
                    rate[mine] = f.rate_at(claim[mine])
        return np.rint(cycles / rate[:, None]).astype(np.int64)

    def _common_rate(self) -> float:
        """For an SM without a fit of its own: the median of those that have one, else the nominal rate."""
        rates = [] if self.fixed else [f.rate[-1] for f in self._sm_fits()]
        return float(np.median(rates)) if rates else self.cycles_per_ns

    def _sm_fits(self) -> list[ClockFit]:
        return [f for sm in list(self._recent) if sm != HOST and (f := self.fit_of(sm)) is not None]

    def from_host(self, host_ns: int) -> int:
        """Host time on the trace's clock; the identity until ``add_host`` has been called (one clock, as on the cpu
        backend)."""
        if (f := self.fit_of(HOST)) is not None:
            return int(f.at(host_ns))
        pairs = self._recent.get(HOST)
        return host_ns + pairs[0][1] - pairs[0][0] if pairs else host_ns

    @property
    def tick_ns(self) -> int:
        """Tick of the global timer: what all intervals between anchors are multiples of (0: fewer than eight to tell)."""
        return self._gcd if self._steps >= 8 else 0

    @property
    def error_ns(self) -> float | None:
        """Largest distance of an anchor from its fit, plus a tick; 0 for a fixed rate; None while too few anchors have come."""
        if self.fixed:
            return 0.0
        errors = [f.error for f in self._sm_fits()]
        return max(errors) + self.tick_ns if errors and self.tick_ns else None
