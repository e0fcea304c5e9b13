"""The worker: plays SMs.  It walks their lists, waits on counters, runs tasks, raises counters, leaves records.

A worker that plays several SMs takes one task of one SM at a time and turns to the next SM when a wait is not met, so any
number of workers, one included, finishes any schedule that the validator accepts.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from engine.cpu.atomics import add_release, call, load_acquire, now_ns, store_release, yield_cpu
from mkviz.record import FLAG_COVERED, KIND_SKIPPED, KIND_TASK, NO_TASK, NO_WAIT, STEP_MASK, TASK_BITS

_WORDS = 16  # u64 words of a live line
_IDLE, _WAITING, _RUNNING = 0, 2, 3  # indices into mkviz.record.STATES
_SPINS = 200  # rounds without progress before the processor is given away
_NO_TASK = np.int64(NO_TASK)


class Table(NamedTuple):
    """Task table of one graph and schedule: what :class:`mkviz.graph.Graph` holds, plus args and orders."""

    function: np.ndarray  # i64[tasks]: address of the op
    where: np.ndarray  # i64[tasks, 7]: layer, slot, tile and the four args that the op takes
    wait_ptr: np.ndarray
    wait_counter: np.ndarray
    wait_need: np.ndarray
    raise_ptr: np.ndarray
    raise_counter: np.ndarray
    arrivals: np.ndarray  # u32[counters]
    order_ptr: np.ndarray
    order: np.ndarray
    queue: np.ndarray
    sms: int


class Shared(NamedTuple):
    """What all workers of a table share.  Counters are never zeroed: step n of a table waits for n * arrivals more."""

    counters: np.ndarray  # u32[counters]
    tickets: np.ndarray  # u64[1]
    abort: np.ndarray  # u32[1]
    records: np.ndarray  # u32[sms, capacity, 8]
    live: np.ndarray  # u64[sms * 16]
    limit: np.ndarray  # u64[sms]: records a ring may hold in its life (see mkviz.ring)


class StepCall(NamedTuple):
    """One step as a worker sees it."""

    binding: int  # address of the binding block
    epoch: int  # steps this table has run before
    serial: int  # steps the backend has run before, over all tables
    step: int  # full step number, as recorded
    trace: bool
    seed: int  # 0: SMs in turn; else the order of play and, with jitter, the delays are drawn from it
    jitter: int  # largest random delay before a task, ns


@njit(nogil=True)
def _run(table, it, scratch, t):
    w = table.where[t]
    return call(table.function[t], (it.binding, scratch, it.serial, w[0], w[1], w[2], w[3], w[4], w[5], w[6]))


@njit(nogil=True)
def _random(state):
    """xorshift64: the next u64 after ``state``."""
    state ^= state << np.uint64(13)
    state ^= state >> np.uint64(7)
    return state ^ (state << np.uint64(17))


@njit(nogil=True)
def _next_task(table, shared, it, sm, cursor):
    """The next task of an SM: owned ones first, then claimed; -1 when there is none left."""
    at = table.order_ptr[sm] + cursor[sm]
    if at < table.order_ptr[sm + 1]:
        cursor[sm] += 1
        return np.int64(table.order[at])
    n = table.queue.shape[0]
    if n == 0:
        return np.int64(-1)
    # every SM draws exactly one ticket beyond the end in each step, so the base of the next step is known
    base = np.int64(it.epoch) * (n + table.sms)
    ticket = np.int64(add_release(shared.tickets, 0, np.uint64(1))) - base
    return np.int64(table.queue[ticket]) if ticket < n else np.int64(-1)


@njit(nogil=True)
def _record(shared, it, sm, t, claim, ready, begin, end, publish, last_wait, flags):
    head = np.int64(shared.live[sm * _WORDS])
    if np.uint64(head) < load_acquire(shared.limit, sm):
        capacity = shared.records.shape[1]
        r = shared.records[sm, head & (capacity - 1)]
        lap = (head // capacity + 1) & 0xFF
        r[0] = np.uint32(claim & 0xFFFFFFFF)
        r[1] = np.uint32(min(ready - claim, 0xFFFFFFFF))
        r[2] = np.uint32(min(begin - claim, 0xFFFFFFFF))
        r[3] = np.uint32((head + 1) & 0xFFFFFFFF)
        r[4] = np.uint32(min(end - claim, 0xFFFFFFFF))
        r[5] = np.uint32(min(publish - claim, 0xFFFFFFFF))
        r[6] = np.uint32(t | (it.step & STEP_MASK) << TASK_BITS)
        r[7] = np.uint32(last_wait | flags << 16 | lap << 24)
    store_release(shared.live, sm * _WORDS, np.uint64(head + 1))


@njit(cache=True, nogil=True)
def play(table, shared, it, scratch, first_sm, stride):
    """Play SMs first_sm, first_sm + stride, … until their step is done; True unless aborted.

    claim: the task was taken up · ready: its last wait was seen met · begin, end: around the op · publish: read just before
    the release that lets consumers go.
    """
    mine = (table.sms - first_sm + stride - 1) // stride
    cursor = np.zeros(table.sms, np.int64)
    task = np.full(table.sms, -1, np.int64)
    done = np.zeros(table.sms, np.bool_)
    at_wait = np.zeros(table.sms, np.int64)  # waits seen met so far
    last_wait = np.full(table.sms, NO_WAIT, np.int64)
    claim = np.zeros(table.sms, np.int64)
    state = np.uint64(it.seed * 2654435761 + first_sm + 1)
    remaining, turn, idle = mine, 0, 0
    if it.trace:
        for i in range(mine):
            line = (first_sm + i * stride) * _WORDS
            now = now_ns()
            shared.live[line + 1] = np.uint64(it.step)
            shared.live[line + 5] = shared.live[line + 6] = np.uint64(now)
            shared.live[line + 7] = np.uint64(it.step)
    while remaining > 0:
        if it.seed:
            state = _random(state)
            sm = first_sm + np.int64(state % np.uint64(mine)) * stride
        else:
            sm = first_sm + turn * stride
            turn = turn + 1 if turn + 1 < mine else 0
        if done[sm]:
            continue
        line = sm * _WORDS
        t = task[sm]
        if t < 0:
            t = _next_task(table, shared, it, sm, cursor)
            if t < 0:
                done[sm] = True
                remaining -= 1
                if it.trace:
                    shared.live[line + 2] = np.uint64(_NO_TASK | _IDLE << 32)
                    store_release(shared.live, line + 1, np.uint64(it.step + 1))
                continue
            task[sm], at_wait[sm], last_wait[sm] = t, table.wait_ptr[t], NO_WAIT
            if it.trace:
                claim[sm] = now_ns()
                shared.live[line + 2] = np.uint64(t | _WAITING << 32)
                shared.live[line + 3] = np.uint64(claim[sm])
        w, w_end = at_wait[sm], np.int64(table.wait_ptr[t + 1])
        while w < w_end:
            c = table.wait_counter[w]
            target = np.uint32(np.uint32(it.epoch) * table.arrivals[c] + table.wait_need[w])
            if np.int32(load_acquire(shared.counters, c) - target) < 0:
                break
            w += 1
        if w < w_end:
            if last_wait[sm] != w - table.wait_ptr[t]:
                last_wait[sm] = w - table.wait_ptr[t]
                shared.live[line + 4] = np.uint64(np.int64(table.wait_counter[w]) | np.int64(target) << 32)
            at_wait[sm] = w
            idle += 1
            if load_acquire(shared.abort, 0):
                return False
            if idle > _SPINS:
                yield_cpu()
            continue
        idle = 0
        if it.jitter:
            state = _random(state)
            until = now_ns() + np.int64(state % np.uint64(it.jitter))
            while now_ns() < until:
                pass
        if it.trace:
            ready = now_ns()
            shared.live[line + 2] = np.uint64(t | _RUNNING << 32)
            shared.live[line + 3] = np.uint64(ready)
            begin = now_ns()
            worked = _run(table, it, scratch, t)
            end = now_ns()
        else:
            worked = _run(table, it, scratch, t)
        first, last = table.raise_ptr[t], table.raise_ptr[t + 1]
        publish = now_ns() if it.trace else 0
        for i in range(first, last):
            add_release(shared.counters, table.raise_counter[i], np.uint32(1))
        if it.trace:
            flags = KIND_TASK if worked else KIND_SKIPPED
            if first == last:
                flags |= FLAG_COVERED
            _record(shared, it, sm, t, claim[sm], ready, begin, end, publish, last_wait[sm], flags)
        task[sm] = -1
    return True
