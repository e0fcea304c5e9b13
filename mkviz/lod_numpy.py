"""The sums of ``mkviz.lod_kernels`` in plain numpy: slower, for places without numba, and the other opinion in the tests."""

from __future__ import annotations

import numpy as np


def _sum(group, weight, groups):
    return np.bincount(group, weight, groups).astype(np.float64)  # without entries bincount forgets the weights' type


def spread(start, stop, weight, group, groups, cols):
    """f64[groups, cols]: overlap of each [start, stop) (in columns) with each column, times weight, summed per group."""
    a, b = np.clip(start, 0, cols), np.clip(stop, 0, cols)
    keep = b > a
    a, b, weight, group = a[keep], b[keep], np.broadcast_to(weight, keep.shape)[keep], np.broadcast_to(group, keep.shape)[keep]
    first, last = np.floor(a).astype(np.int64), np.minimum(np.floor(b).astype(np.int64), cols - 1)
    at, size = group * cols, groups * cols
    one = first == last
    out = _sum((at + first)[one], ((b - a) * weight)[one], size)
    many = ~one
    out += _sum((at + first)[many], ((first + 1 - a) * weight)[many], size)
    out += _sum((at + last)[many], ((b - last) * weight)[many], size)
    rise = _sum((group * (cols + 1) + first + 1)[many], weight[many], groups * (cols + 1))
    fall = _sum((group * (cols + 1) + last)[many], weight[many], groups * (cols + 1))
    inner = np.cumsum((rise - fall).reshape(groups, cols + 1), axis=1)[:, :cols]
    return out.reshape(groups, cols) + inner


def _lane(begin, end, ready, lane_ptr, step_begin, origin, lane):
    """Rows, step, begin, end, ready and free of one lane's records, and when the lane fell free at the end of each step."""
    first, stop = lane_ptr[:, lane], lane_ptr[:, lane + 1]
    rows = np.concatenate([np.arange(a, b) for a, b in zip(first, stop, strict=True)] + [np.zeros(0, np.int64)])
    step = np.repeat(np.arange(len(lane_ptr)), stop - first)
    b, e, r = ((x[rows] - origin).astype(np.float64) for x in (begin, end, ready))
    before = np.maximum.accumulate(np.concatenate([[-np.inf], e]))
    free = np.maximum(before[:-1], np.maximum.accumulate(step_begin)[step])
    after = np.maximum(before[np.cumsum(stop - first)], np.maximum.accumulate(step_begin))
    return rows, step, b, e, r, free, after


def _stops(step_begin, step_end):
    return np.minimum(step_end, np.append(step_begin[1:], np.inf))


def image(begin, end, ready, task, lane_ptr, step_begin, step_end, offset, classes, size, part, shares, weight, origin, x0, dx,
          cols):  # fmt: skip
    lanes, kinds = lane_ptr.shape[1] - 1, len(weight)
    grid = np.full((lanes, cols), 255, np.uint8)
    share, busy, wait = (np.zeros((lanes, cols), np.float32) for _ in range(3))
    tail, rate = np.zeros(cols), np.zeros(cols)
    for lane in range(lanes):
        rows, step, b, e, r, free, after = _lane(begin, end, ready, lane_ptr, step_begin, origin, lane)
        b_, e_, r_, free_ = ((x - x0) / dx for x in (b, e, r, free))
        at = offset[step] + task[rows]
        time = spread(b_, e_, 1.0, classes[at].astype(np.int64), kinds, cols)
        best = np.argmax(time * weight[:, None], axis=0)
        won = np.take_along_axis(time, best[None], 0)[0]
        shown = won * weight[best] > 0
        grid[lane, shown], share[lane, shown] = best[shown], won[shown]
        busy[lane] = time.sum(0)
        wait[lane] = spread(free_, np.maximum(r_, free_), 1.0, 0, 1, cols)[0]
        tail += spread((after - x0) / dx, (_stops(step_begin, step_end) - x0) / dx, 1.0, 0, 1, cols)[0]
        rate += spread(b_, e_, size[at] * shares[step, part[at]] / np.maximum(e - b, 1e-9), 0, 1, cols)[0]
    return grid, share, busy, wait, tail, rate


def rects(begin, end, ready, lane_ptr, step_begin, origin, x0, x1, limit):
    parts = []
    for lane in range(lane_ptr.shape[1] - 1):
        rows, step, b, e, r, free, _ = _lane(begin, end, ready, lane_ptr, step_begin, origin, lane)
        hit = (free < x1) & (((b < x1) & (e > x0)) | ((r > free) & (r > x0)))
        parts.append((rows[hit], np.full(hit.sum(), lane), step[hit], free[hit]))
    if not parts:
        return np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0)
    return tuple(np.concatenate(column)[: limit + 1] for column in zip(*parts, strict=True))


def totals(begin, end, ready, task, op, lane_ptr, step_begin, step_end, offset, size, part, shares, ops, origin, x0, x1):
    count, busy, wait, read, tail = np.zeros(ops, np.int64), np.zeros(ops), np.zeros(ops), np.zeros(ops), 0.0
    for lane in range(lane_ptr.shape[1] - 1):
        rows, step, b, e, r, free, after = _lane(begin, end, ready, lane_ptr, step_begin, origin, lane)
        kind = op[rows]
        inside = np.maximum(np.minimum(e, x1) - np.maximum(b, x0), 0)
        count += np.bincount(kind[inside > 0], minlength=ops)
        busy += _sum(kind, inside, ops)
        waited = np.maximum(np.minimum(r, x1) - np.maximum(free, x0), 0)
        wait += _sum(kind, waited, ops)
        at = offset[step] + task[rows]
        read += _sum(kind, size[at] * shares[step, part[at]] * inside / np.maximum(e - b, 1e-9), ops)
        tail += np.maximum(np.minimum(_stops(step_begin, step_end), x1) - np.maximum(after, x0), 0).sum()
    return count, busy, wait, read, tail
