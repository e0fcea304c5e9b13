"""Tally kernels: the sums of :mod:`mkviz.tally` over whole steps, compiled with numba; import it where it is needed.

One pass over records that are ordered by SM, begin and end within their step.  It says the same as ``LaneTimes.of``,
``charge_lanes`` and the accounting of roles, which a test compares it with.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from mkviz.record import FLAG_BYTES_LAST, FLAG_SATURATED, KIND_MASK, KIND_PHASES, KIND_SKIPPED, KIND_TASK
from mkviz.sweep_kernels import BROKEN, CLIPPED, OVERLAPPING, REPEATED, clip

COMPUTE, WAIT, STARVED, OVERHEAD, TAIL, UNKNOWN, LOADER, FEEDER, STORER = range(9)  # columns of sums
NO_CHUNK = np.int64(0xFFFFFFFF)
WORK = 13  # arrays that a step is worked at in
DIGITS = 256  # of the sort of begins


@njit(cache=True, nogil=True)
def _in_hand(start, stop, rows, n, group, role, sums):
    """ns for which a role of one SM had each of n tasks in hand and none that it took up before; start and stop are ns since
    the step began, 0 for a stop of one that does not count."""
    for k in range(1, n):  # rows by start; they are nearly so
        row, at = rows[k], k
        while at > 0 and start[rows[at - 1]] > start[row]:
            rows[at] = rows[at - 1]
            at -= 1
        rows[at] = row
    latest = np.int64(0)
    for k in range(n):
        row = rows[k]
        sums[group[row], role] += max(stop[row] - max(start[row], latest), 0)
        latest = max(latest, stop[row])


@njit(cache=True, nogil=True)
def _by_begin(begin, end, begins, ends):
    """Sort intervals by their begin, 0 or more, digit by digit; the second pair of arrays is for it to work in."""
    most = begin.max()
    shift = 0
    counts = np.empty(DIGITS + 1, np.int64)
    while most >> shift > 0:
        counts[:] = 0
        for b in begin:
            counts[(b >> shift & DIGITS - 1) + 1] += 1
        for d in range(DIGITS):
            counts[d + 1] += counts[d]
        for i in range(len(begin)):
            d = begin[i] >> shift & DIGITS - 1
            begins[counts[d]], ends[counts[d]] = begin[i], end[i]
            counts[d] += 1
        begin, end, begins, ends = begins, ends, begin, end
        shift += 8
    return begin, end


@njit(cache=True, nogil=True)
def _covered(begin, end, begins, ends):
    """ns during which at least one of the intervals lasts; all arrays are used up."""
    begin, end = _by_begin(begin, end, begins, ends)
    total, until = np.int64(0), begin[0]
    for i in range(len(begin)):
        until = max(until, begin[i])
        total += max(end[i] - until, 0)
        until = max(until, end[i])
    return total


@njit(cache=True, nogil=True)
def add_step(sm, task, flags, claim, ready, begin, end, publish, order, since, until, sms, in_turn, roles, group_of, op_of,
             size_of, ops, sums, tasks_of, skipped_of, bytes_of, active_of, faults, seen, stamp, work):  # fmt: skip
    """Add one whole step; ``order``: its good records, tasks by SM, begin and end, others anywhere.

    ``sums`` i64[sms or 1 for all, groups + 1, 9], the last group for what belongs to no task; the others i64 per group
    (``active_of`` per op) and per fault.  ``group_of``, ``op_of``, ``size_of``: of each task of the graph; ``seen``
    likewise, the ``stamp`` of the last step that it was in.  ``work`` i64[WORK, len(order) or more]: to work in.
    """
    tasks, rest = len(group_of), sums.shape[1] - 1
    makespan = until - since
    chunk = np.full(tasks if roles else 0, NO_CHUNK, np.int64)
    n = len(order)
    starts, stops, spans, by_op, groups, rows, where = work[0:3], work[3:6], work[6:8], work[8:10], work[10], work[11], work[12]
    per_op = np.zeros(ops + 1, np.int64)
    if roles:
        for i in order:
            if flags[i] & KIND_MASK == KIND_PHASES:
                chunk[task[i]] = min(max(publish[i] - begin[i], 0), NO_CHUNK - 1)
    done = np.zeros(sms, np.bool_)
    at, kept, low = 0, 0, np.int64(0)
    while at < n:
        i = order[at]
        kind = flags[i] & KIND_MASK
        if kind != KIND_TASK:
            if kind == KIND_SKIPPED:
                skipped_of[group_of[task[i]]] += 1
            at += 1
            continue
        lane, count = sm[i], 0
        free, doubt, open_end = np.int64(0), False, False
        mine = sums[lane if len(sums) > 1 else 0]
        while at < n:
            i = order[at]
            if flags[i] & KIND_MASK != KIND_TASK:
                if flags[i] & KIND_MASK == KIND_SKIPPED:
                    skipped_of[group_of[task[i]]] += 1
                at += 1
                continue
            if sm[i] != lane:
                break
            at += 1
            t = task[i]
            group = group_of[t]
            is_broken = end[i] < begin[i] or flags[i] & FLAG_SATURATED != 0
            again = not is_broken and seen[t] == stamp
            sound = not (is_broken or again)
            faults[BROKEN] += is_broken
            faults[REPEATED] += again
            faults[CLIPPED] += begin[i] < since or end[i] > until or begin[i] > until
            tasks_of[group] += 1
            bytes_of[group] += size_of[t]
            b, e, r = clip(begin[i], since, until), clip(end[i], since, until), clip(ready[i], since, until)
            if sound:
                seen[t] = stamp
                faults[OVERLAPPING] += in_turn and b < free
                idle = max(b - free, 0)
                told = np.int64(0) if doubt else idle
                wait = min(max(r - free, 0), told)
                late = STARVED if flags[i] & FLAG_BYTES_LAST else OVERHEAD
                mine[group, COMPUTE] += max(e - max(b, free), 0)
                mine[group, WAIT] += wait
                mine[group, late] += told - wait
                mine[group, UNKNOWN] += idle - told
                spans[0, kept], spans[1, kept], where[kept] = begin[i] - since, end[i] - since, op_of[t]
                low = min(low, spans[0, kept])
                per_op[op_of[t] + 1] += 1
                kept += 1
            if roles:
                loaded = np.int64(0)
                if size_of[t] > 0:
                    loaded = b if chunk[t] == NO_CHUNK else min(b + chunk[t], e)
                p = max(clip(publish[i], since, until), e)
                starts[0, count], stops[0, count] = clip(claim[i], since, until), loaded * sound
                starts[1, count], stops[1, count] = r, b * sound
                starts[2, count], stops[2, count] = e, p * sound
                groups[count] = group
                count += 1
            if sound:
                free = max(free, e)
            doubt = open_end = not sound
        done[lane] = True
        mine[rest, UNKNOWN if open_end else TAIL] += makespan - free
        for role in range(3 if roles else 0):
            for k in range(count):
                rows[k] = k
            _in_hand(starts[role], stops[role], rows, count, groups, LOADER + role, mine)
    for lane in range(sms):
        if not done[lane]:
            sums[lane if len(sums) > 1 else 0, rest, TAIL] += makespan
    for o in range(ops):
        per_op[o + 1] += per_op[o]
    cursor = per_op[:-1].copy()
    for k in range(kept):
        o = where[k]
        by_op[0, cursor[o]], by_op[1, cursor[o]] = spans[0, k] - low, spans[1, k] - low
        cursor[o] += 1
    for o in range(ops):
        a, z = per_op[o], per_op[o + 1]
        if z > a:
            active_of[o] += _covered(by_op[0, a:z], by_op[1, a:z], spans[0, a:z], spans[1, a:z])
