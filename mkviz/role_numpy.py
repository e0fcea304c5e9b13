"""The sums of ``mkviz.role_kernels`` in plain numpy: slower, for places without numba, and the other opinion in the tests."""

from __future__ import annotations

import numpy as np

from mkviz.lod_numpy import spread


def _rows(lane_ptr, lane):
    first, stop = lane_ptr[:, lane], lane_ptr[:, lane + 1]
    rows = [np.arange(a, b) for a, b in zip(first, stop, strict=True)]
    return np.concatenate([*rows, np.zeros(0, np.int64)]), np.repeat(np.arange(len(lane_ptr)), stop - first)


def spans(start, stop, task, lane_ptr, offset, classes, counts, weight, x0, dx, cols):
    lanes, kinds = lane_ptr.shape[1] - 1, len(weight)
    grid = np.full((lanes, cols), 255, np.uint8)
    share, busy = np.zeros((lanes, cols), np.float32), np.zeros((lanes, cols), np.float32)
    for lane in range(lanes):
        rows, step = _rows(lane_ptr, lane)
        at = offset[step] + task[rows]
        rows, at = rows[counts[at]], at[counts[at]]
        time = spread((start[rows] - x0) / dx, (stop[rows] - x0) / dx, 1.0, classes[at].astype(np.int64), kinds, cols)
        best = np.argmax(time * weight[:, None], axis=0)
        won = np.take_along_axis(time, best[None], 0)[0]
        shown = won * weight[best] > 0
        grid[lane, shown], share[lane, shown] = best[shown], won[shown]
        busy[lane] = time.sum(0)
    return grid, share, busy


def held(begin, value, lane_ptr, step_end, x0, dx, cols):
    total, known = np.zeros(cols), np.zeros(cols)
    for lane in range(lane_ptr.shape[1] - 1):
        rows, step = _rows(lane_ptr, lane)
        rows, step = rows[value[rows] >= 0], step[value[rows] >= 0]
        if not len(rows):
            continue
        since = begin[rows].astype(np.float64)
        last = np.append(step[1:] != step[:-1], True)
        until = np.where(last, step_end[step], np.append(since[1:], 0))
        edges = (since - x0) / dx, (until - x0) / dx
        total += spread(*edges, value[rows].astype(np.float64), 0, 1, cols)[0]
        known += spread(*edges, 1.0, 0, 1, cols)[0]
    return total, known
