"""Sweep kernels: what the compiled analyses of large captures share, the bounds of a step and its lanes in order.

They say the same as ``step_bounds``, ``in_order``, ``LaneTimes.of`` and ``Faults.of_lanes``, which tests compare them with.
Compiled with numba; import it where it is needed.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from mkviz.record import FLAG_SATURATED, KIND_MASK, KIND_TASK

TASK, READY, BEGIN, END, PUBLISHED, FREE, DOUBT, ROW = range(8)  # rows of a step's lane times
LANE_TIMES = 8
BROKEN, REPEATED, OVERLAPPING, CLIPPED = range(4)  # of faults


@njit(cache=True, nogil=True)
def survey(sm, task, flags, begin, end, claim, first, stop, sms, tasks, bounds):
    """Of one step's records: how many are strays, whether they can be taken as they are (all of them within ``sms`` and
    ``tasks``, tasks in order), and ``bounds`` (begin, end) widened by them, as ``step_bounds`` does."""
    strays, plain, previous = 0, True, -1
    least, earliest, latest = np.int64(0), np.int64(0), np.int64(0)
    for i in range(first, stop):
        good = sm[i] < sms and task[i] < tasks
        plain &= good
        if flags[i] & KIND_MASK != KIND_TASK:
            continue
        if not good:
            strays += 1
            continue
        if previous < 0:
            least, earliest, latest = begin[i], claim[i], end[i]
        else:
            least, earliest, latest = min(least, begin[i]), min(earliest, claim[i]), max(latest, end[i])
            p = previous
            if sm[i] < sm[p] or (sm[i] == sm[p] and (begin[i] < begin[p] or (begin[i] == begin[p] and end[i] < end[p]))):
                plain = False
        previous = i
    bounds[1] = max(bounds[1], bounds[0])
    if previous >= 0:
        bounds[0] = min(bounds[0], least) if bounds[1] > bounds[0] else earliest
        bounds[1] = max(bounds[1], latest)
    return strays, plain


@njit(cache=True, nogil=True)
def clip(time, since, until):
    """ns since the step began, cut to the step."""
    return min(max(time, since), until) - since


@njit(cache=True, nogil=True)
def sort_rows(rows, key):
    """Sort ``rows`` by the key of each; in place, not stable (numba takes seconds to compile a sort of numpy's)."""
    gap = len(rows) // 2
    while gap > 0:
        for i in range(gap, len(rows)):
            row, at = rows[i], i
            while at >= gap and key[rows[at - gap]] > key[row]:
                rows[at] = rows[at - gap]
                at -= gap
            rows[at] = row
        gap //= 2


@njit(cache=True, nogil=True)
def lane_times(sm, task, flags, ready, begin, end, publish, order, since, until, sms, in_turn, seen, stamp, faults, times,
               ptr, left, open_end):  # fmt: skip
    """The sound records of a step on their lanes; ``order``: its good records, tasks by SM, begin and end, others anywhere.

    ``times`` i64[LANE_TIMES, len(order) or more], a column for each, ascending by lane: task; ready, begin, end, publish (or
    end, where that is later) and free, ns since the step began; whether it is in doubt what the lane did before; the record's
    row.  ``ptr`` i64[sms + 1]: which are of each lane; ``left`` i64[sms], ``open_end`` bool[sms]: as in ``LaneTimes``.
    ``faults`` i64[4] grow; records may overlap where SMs do not compute ``in_turn``.
    ``seen`` i64 per task of the graph: the ``stamp`` of the last step that it was in.
    """
    left[:] = 0
    open_end[:] = False
    ptr[:] = 0
    lane, n = np.int64(-1), 0
    free, doubt = np.int64(0), False
    for i in order:
        if flags[i] & KIND_MASK != KIND_TASK:
            continue
        if sm[i] != lane:
            lane, free, doubt = np.int64(sm[i]), np.int64(0), False
        t = task[i]
        is_broken = end[i] < begin[i] or flags[i] & FLAG_SATURATED != 0
        again = not is_broken and seen[t] == stamp
        faults[BROKEN] += is_broken
        faults[REPEATED] += again
        faults[CLIPPED] += begin[i] < since or end[i] > until or begin[i] > until
        if is_broken or again:
            doubt = True
            open_end[lane] = True
            continue
        seen[t] = stamp
        b, e = clip(begin[i], since, until), clip(end[i], since, until)
        faults[OVERLAPPING] += in_turn and b < free
        times[TASK, n], times[BEGIN, n], times[END, n], times[FREE, n] = t, b, e, free
        times[READY, n], times[PUBLISHED, n] = clip(ready[i], since, until), max(clip(publish[i], since, until), e)
        times[DOUBT, n], times[ROW, n] = doubt, i
        n += 1
        ptr[lane + 1] += 1
        free, doubt = max(free, e), False
        left[lane], open_end[lane] = free, False
    for k in range(sms):
        ptr[k + 1] += ptr[k]
    return n
