"""Blame kernels: the blame path and the longest chain of one step of a large capture, as ``blame`` has them in Python.

Compiled with numba; import it where it is needed.
"""

from __future__ import annotations

from heapq import heappop, heappush

import numpy as np
from numba import njit

from mkviz.blame import CAUSES, NO_PRODUCER, UNRECORDED
from mkviz.hop_kernels import met_by
from mkviz.record import FLAG_BYTES_LAST
from mkviz.sweep_kernels import BEGIN, DOUBT, END, FREE, PUBLISHED, READY, ROW, TASK, clip

COMPUTE, PUBLISH, HOP, STARVED, OVERHEAD, TAIL, UNKNOWN = range(len(CAUSES))


@njit(cache=True, nogil=True)
def _cut(cause, op, start, cursor, sums):
    """Charge what lies between ``start`` and the cursor; returns the new cursor."""
    if start >= cursor:
        return cursor
    sums[cause, op, 0] += 1
    sums[cause, op, 1] += cursor - start
    return start


@njit(cache=True, nogil=True)
def _last_producer(times, task, wait_ptr, wait_counter, wait_need, ptr, producers, row_of, at, rows):
    if wait_ptr[task] == wait_ptr[task + 1]:
        return NO_PRODUCER
    last = UNRECORDED
    for w in range(wait_ptr[task], wait_ptr[task + 1]):
        c = wait_counter[w]
        j = met_by(times, row_of, producers, ptr[c], ptr[c + 1], wait_need[w], at, rows)
        if j >= 0:
            k = row_of[producers[j]]
            if last < 0 or times[PUBLISHED, k] > times[PUBLISHED, last]:
                last = k
    return last


@njit(cache=True, nogil=True)
def add_path(times, lanes, flags, claim, since, until, wait_ptr, wait_counter, wait_need, ptr, producers, op_of, row_of, sums):
    """Add the segments of a step's path, its ``sums`` i64[causes, ops + 1, 2]: how many and their ns, by cause and op, the last
    for none.  ``lanes``: which of ``times`` are of each lane; ``row_of`` i64 per task, to work in."""
    n, none = times.shape[1], sums.shape[1] - 1
    holder, seen = np.empty(n, np.int64), np.zeros(n, np.bool_)
    at, rows = np.empty(len(producers), np.int64), np.empty(len(producers), np.int64)
    row_of[:] = -1
    row = -1
    for lane in range(len(lanes) - 1):
        newest = -1
        for k in range(lanes[lane], lanes[lane + 1]):
            holder[k] = newest
            if newest < 0 or times[END, k] >= times[END, newest]:
                newest = k
            row_of[times[TASK, k]] = k
            if row < 0 or times[PUBLISHED, k] > times[PUBLISHED, row]:
                row = k
    cursor = until - since
    if row >= 0:
        cursor = _cut(TAIL, none, times[PUBLISHED, row], cursor, sums)
    while row >= 0 and not seen[row]:
        seen[row] = True
        task, i = times[TASK, row], times[ROW, row]
        op, free, ready = op_of[task], times[FREE, row], times[READY, row]
        cursor = _cut(PUBLISH, op, times[END, row], cursor, sums)
        cursor = _cut(COMPUTE, op, times[BEGIN, row], cursor, sums)
        if times[DOUBT, row] != 0:
            cursor = _cut(UNKNOWN, none, free, cursor, sums)
            row = holder[row]
            continue
        cursor = _cut(STARVED if flags[i] & FLAG_BYTES_LAST else OVERHEAD, op, max(free, ready), cursor, sums)
        if ready > free:  # else the lane came last
            claimed = clip(claim[i], since, until)
            last = _last_producer(times, task, wait_ptr, wait_counter, wait_need, ptr, producers, row_of, at, rows)
            if last >= 0 and not (claimed > free and claimed >= times[PUBLISHED, last]):
                cursor = _cut(HOP, op, times[PUBLISHED, last], cursor, sums)
                row = last
                continue
            if last == UNRECORDED:
                cursor = _cut(UNKNOWN, op, free, cursor, sums)
            else:
                if last >= 0:
                    cursor = _cut(HOP, op, claimed, cursor, sums)
                cursor = _cut(OVERHEAD, op, free, cursor, sums)
        row = holder[row]
    _cut(UNKNOWN, none, 0, cursor, sums)


@njit(cache=True, nogil=True)
def durations(times, took):
    """Set ``took`` i64 per task to ns from begin to publish, 0 without a sound record."""
    took[:] = 0
    for k in range(times.shape[1]):
        took[times[TASK, k]] = times[PUBLISHED, k] - times[BEGIN, k]


@njit(cache=True, nogil=True)
def chain_in_order(order, took, wait_ptr, wait_counter, raise_ptr, raise_counter, latest):
    """ns of the longest chain where every wait is for all arrivals: ``order`` has producers first; ``latest`` i64 per counter:
    to work in."""
    latest[:] = 0
    longest = np.int64(0)
    for task in order:
        end = np.int64(0)
        for w in range(wait_ptr[task], wait_ptr[task + 1]):
            end = max(end, latest[wait_counter[w]])
        end += took[task]
        longest = max(longest, end)
        for r in range(raise_ptr[task], raise_ptr[task + 1]):
            latest[raise_counter[r]] = max(latest[raise_counter[r]], end)
    return longest


@njit(cache=True, nogil=True)
def chain_by_time(took, waits, waiter_ptr, waiter, need, raise_ptr, raise_counter):
    """The same where some wait for fewer arrivals: tasks in the order in which they end.  ``waits`` i64 per task: how many;
    ``waiter``, ``need``: who waits for each counter, from ``waiter_ptr`` on, ascending by need."""
    unmet, cursor = waits.copy(), waiter_ptr[:-1].copy()
    arrived = np.zeros(len(cursor), np.int64)
    ends = [(took[task], np.int64(task)) for task in range(len(took)) if waits[task] == 0]
    ends.sort()
    longest = np.int64(0)
    while len(ends) > 0:
        longest, task = heappop(ends)
        for r in range(raise_ptr[task], raise_ptr[task + 1]):
            c = raise_counter[r]
            arrived[c] += 1
            while cursor[c] < waiter_ptr[c + 1] and need[cursor[c]] <= arrived[c]:
                freed = waiter[cursor[c]]
                cursor[c] += 1
                unmet[freed] -= 1
                if unmet[freed] == 0:
                    heappush(ends, (longest + took[freed], np.int64(freed)))
    return longest
