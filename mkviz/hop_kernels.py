"""Hop kernels: the waits of one step of a large capture, added up by kind, as ``hops`` has them one by one in numpy.

Compiled with numba; import it where it is needed.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from mkviz.hop_sums import BLOCK, EXPOSED, HOP, LEAST, MOST, NS, SLACK, STOOD, WAITS
from mkviz.sweep_kernels import BEGIN, DOUBT, FREE, PUBLISHED, READY, TASK, sort_rows

NONE = -1


@njit(cache=True, nogil=True)
def _power(ns):
    """k, where ns > 0 is from 2^k to below 2^(k + 1)."""
    power = 0
    for shift in (32, 16, 8, 4, 2, 1):
        if ns >> shift:
            ns >>= shift
            power += shift
    return power


@njit(cache=True, nogil=True)
def _count_finely(kind, ns, block_of, counts, used):
    """Count ns > 0 in a block of ``counts``, a new one where there is none yet; returns how many are used then."""
    shift = max(_power(ns) + 1 - 9, 0)  # nine bits stay
    block = 0 if ns < BLOCK else shift + 1
    if block_of[kind, block] < 0:
        block_of[kind, block] = used
        used += 1
    counts[block_of[kind, block], ns if ns < BLOCK else (ns >> shift) - BLOCK] += 1
    return used


@njit(cache=True, nogil=True)
def met_by(times, row_of, producers, first, stop, need, at, rows):
    """Where in ``producers`` is the one whose publish met a need (NONE: none has a record); ``at``, ``rows``: to work in."""
    recorded, last = 0, NONE
    for j in range(first, stop):
        k = row_of[producers[j]]
        if k >= 0:
            at[j - first], rows[recorded] = times[PUBLISHED, k], j - first
            recorded += 1
            if last < 0 or at[j - first] >= at[last - first]:
                last = j
    if need == 0:
        return NONE
    if need >= recorded:
        return last
    sort_rows(rows[:recorded], at)
    met, before = at[rows[need - 1]], 0
    for i in range(recorded):
        before += at[rows[i]] < met
    for j in range(first, stop):  # of several at once they count in order
        if row_of[producers[j]] >= 0 and at[j - first] == met:
            before += 1
            if before == need:
                return j
    return NONE


@njit(cache=True, nogil=True)
def _count(kind, of, ns, powers):
    power = _power(ns)
    powers[kind, power, of, 0] += 1
    powers[kind, power, of, 1] += ns


@njit(cache=True, nogil=True)
def add_hops(times, wait_ptr, threshold, kind_at, kinds, need_of, counter_of, ptr, producers, slot, row_of, met, by, sums,
             powers, block_of, counts, used):  # fmt: skip
    """Add the waits of a step's sound tasks; returns how many blocks of ``counts`` are used then.

    The rest is described at ``HopSums`` and ``_Plan``; to work in: ``row_of`` i64 per task, ``met`` (when each threshold was
    met, -1: nobody knows) and ``by`` (the slot of who met it) i64 per threshold.
    """
    row_of[:] = NONE
    for k in range(times.shape[1]):
        row_of[times[TASK, k]] = k
    at, rows = np.empty(len(producers), np.int64), np.empty(len(producers), np.int64)
    for h in range(len(by)):
        c = counter_of[h]
        j = met_by(times, row_of, producers, ptr[c], ptr[c + 1], need_of[h], at, rows)
        met[h], by[h] = (times[PUBLISHED, row_of[producers[j]]], slot[j]) if j >= 0 else (-1, 0)
    for task in range(len(row_of)):  # those that wait for the same follow each other
        first, stop, k = wait_ptr[task], wait_ptr[task + 1], row_of[task]
        if first == stop or k < 0:
            continue
        latest, last = np.int64(-2), first
        for w in range(first, stop):
            if met[threshold[w]] > latest:
                latest, last = met[threshold[w]], w
        free, ready = times[FREE, k], times[READY, k]
        told = 0 if times[DOUBT, k] else max(times[BEGIN, k] - free, 0)
        exposed = min(max(ready - free, 0), told)
        for w in range(first, stop):
            h = threshold[w]
            kind, then = kinds[kind_at[w] + by[h]], met[h]
            sums[kind, WAITS] += 1
            stood = w == last and exposed > 0
            if stood:
                sums[kind, STOOD] += 1
                sums[kind, NS] += exposed
                sums[kind, MOST] = max(sums[kind, MOST], exposed)
                _count(kind, EXPOSED, exposed, powers)
                used = _count_finely(kind, exposed, block_of, counts, used)
            if then < 0:
                continue
            slack = max(free, latest) - then
            if slack > 0:
                _count(kind, SLACK, slack, powers)
            if not stood:
                sums[kind, LEAST] = min(sums[kind, LEAST], slack)
            if w == last and ready > then:
                _count(kind, HOP, ready - then, powers)
    return used
