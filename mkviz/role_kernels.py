"""The loops of the roles' sub-lanes and the ring's fill, compiled by numba, or the same sums in numpy where numba is missing.

Unlike on an SM's lane, spans may overlap and come in any order.  ``lane_ptr`` holds the steps and lanes in view; times are ns
since origin.
"""

from __future__ import annotations

try:
    from numba import njit
except ImportError:
    from mkviz.role_numpy import held, spans
else:
    import numpy as np

    @njit(nogil=True, cache=True)
    def spans(start, stop, task, lane_ptr, offset, classes, counts, weight, x0, dx, cols):
        """dominant u8, share f32, busy f32 (all [lanes, cols]) of the spans start ... stop of tasks that ``counts``."""
        steps, lanes, kinds = lane_ptr.shape[0], lane_ptr.shape[1] - 1, len(weight)
        grid = np.full((lanes, cols), 255, np.uint8)
        share, busy = np.zeros((lanes, cols), np.float32), np.zeros((lanes, cols), np.float32)
        time = np.zeros((cols, kinds))
        for lane in range(lanes):
            time[:] = 0
            for s in range(steps):
                for i in range(lane_ptr[s, lane], lane_ptr[s, lane + 1]):
                    at = offset[s] + task[i]
                    left, right = max((start[i] - x0) / dx, 0.0), min((stop[i] - x0) / dx, float(cols))
                    if right <= left or not counts[at]:
                        continue
                    kind, first, last = classes[at], int(left), min(int(right), cols - 1)
                    if first == last:
                        time[first, kind] += right - left
                        continue
                    time[first, kind] += first + 1 - left
                    for j in range(first + 1, last):
                        time[j, kind] += 1.0
                    time[last, kind] += right - last
            for j in range(cols):
                best, total = 0.0, 0.0
                for k in range(kinds):
                    now = time[j, k]
                    total += now
                    if now * weight[k] > best:
                        best = now * weight[k]
                        grid[lane, j] = k
                        share[lane, j] = now
                busy[lane, j] = total
        return grid, share, busy

    @njit(nogil=True, cache=True)
    def _add(out, left, right, weight):
        cols = len(out)
        left, right = max(left, 0.0), min(right, float(cols))
        if right <= left:
            return
        first, last = int(left), min(int(right), cols - 1)
        if first == last:
            out[first] += (right - left) * weight
            return
        out[first] += (first + 1 - left) * weight
        for j in range(first + 1, last):
            out[j] += weight
        out[last] += (right - last) * weight

    @njit(nogil=True, cache=True)
    def held(begin, value, lane_ptr, step_end, x0, dx, cols):
        """Sums over lanes of a value read at each begin and held until the lane's next reading, at most to its step's end; and
        of the lanes of which it is known: both f64[cols], in columns.  A negative value is no reading."""
        total, known = np.zeros(cols), np.zeros(cols)
        for lane in range(lane_ptr.shape[1] - 1):
            for s in range(lane_ptr.shape[0]):
                now, since = -1.0, 0.0
                for i in range(lane_ptr[s, lane], lane_ptr[s, lane + 1]):
                    if value[i] < 0:
                        continue
                    at = (begin[i] - x0) / dx
                    if now >= 0:
                        _add(total, since, at, now)
                        _add(known, since, at, 1.0)
                    now, since = float(value[i]), at
                if now >= 0:
                    _add(total, since, (step_end[s] - x0) / dx, now)
                    _add(known, since, (step_end[s] - x0) / dx, 1.0)
        return total, known


__all__ = ["held", "spans"]
