"""The loops of the level of detail, compiled by numba, or the same sums in numpy where numba is missing.

Every lane is walked from the begin of the first step in view, so that the running end (``free``) is right even when records
overlap.  ``lane_ptr`` holds only the steps in view; ``step_begin``, ``step_end`` are f64 ns since origin.  A task reads
``size`` bytes times the step's share of its ``part``.
"""

from __future__ import annotations

try:
    from numba import njit
except ImportError:
    from mkviz.lod_numpy import image, rects, totals
else:
    import numpy as np

    @njit(nogil=True, cache=True)
    def _spread(out, row, a, b):
        """Add the overlap of [a, b) (in columns) with each column to ``out[row]``."""
        cols = out.shape[1]
        a, b = max(a, 0.0), min(b, float(cols))
        if b <= a:
            return
        first, last = int(a), min(int(b), cols - 1)
        if first == last:
            out[row, first] += b - a
            return
        out[row, first] += first + 1 - a
        for j in range(first + 1, last):
            out[row, j] += 1.0
        out[row, last] += b - last

    @njit(nogil=True, cache=True)
    def _image(begin, end, ready, task, lane_ptr, step_begin, step_end, offset, classes, size, part, shares, weight, origin, x0,
               dx, cols):  # fmt: skip
        steps, lanes, kinds = lane_ptr.shape[0], lane_ptr.shape[1] - 1, len(weight)
        x1, scale = x0 + dx * cols, 1.0 / dx
        grid = np.full((lanes, cols), 255, np.uint8)
        share, busy = np.zeros((lanes, cols), np.float32), np.zeros((lanes, cols), np.float32)
        wait, tail, rate = np.zeros((lanes, cols)), np.zeros((1, cols)), np.zeros(cols)
        time = np.zeros((cols, kinds))
        for lane in range(lanes):
            time[:] = 0
            free = -np.inf
            for s in range(steps):
                free = max(free, step_begin[s])
                for i in range(lane_ptr[s, lane], lane_ptr[s, lane + 1]):
                    if free >= x1:
                        break
                    e, r = float(end[i] - origin), float(ready[i] - origin)
                    if r > free and r > x0:
                        _spread(wait, lane, (free - x0) * scale, (r - x0) * scale)
                    free = max(free, e)
                    b = float(begin[i] - origin)
                    if e <= x0 or b >= x1 or e <= b:
                        continue
                    at = offset[s] + task[i]
                    kind, flow = classes[at], size[at] * shares[s, part[at]] / (e - b)
                    left, right = max((b - x0) * scale, 0.0), min((e - x0) * scale, float(cols))
                    first, last = int(left), min(int(right), cols - 1)
                    if first == last:
                        time[first, kind] += right - left
                        rate[first] += (right - left) * flow
                        continue
                    time[first, kind] += first + 1 - left
                    rate[first] += (first + 1 - left) * flow
                    for j in range(first + 1, last):
                        time[j, kind] += 1.0
                        rate[j] += flow
                    time[last, kind] += right - last
                    rate[last] += (right - last) * flow
                stop = step_end[s] if s + 1 == steps else min(step_end[s], step_begin[s + 1])
                _spread(tail, 0, (free - x0) * scale, (stop - x0) * scale)
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
        return grid, share, busy, wait, tail[0], rate

    @njit(nogil=True, cache=True)
    def rects(begin, end, ready, lane_ptr, step_begin, origin, x0, x1, limit):
        """Rows of the records that touch [x0, x1) by work or wait; stops one past ``limit``."""
        steps, lanes = lane_ptr.shape[0], lane_ptr.shape[1] - 1
        row, lane_of, step_of = np.empty(limit + 1, np.int64), np.empty(limit + 1, np.int64), np.empty(limit + 1, np.int64)
        free_of = np.empty(limit + 1)
        n = 0
        for lane in range(lanes):
            free = -np.inf
            for s in range(steps):
                free = max(free, step_begin[s])
                for i in range(lane_ptr[s, lane], lane_ptr[s, lane + 1]):
                    if free >= x1 or n > limit:
                        break
                    b, e, r = float(begin[i] - origin), float(end[i] - origin), float(ready[i] - origin)
                    if (b < x1 and e > x0) or (r > free and r > x0):
                        row[n], lane_of[n], step_of[n], free_of[n] = i, lane, s, free
                        n += 1
                    free = max(free, e)
        return row[:n], lane_of[:n], step_of[:n], free_of[:n]

    @njit(nogil=True, cache=True)
    def totals(begin, end, ready, task, op, lane_ptr, step_begin, step_end, offset, size, part, shares, ops, origin, x0, x1):
        """Per op: tasks that touch [x0, x1), busy ns, wait ns, bytes; and the tail ns of all lanes."""
        steps, lanes = lane_ptr.shape[0], lane_ptr.shape[1] - 1
        count, busy, wait, read = np.zeros(ops, np.int64), np.zeros(ops), np.zeros(ops), np.zeros(ops)
        tail = 0.0
        for lane in range(lanes):
            free = -np.inf
            for s in range(steps):
                free = max(free, step_begin[s])
                for i in range(lane_ptr[s, lane], lane_ptr[s, lane + 1]):
                    if free >= x1:
                        break
                    b, e, r = float(begin[i] - origin), float(end[i] - origin), float(ready[i] - origin)
                    wait[op[i]] += max(0.0, min(r, x1) - max(free, x0)) if r > free else 0.0
                    inside = min(e, x1) - max(b, x0)
                    if inside > 0:
                        count[op[i]] += 1
                        busy[op[i]] += inside
                        at = offset[s] + task[i]
                        read[op[i]] += size[at] * shares[s, part[at]] * inside / (e - b)
                    free = max(free, e)
                stop = step_end[s] if s + 1 == steps else min(step_end[s], step_begin[s + 1])
                tail += max(0.0, min(stop, x1) - max(free, x0))
        return count, busy, wait, read, tail

    def image(*args):
        """dominant u8, share, busy, wait f32 (all [lanes, cols]), tail lanes and bytes/ns f64[cols]"""
        grid, share, busy, wait, tail, rate = _image(*args)
        return grid, share, busy, wait.astype(np.float32), tail, rate


__all__ = ["image", "rects", "totals"]
