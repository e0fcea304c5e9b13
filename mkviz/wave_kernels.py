"""Wave kernels: the waves of one step of a large capture, to the nanosecond what ``wave_tails`` says of it in numpy.

Compiled with numba; import it where it is needed.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from mkviz.sweep_kernels import BEGIN, DOUBT, END, FREE, TASK, sort_rows
from mkviz.wave_tails import FINISHER, RANKS, WAVE

_AT = {name: i for i, name in enumerate(WAVE.names)}
TASKS, SMS, AREA, COMPUTE, UNKNOWN = (_AT[name] for name in ("tasks", "sms", "area", "compute", "unknown"))
LEAD, GAP, TAIL, ABSENT = (_AT[f"{where}_idle"] for where in ("lead", "gap", "tail", "absent"))  # idle; filled follows
STEP, OP, LAYER, WAVE_BEGIN, WAVE_END = (_AT[name] for name in ("step", "op", "layer", "begin", "end"))
WAVE_FIELDS, FINISHER_FIELDS = len(WAVE.names), len(FINISHER.names)


@njit(cache=True, nogil=True)
def _doubt_until(times, first, stop, left, open_end, time):
    """ns before a time of which it is unknown what a lane did, whose records are ``first`` to before ``stop``."""
    total = np.int64(0)
    for k in range(first, stop):
        if times[DOUBT, k] != 0 and times[BEGIN, k] > times[FREE, k]:
            total += max(min(time, times[BEGIN, k]) - times[FREE, k], 0)
    return total + max(time - left, 0) if open_end else total


@njit(cache=True, nogil=True)
def _busy_until(start, stop, before, first, last, time, moments, out):
    """``out``: ns before the ``time`` of each of the moments, ascending, for which a lane was busy whose intervals are
    ``first`` to before ``last``; ``before``: ns of those before each."""
    k = first
    for m in moments:
        while k < last and start[k] <= time[m]:
            k += 1
        out[m] = before[k - 1] + min(time[m], stop[k - 1]) - start[k - 1] if k > first else 0


@njit(cache=True, nogil=True)
def _part(out, wave, where, ns, filled, unknown):
    out[wave, where] += ns - filled - unknown
    out[wave, where + 1] += filled


@njit(cache=True, nogil=True)
def add_waves(times, ptr, left, open_end, step, wave_of, op_layer, out, finishers):
    """Write a step's waves to ``out`` i64[W, fields of WAVE], those that ran first, and their last SMs to ``finishers``
    i64[W * RANKS, fields of FINISHER]; returns how many of each.

    ``times``, ``ptr``, ``left``, ``open_end``: of its lanes.  ``wave_of``: of each task of the graph, W waves in order;
    ``op_layer`` i64[W, 2].
    """
    waves, sms, n = len(op_layer), len(ptr) - 1, times.shape[1]
    out[:] = 0
    start, stop, before = np.empty(n, np.int64), np.empty(n, np.int64), np.empty(n, np.int64)
    bounds = np.empty(2 * waves, np.int64)  # begins, then ends
    bounds[:waves], bounds[waves:] = np.iinfo(np.int64).max, -1
    for lane in range(sms):
        busy = np.int64(0)
        for k in range(ptr[lane], ptr[lane + 1]):
            start[k] = max(times[BEGIN, k], times[FREE, k])
            stop[k], before[k] = max(times[END, k], start[k]), busy
            busy += stop[k] - start[k]
            wave = wave_of[times[TASK, k]]
            bounds[wave], bounds[waves + wave] = min(bounds[wave], start[k]), max(bounds[waves + wave], stop[k])
            out[wave, TASKS] += 1
    ran, moments, many = np.empty(waves, np.int64), np.empty(2 * waves, np.int64), 0
    for wave in range(waves):
        if out[wave, TASKS] > 0:
            ran[many], moments[2 * many], moments[2 * many + 1] = wave, wave, waves + wave
            many += 1
    ran, moments = ran[:many], moments[: 2 * many]
    sort_rows(moments, bounds)
    busy_at, doubt_at = np.zeros(2 * waves, np.int64), np.zeros(2 * waves, np.int64)
    first, last = np.empty(waves, np.int64), np.empty(waves, np.int64)
    ends, tasks = np.empty((waves, sms), np.int64), np.empty((waves, sms), np.int64)
    lanes = np.empty((waves, sms), np.int64)
    for lane in range(sms):
        a, z = ptr[lane], ptr[lane + 1]
        _busy_until(start, stop, before, a, z, bounds, moments, busy_at)
        doubted = open_end[lane]
        first[:] = -1
        for k in range(a, z):
            doubted |= times[DOUBT, k] != 0
            wave = wave_of[times[TASK, k]]
            out[wave, COMPUTE] += stop[k] - start[k]
            if first[wave] < 0:
                first[wave] = k
            last[wave] = k
        for m in moments:
            doubt_at[m] = _doubt_until(times, a, z, left[lane], open_end[lane], bounds[m]) if doubted else 0
        for wave in ran:
            begin, end = wave, waves + wave
            unknown, filled = doubt_at[end] - doubt_at[begin], busy_at[end] - busy_at[begin]
            out[wave, UNKNOWN] += unknown
            if first[wave] < 0:
                _part(out, wave, ABSENT, bounds[end] - bounds[begin], filled, unknown)
                continue
            i, j = first[wave], last[wave]
            own, doubt_i, doubt_j = np.int64(0), np.int64(0), np.int64(0)
            for k in range(i, j + 1):
                if wave_of[times[TASK, k]] == wave:
                    own += stop[k] - start[k]
            if doubted:
                doubt_i = _doubt_until(times, a, z, left[lane], open_end[lane], start[i])
                doubt_j = _doubt_until(times, a, z, left[lane], open_end[lane], stop[j])
            busy_i, busy_j = before[i], before[j] + stop[j] - start[j]
            _part(out, wave, LEAD, start[i] - bounds[begin], busy_i - busy_at[begin], doubt_i - doubt_at[begin])
            _part(out, wave, GAP, stop[j] - start[i] - own, busy_j - busy_i - own, doubt_j - doubt_i)
            _part(out, wave, TAIL, bounds[end] - stop[j], busy_at[end] - busy_j, doubt_at[end] - doubt_j)
            of = out[wave, SMS]
            ends[wave, of], tasks[wave, of], lanes[wave, of] = stop[j], times[TASK, j], lane
            out[wave, SMS] += 1
    count, by_end = 0, np.empty(sms, np.int64)
    for i in range(many):
        wave = ran[i]
        begin, end, on = bounds[wave], bounds[waves + wave], out[wave, SMS]
        out[wave, STEP], out[wave, OP], out[wave, LAYER] = step, op_layer[wave, 0], op_layer[wave, 1]
        out[wave, WAVE_BEGIN], out[wave, WAVE_END], out[wave, AREA] = begin, end, (end - begin) * sms
        for k in range(on):
            by_end[k] = k
        sort_rows(by_end[:on], ends[wave])
        half = ends[wave, by_end[on - 1 - on // 2]]  # with this one, half of them or more have finished
        for rank in range(min(RANKS, on)):
            at = 0
            for k in range(on):
                if ends[wave, k] > ends[wave, at]:
                    at = k
            finishers[count, 0], finishers[count, 1], finishers[count, 2] = step, op_layer[wave, 0], op_layer[wave, 1]
            finishers[count, 3], finishers[count, 4], finishers[count, 5] = rank, tasks[wave, at], lanes[wave, at]
            finishers[count, 6], finishers[count, 7] = ends[wave, at], ends[wave, at] - half
            ends[wave, at] = -1  # it has its rank
            count += 1
        for f in range(WAVE_FIELDS):
            out[i, f] = out[wave, f]
    return many, count
