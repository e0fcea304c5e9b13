"""The worker: plays SMs.  It walks their lists, waits on counters, runs tasks, raises counters, leaves records.

Any worker may play any SM, one task at a time: it takes the SM's lock, looks at the SM's next task, runs it if its waits are
met, and turns to the next SM.  So any number of workers, one included, finishes any schedule that the validator accepts, and a
worker that the operating system has put aside holds up one task, not all tasks of "its" SMs.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from engine.cpu import atomics
from mkviz.record import FLAG_COVERED, KIND_SKIPPED, KIND_TASK, NO_TASK, NO_WAIT, STEP_MASK, TASK_BITS

_WORDS = 16  # u64 words of a live line
_IDLE, _WAITING, _RUNNING = 0, 2, 3  # indices into mkviz.record.STATES
_SPINS = 200  # rounds without progress before the processor is given away
_NO_TASK = np.int64(NO_TASK)


class Table(NamedTuple):
    """Task table of one graph and schedule: what :class:`mkviz.graph.Graph` holds, plus functions, args and orders."""

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
    raised: np.ndarray  # i64[counters]: the newest publish (ns) among those that raised it, while tracing
    tickets: np.ndarray  # u64[1]: claims so far
    finished: np.ndarray  # u64[1]: SMs that came to the end of their step, over all steps
    abort: np.ndarray  # u32[1]
    lock: np.ndarray  # u32[sms]: 1 while a worker plays the SM
    sm: np.ndarray  # i64[sms, 6], under the lock: columns below
    records: np.ndarray  # u32[sms, capacity, 8]
    live: np.ndarray  # u64[sms * 16]
    limit: np.ndarray  # u64[sms]: records a ring may hold in its life (see mkviz.ring)


_EPOCH, _CURSOR, _TASK, _AT_WAIT, _LAST_WAIT, _CLAIM = range(6)
SM_WORDS = 6
NOTHING, DONE = -1, -2  # in place of a task: none taken up yet; no more in this step


class StepCall(NamedTuple):
    """One step as a worker sees it."""

    binding: int  # address of the binding block
    epoch: int  # steps this table has run before
    step: int  # the backend's step number, over all tables
    trace: bool
    seed: int  # 0: SMs in turn; else the order of play and, with jitter, the delays are drawn from it
    jitter: int  # largest random delay before a task, ns


@njit(nogil=True)
def _run(table, it, scratch, t):
    w = table.where[t]
    return atomics.call(table.function[t], (it.binding, scratch, it.step, w[0], w[1], w[2], w[3], w[4], w[5], w[6]))


@njit(nogil=True)
def _random(state):
    """xorshift64: the next u64 after ``state``."""
    state ^= state << np.uint64(13)
    state ^= state >> np.uint64(7)
    return state ^ (state << np.uint64(17))


@njit(nogil=True)
def _next_task(table, shared, it, sm):
    """The next task of an SM: owned ones first, then claimed; DONE when there is none left."""
    at = table.order_ptr[sm] + shared.sm[sm, _CURSOR]
    if at < table.order_ptr[sm + 1]:
        shared.sm[sm, _CURSOR] += 1
        return np.int64(table.order[at])
    n = table.queue.shape[0]
    if n == 0:
        return np.int64(DONE)
    # every SM draws exactly one ticket beyond the end in each step, so the base of the next step is known
    ticket = np.int64(atomics.add_release(shared.tickets, 0, np.uint64(1))) - np.int64(it.epoch) * (n + table.sms)
    return np.int64(table.queue[ticket]) if ticket < n else np.int64(DONE)


@njit(nogil=True)
def _record(shared, it, sm, t, ready, begin, end, publish, flags):
    head = np.int64(shared.live[sm * _WORDS])
    if np.uint64(head) < atomics.load_acquire(shared.limit, sm):
        claim = shared.sm[sm, _CLAIM]
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
        r[7] = np.uint32(shared.sm[sm, _LAST_WAIT] | flags << 16 | lap << 24)
    atomics.store_release(shared.live, sm * _WORDS, np.uint64(head + 1))


@njit(nogil=True)
def _take_up(table, shared, it, sm):
    """Give an SM its next task; returns it, or DONE at the end of the SM's step."""
    state, line = shared.sm[sm], sm * _WORDS
    if state[_EPOCH] != it.step:
        state[_EPOCH], state[_CURSOR] = it.step, 0
        if it.trace:
            shared.live[line + 1] = np.uint64(it.step)
            shared.live[line + 5] = shared.live[line + 6] = np.uint64(atomics.now_ns())
            shared.live[line + 7] = np.uint64(it.step)
    t = _next_task(table, shared, it, sm)
    state[_TASK] = t
    if t == DONE:
        if it.trace:
            shared.live[line + 2] = np.uint64(_NO_TASK | _IDLE << 32)
            atomics.store_release(shared.live, line + 1, np.uint64(it.step + 1))
        atomics.add_release(shared.finished, 0, np.uint64(1))
        return t
    state[_AT_WAIT], state[_LAST_WAIT] = table.wait_ptr[t], NO_WAIT
    if it.trace:
        state[_CLAIM] = atomics.now_ns()
        shared.live[line + 2] = np.uint64(t | _WAITING << 32)
        shared.live[line + 3] = np.uint64(state[_CLAIM])
    return t


@njit(nogil=True)
def _waits_met(table, shared, it, sm, t):
    """Whether all counters that a task waits on have reached this step's targets; remembers how far it got."""
    state = shared.sm[sm]
    w, end = state[_AT_WAIT], np.int64(table.wait_ptr[t + 1])
    while w < end:
        c = table.wait_counter[w]
        target = np.uint32(np.uint32(it.epoch) * table.arrivals[c] + table.wait_need[w])
        if np.int32(atomics.load_acquire(shared.counters, c) - target) < 0:
            state[_AT_WAIT] = w
            if state[_LAST_WAIT] != w - table.wait_ptr[t]:
                state[_LAST_WAIT] = w - table.wait_ptr[t]
                shared.live[sm * _WORDS + 4] = np.uint64(np.int64(c) | np.int64(target) << 32)
            return False
        w += 1
    state[_AT_WAIT] = w
    return True


@njit(nogil=True)
def _execute(table, shared, it, scratch, sm, t):
    """Run a task whose waits are met, raise its counters, leave its record.

    ready: the last of its counters was there · begin, end: around the op · publish: read just before the release that lets
    consumers go.  A worker plays many SMs, so it sees a counter later than an SM of its own would; ready is therefore the
    newest publish of those that raised the counters, and what lies between ready and begin is want of a worker, not of data.
    """
    if it.trace:
        begin = atomics.now_ns()
        ready = shared.sm[sm, _CLAIM]
        for w in range(table.wait_ptr[t], table.wait_ptr[t + 1]):
            ready = max(ready, np.int64(atomics.load_acquire(shared.raised, table.wait_counter[w])))
        shared.live[sm * _WORDS + 2] = np.uint64(t | _RUNNING << 32)
        shared.live[sm * _WORDS + 3] = np.uint64(begin)
        worked = _run(table, it, scratch, t)
        end = publish = atomics.now_ns()
    else:
        ready = begin = end = publish = 0
        worked = _run(table, it, scratch, t)
    first, last = np.int64(table.raise_ptr[t]), np.int64(table.raise_ptr[t + 1])
    for i in range(first, last):
        if it.trace:
            if i == first:
                publish = atomics.now_ns()
            atomics.max_release(shared.raised, table.raise_counter[i], publish)
        atomics.add_release(shared.counters, table.raise_counter[i], np.uint32(1))
    if it.trace:
        flags = KIND_TASK if worked else KIND_SKIPPED
        _record(shared, it, sm, t, ready, begin, end, publish, flags if last > first else flags | FLAG_COVERED)


@njit(nogil=True, cache=True)
def play(table, shared, it, scratch, worker, workers):
    """Play SMs until all have come to the end of the step; False when aborted."""
    target = np.uint64((it.epoch + 1) * table.sms)
    state = np.uint64(it.seed * 2654435761 + worker + 1)
    sm = worker * table.sms // workers
    idle = 0
    while atomics.load_acquire(shared.finished, 0) < target:
        if it.seed:
            state = _random(state)
            sm = np.int64(state % np.uint64(table.sms))
        else:
            sm = sm + 1 if sm + 1 < table.sms else 0
        idle += 1
        if shared.sm[sm, _EPOCH] == it.step and shared.sm[sm, _TASK] == DONE:
            pass
        elif atomics.exchange_acquire(shared.lock, sm, np.uint32(1)) == 0:
            t = shared.sm[sm, _TASK]
            if t == NOTHING or (t == DONE and shared.sm[sm, _EPOCH] != it.step):
                t = _take_up(table, shared, it, sm)
            if t >= 0 and _waits_met(table, shared, it, sm, t):
                idle = 0
                if it.jitter:
                    state = _random(state)
                    until = atomics.now_ns() + np.int64(state % np.uint64(it.jitter))
                    while atomics.now_ns() < until:
                        pass
                _execute(table, shared, it, scratch, sm, t)
                shared.sm[sm, _TASK] = NOTHING
            atomics.store_release(shared.lock, sm, np.uint32(0))
        if idle > _SPINS:
            if atomics.load_acquire(shared.abort, 0):
                return False
            atomics.yield_cpu()
    return True
