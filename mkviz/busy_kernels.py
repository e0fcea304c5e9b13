"""Busy kernels: SM time and landed bytes of a step of a large capture, in bins, as ``busy`` and ``landings`` have it in numpy.

Compiled with numba; import it where it is needed.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from mkviz.record import FLAG_BYTES_LAST, KIND_MASK, KIND_PHASES
from mkviz.sweep_kernels import BEGIN, END, FREE, ROW, TASK

NO_CHUNK = np.int64(0xFFFFFFFF)
SHORTEST = 1e-3  # ns in which bytes land, at least


@njit(cache=True, nogil=True)
def _bin_of(edges, time, at):
    """The bin that a time is in, from a bin near it; times beyond all are in the first and the last one."""
    while at > 0 and edges[at] > time:
        at -= 1
    while at + 2 < len(edges) and edges[at + 1] <= time:
        at += 1
    return at


@njit(cache=True, nogil=True)
def add_busy(times, ptr, op_of, offset, edges, first, busy):
    """Add the work of sound tasks to ``busy`` i64[ops, bins]; ``offset``: ns from the first of the ``edges`` to the step's
    begin, which is in bin ``first``."""
    for lane in range(len(ptr) - 1):
        at = first
        for k in range(ptr[lane], ptr[lane + 1]):
            start, stop = max(times[BEGIN, k], times[FREE, k]) + offset, times[END, k] + offset
            if stop <= start:
                continue
            at = _bin_of(edges, start, at)
            op, of = op_of[times[TASK, k]], at
            while stop > edges[of + 1]:
                busy[op, of] += edges[of + 1] - start
                start = edges[of + 1]
                of += 1
            busy[op, of] += stop - start


@njit(cache=True, nogil=True)
def _land(start, stop, size, offset, edges, at, landed):
    """Add bytes that land evenly from start to stop, ns since the step began; returns the bin in which they begin to."""
    start = max(start + offset, 0.0)
    stop = max(stop + offset, start + SHORTEST)
    at = _bin_of(edges, start, at)
    of, rate, rest = at, size / (stop - start), size
    while of + 2 < len(edges) and stop > edges[of + 1]:
        part = rate * (edges[of + 1] - start)
        landed[of] += part
        start, rest = np.float64(edges[of + 1]), rest - part
        of += 1
    landed[of] += rest
    return at


@njit(cache=True, nogil=True)
def _value(x, y, last, time, at):
    """(what the rising curve x, y of ``last`` + 1 points is at a time, the point at or before it), from a point near it."""
    while at > 0 and x[at] > time:
        at -= 1
    while at < last and x[at + 1] <= time:
        at += 1
    if at == last:
        return y[at], at
    return y[at] + (y[at + 1] - y[at]) / (x[at + 1] - x[at]) * (time - x[at]), at


@njit(cache=True, nogil=True)
def _chunks(task, flags, begin, publish, first, stop, chunk):
    """Set ``chunk`` per task as ``last_chunks`` does; returns whether any record tells of phases."""
    told = False
    for i in range(first, stop):
        if flags[i] & KIND_MASK == KIND_PHASES and task[i] < len(chunk):
            if not told:
                chunk[:] = NO_CHUNK
                told = True
            chunk[task[i]] = min(max(publish[i] - begin[i], 0), NO_CHUNK - 1)
    return told


@njit(cache=True, nogil=True)
def add_landings(times, ptr, task, flags, fill, claim, begin, publish, first, stop, since, until, early, size_of, ring, offset,
                 edges, at, chunk, landed):  # fmt: skip
    """Add what landed in a step to ``landed`` f64[bins] and return its bytes, and those dated by readings of the ring.

    ``early``: no claim counts as earlier (ns); ``size_of`` i64 per task; ``ring``: bytes of an SM's ring, 0: not known;
    ``offset``, ``at``: as for ``add_busy``; ``chunk`` i64 per task, to work in.
    """
    phases = _chunks(task, flags, begin, publish, first, stop, chunk)
    longest = np.int64(0)
    for lane in range(len(ptr) - 1):
        longest = max(longest, ptr[lane + 1] - ptr[lane])
    x, y, seen = np.empty(longest + 2), np.empty(longest + 2), np.empty(longest)
    late_x, late_y = np.empty(longest), np.empty(longest)
    total, dated, makespan = np.int64(0), np.int64(0), until - since
    for lane in range(len(ptr) - 1):
        a, z = ptr[lane], ptr[lane + 1]
        size, told, began = np.int64(0), False, makespan
        for k in range(a, z):
            t, i = times[TASK, k], np.int64(times[ROW, k])
            size += size_of[t]
            told |= ring > 0 and (fill[i] > 0 or flags[i] & FLAG_BYTES_LAST != 0)
            known = phases and chunk[t] != NO_CHUNK
            seen[k - a] = min(times[BEGIN, k] + chunk[t], times[END, k]) if known else times[END, k]
            if size_of[t] > 0:
                began = min(began, min(max(claim[i], early), until) - since)
            began = min(began, times[BEGIN, k])
        total += size
        if size == 0:
            continue
        if not told:
            for k in range(a, z):
                if size_of[times[TASK, k]] > 0:
                    at = _land(np.float64(times[BEGIN, k]), seen[k - a], np.float64(size_of[times[TASK, k]]), offset, edges, at,
                               landed)  # fmt: skip
            continue
        dated += size
        x[0], y[0], n, before, latest = began, 0.0, 0, np.int64(0), 0.0
        for k in range(a, z):  # the curve by the readings
            t, i = times[TASK, k], np.int64(times[ROW, k])
            latest = max(latest, seen[k - a])
            if fill[i] > 0 or flags[i] & FLAG_BYTES_LAST != 0:
                reading = min(before + fill[i] * (ring / 16), np.float64(size))
                n += 1
                place = n
                while x[place - 1] == times[BEGIN, k] and y[place - 1] > reading:  # of several at once the least first
                    x[place], y[place] = x[place - 1], y[place - 1]
                    place -= 1
                x[place], y[place] = times[BEGIN, k], reading
            before += size_of[t]
        n += 1
        x[n], y[n] = latest, size
        for k in range(1, n):
            y[k] = max(y[k], y[k - 1])
        late, near, after = 0, 0, np.int64(0)
        for k in range(a, z):  # tasks that would end before their bytes are there
            after += size_of[times[TASK, k]]
            value, near = _value(x, y, n, seen[k - a], near)
            if value < after:
                place = late
                while place > 0 and late_x[place - 1] > seen[k - a]:
                    late_x[place], late_y[place] = late_x[place - 1], late_y[place - 1]
                    place -= 1
                late_x[place], late_y[place] = seen[k - a], after
                late += 1
        then, there, i, j = x[0], y[0], 1, 0
        while i <= n or j < late:
            if j < late and (i > n or late_x[j] < x[i] or (late_x[j] == x[i] and late_y[j] < y[i])):
                now, here = late_x[j], max(there, late_y[j])
                j += 1
            else:
                now, here = x[i], max(there, y[i])
                i += 1
            if here > there:
                at = _land(then, now, here - there, offset, edges, at, landed)
            then, there = now, here
    return total, dated
