"""The worker: plays SMs.  It walks their lists, waits on counters, runs tasks, raises counters, leaves records.

Any worker may play any SM, one task at a time: it takes the SM's lock, looks at the SM's next task, runs it if its waits are
met, and turns to the next SM.  So any number of workers, one included, finishes any schedule that the validator accepts, and a
worker that the operating system has put aside holds up one task, not all tasks of "its" SMs.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import cfunc, types

from engine.cpu import atomics
from engine.cpu.compiled import inner
from engine.cpu.words import i64, pointer_i32, pointer_i64, pointer_u32, pointer_u64, u32, words
from mkviz.record import FLAG_COVERED, KIND_SKIPPED, KIND_TASK, NO_TASK, NO_WAIT, STEP_MASK, TASK_BITS

_WORDS = 16  # u64 words of a live line
_IDLE, _WAITING, _RUNNING = 0, 2, 3  # indices into mkviz.record.STATES
_SPINS = 200  # rounds without progress before the processor is given away
_NO_TASK = np.int64(NO_TASK)


class Table(NamedTuple):
    """Words of a task table: sizes, what a graph and a schedule hold, and the state that its workers share.

    Counters are never zeroed: step n of a table waits for n * arrivals more.
    """

    tasks: int
    sms: int
    queued: int  # tasks in the queue
    capacity: int  # records a ring holds
    function: int  # i64[tasks]: address of the op
    where: int  # i64[tasks, 7]: layer, slot, tile and the four args that the op takes
    wait_ptr: int  # i32[tasks + 1]; this and what follows as in mkviz.graph.Graph
    wait_counter: int  # i32
    wait_need: int  # u32
    raise_ptr: int  # i32[tasks + 1]
    raise_counter: int  # i32
    arrivals: int  # u32[counters]
    order_ptr: int  # i32[sms + 1], as in mkviz.schedule.Schedule
    order: int  # i32
    queue: int  # i32
    # state
    counters: int  # u32[counters]
    raised: int  # i64[counters]: the newest publish (ns) among those that raised it, while tracing
    tickets: int  # u64[1]: claims so far
    finished: int  # u64[1]: SMs that came to the end of their step, over all steps
    lock: int  # u32[sms]: 1 while a worker plays the SM
    sm: int  # i64[sms, 6], under the lock: columns below
    records: int  # u32[sms, capacity, 8]
    live: int  # u64[sms, 16]
    limit: int  # u64[sms]: records a ring may hold in its life (see mkviz.ring)


_STEP, _CURSOR, _TASK, _AT_WAIT, _SHOWN, _CLAIM = range(6)  # _SHOWN: the wait that the live line shows
SM_WORDS = 6
NOTHING, DONE = -1, -2  # in place of a task: none taken up yet; no more in this step


class StepCall(NamedTuple):
    """Words of one step as a worker sees it."""

    binding: int  # address of the binding block
    epoch: int  # steps this table has run before
    step: int  # the backend's step number, over all tables
    trace: int
    seed: int  # 0: SMs in turn; else the order of play and, with jitter, the delays are drawn from it
    jitter: int  # largest random delay before a task, ns
    workers: int


_load_table, _load_step = words(Table), words(StepCall)


@inner()
def _run(table, it, scratch, t):
    w = i64(table.where, (table.tasks, 7))[t]
    function = pointer_i64(table.function)[t]
    return atomics.call(function, (it.binding, scratch, it.step, w[0], w[1], w[2], w[3], w[4], w[5], w[6]))


@inner()
def _random(state):
    """xorshift64: the next u64 after ``state``."""
    state ^= state << np.uint64(13)
    state ^= state >> np.uint64(7)
    return state ^ (state << np.uint64(17))


@inner()
def _next_task(table, it, sm, state):
    """The next task of an SM: owned ones first, then claimed; DONE when there is none left."""
    order_ptr = pointer_i32(table.order_ptr)
    at = order_ptr[sm] + state[_CURSOR]
    if at < order_ptr[sm + 1]:
        state[_CURSOR] += 1
        return np.int64(pointer_i32(table.order)[at])
    if table.queued == 0:
        return np.int64(DONE)
    # every SM draws exactly one ticket beyond the end in each step, so the base of the next step is known
    ticket = np.int64(atomics.add_release(pointer_u64(table.tickets), 0, np.uint64(1)))
    ticket -= it.epoch * (table.queued + table.sms)
    return np.int64(pointer_i32(table.queue)[ticket]) if ticket < table.queued else np.int64(DONE)


@inner()
def _record(table, it, sm, t, claim, ready, begin, end, publish, last_wait, flags):
    live = pointer_u64(table.live)
    head = np.int64(live[sm * _WORDS])
    if np.uint64(head) < atomics.load_acquire(pointer_u64(table.limit), sm):
        r = u32(table.records, (table.sms, table.capacity, 8))[sm, head & (table.capacity - 1)]
        lap = (head // table.capacity + 1) & 0xFF
        r[0] = np.uint32(claim & 0xFFFFFFFF)
        r[1] = np.uint32(min(ready - claim, 0xFFFFFFFF))
        r[2] = np.uint32(min(begin - claim, 0xFFFFFFFF))
        r[3] = np.uint32((head + 1) & 0xFFFFFFFF)
        r[4] = np.uint32(min(end - claim, 0xFFFFFFFF))
        r[5] = np.uint32(min(publish - claim, 0xFFFFFFFF))
        r[6] = np.uint32(t | (it.step & STEP_MASK) << TASK_BITS)
        r[7] = np.uint32(last_wait | flags << 16 | lap << 24)
    atomics.store_release(live, sm * _WORDS, np.uint64(head + 1))


@inner()
def _take_up(table, it, sm, state):
    """Give an SM its next task; returns it, or DONE at the end of the SM's step."""
    live, line = pointer_u64(table.live), sm * _WORDS
    if state[_STEP] != it.step:
        state[_STEP], state[_CURSOR] = it.step, 0
        if it.trace:
            live[line + 1] = np.uint64(it.step)
            live[line + 5] = live[line + 6] = np.uint64(atomics.now_ns())
            live[line + 7] = np.uint64(it.step)
    t = _next_task(table, it, sm, state)
    state[_TASK] = t
    if t == DONE:
        if it.trace:
            live[line + 2] = np.uint64(_NO_TASK | _IDLE << 32)
            atomics.store_release(live, line + 1, np.uint64(it.step + 1))
        atomics.add_release(pointer_u64(table.finished), 0, np.uint64(1))
        return t
    state[_AT_WAIT], state[_SHOWN] = pointer_i32(table.wait_ptr)[t], NOTHING
    if it.trace:
        state[_CLAIM] = atomics.now_ns()
        live[line + 2] = np.uint64(t | _WAITING << 32)
        live[line + 3] = np.uint64(state[_CLAIM])
    return t


@inner()
def _waits_met(table, it, sm, t, state):
    """Whether all counters that a task waits on have reached this step's targets; remembers how far it got."""
    wait_ptr = pointer_i32(table.wait_ptr)
    w, end = state[_AT_WAIT], np.int64(wait_ptr[t + 1])
    while w < end:
        c = pointer_i32(table.wait_counter)[w]
        target = np.uint32(np.uint32(it.epoch) * pointer_u32(table.arrivals)[c] + pointer_u32(table.wait_need)[w])
        if np.int32(atomics.load_acquire(pointer_u32(table.counters), c) - target) < 0:
            state[_AT_WAIT] = w
            if state[_SHOWN] != w:
                state[_SHOWN] = w
                pointer_u64(table.live)[sm * _WORDS + 4] = np.uint64(np.int64(c) | np.int64(target) << 32)
            return False
        w += 1
    state[_AT_WAIT] = w
    return True


@inner()
def _execute(table, it, scratch, sm, t, state):
    """Run a task whose waits are met, raise its counters, leave its record.

    ready: the last of its counters was there · begin, end: around the op · publish: read just before the release that lets
    consumers go.  A worker plays many SMs, so it sees a counter later than an SM of its own would; ready is therefore the
    newest publish of those that raised the counters, and what lies between ready and begin is want of a worker, not of data.
    """
    raised = pointer_i64(table.raised)
    if it.trace:
        begin, ready, last_wait = atomics.now_ns(), np.int64(0), np.int64(NO_WAIT)
        wait_ptr = pointer_i32(table.wait_ptr)
        for w in range(wait_ptr[t], wait_ptr[t + 1]):
            there = atomics.load_acquire(raised, pointer_i32(table.wait_counter)[w])
            if there > ready:
                ready, last_wait = there, w - wait_ptr[t]
        ready = min(max(ready, state[_CLAIM]), begin)  # a counter may go on beyond what the task needs
        live = pointer_u64(table.live)
        live[sm * _WORDS + 2] = np.uint64(t | _RUNNING << 32)
        live[sm * _WORDS + 3] = np.uint64(begin)
        worked = _run(table, it, scratch, t)
        end = publish = atomics.now_ns()
    else:
        ready = begin = end = publish = last_wait = 0
        worked = _run(table, it, scratch, t)
    raise_ptr = pointer_i32(table.raise_ptr)
    first, last = np.int64(raise_ptr[t]), np.int64(raise_ptr[t + 1])
    for i in range(first, last):
        c = pointer_i32(table.raise_counter)[i]
        if it.trace:
            if i == first:
                publish = atomics.now_ns()
            atomics.max_release(raised, c, publish)
        atomics.add_release(pointer_u32(table.counters), c, np.uint32(1))
    if it.trace:
        flags = KIND_TASK if worked else KIND_SKIPPED
        flags = flags if last > first else flags | FLAG_COVERED
        _record(table, it, sm, t, state[_CLAIM], ready, begin, end, publish, last_wait, flags)


@cfunc(types.int64(*[types.int64] * 4), cache=True)
def play(table_words, step_words, scratch, worker):
    """Play SMs until all have come to the end of the step.  Takes the addresses of three blocks and the worker's number."""
    table, it = _load_table(table_words), _load_step(step_words)
    finished, lock = pointer_u64(table.finished), pointer_u32(table.lock)
    target = np.uint64((it.epoch + 1) * table.sms)
    random = np.uint64(it.seed * 2654435761 + worker + 1)
    sm = worker * table.sms // max(1, it.workers)
    idle = 0
    while atomics.load_acquire(finished, 0) < target:
        if it.seed:
            random = _random(random)
            sm = np.int64(random % np.uint64(table.sms))
        else:
            sm = sm + 1 if sm + 1 < table.sms else 0
        idle += 1
        state = i64(table.sm, (table.sms, SM_WORDS))[sm]
        if state[_STEP] == it.step and state[_TASK] == DONE:
            pass
        elif atomics.exchange_acquire(lock, sm, np.uint32(1)) == 0:
            t = state[_TASK]
            if t == NOTHING or (t == DONE and state[_STEP] != it.step):
                _take_up(table, it, sm, state)  # and on to the next SM: all claim a task before any begins one
            elif t >= 0 and _waits_met(table, it, sm, t, state):
                idle = 0
                if it.jitter:
                    random = _random(random)
                    until = atomics.now_ns() + np.int64(random % np.uint64(it.jitter))
                    while atomics.now_ns() < until:
                        pass
                _execute(table, it, scratch, sm, t, state)
                _take_up(table, it, sm, state)  # now, as an SM of its own would: what follows is its wait, or want of a worker
            atomics.store_release(lock, sm, np.uint32(0))
        if idle > _SPINS:
            atomics.yield_cpu()
    return 0
