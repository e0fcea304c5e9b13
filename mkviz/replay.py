"""Replay: the event loop of the simulator, compiled with numba; import it where it is needed.

All times are whole ns and all shares of bandwidth are whole 2^-16 bytes per ns, so a replay is exact: the same numbers on any
machine, and the same as stepping through it ns by ns.  What makes it fast is that all SMs that load get the same rate.  One
number, ``virtual``, counts the 2^-16 bytes that any SM loading since the start would have got; a chunk that starts at v ends
when ``virtual`` reaches v plus its size, however often the number of sharers changes meanwhile.  Chunks end at the next whole
ns, which costs the stream up to 1 ns a chunk (0.2 % with 16 KiB and all SMs of an H200 loading).

Within one ns, loads end first, then math, each publish as soon as it is due, then wake-ups and begins, and last SMs take
tickets, lowest SM first.
"""

from __future__ import annotations

from heapq import heappop, heappush

import numpy as np
from numba import njit

FRACTION = 16  # bits of a byte in rates and virtual time

# Kinds of events, in their order within one ns.  An event is packed as time | kind | SM.
END, WAKE, BEGIN, CLAIM = range(4)
KIND_SHIFT, TIME_SHIFT = 16, 18
NEVER = np.int64(1) << 62

WAITING, BEGUN, RUNNING, STALLED = range(4)  # math: operands are missing; begin is set; in a chunk; its next chunk is missing

COSTS = np.dtype([
    (name, "i8") for name in ("stages", "chunk_bytes", "latency", "claim")
])  # fmt: skip

TASK = np.dtype([
    ("bytes", "i8"), ("chunks", "i8"), ("raise_from", "i8"), ("raise_to", "i8"),
    ("math", "i8"), ("publish", "i8"), ("hop", "i8"), ("feed", "i8"), ("overhead", "i8"),
    ("unmet", "i8"), ("seen", "i8"), ("claim", "i8"), ("begin", "i8"), ("end", "i8"),
    ("sm", "i8"), ("last_wait", "i8"), ("fill", "u1"), ("late", "u1"), ("bytes_last", "u1"),
], align=True)  # fmt: skip
"""A task during a replay, with its costs (:class:`mkviz.costs.Costs`).  ``late``: its bytes are asked for only when it is fed;
``seen``: when its last wait was met."""

COUNTER = np.dtype([("value", "i8"), ("next", "i8"), ("stop", "i8")])
"""A counter: arrivals, and the part of the waiters, ascending by need, that it has not let go yet."""

WAITER = np.dtype([("task", "i8"), ("need", "i8"), ("wait", "i8")])
"""A wait: the task, the arrivals it needs, and the index of the wait among the task's own."""

LANE = np.dtype([
    ("take", "i8"),  # loader: place in the list of the next task it takes up
    ("load", "i8"),  # the task it is at, -1: none
    ("chunk", "i8"),  # the chunk of that task that is sent now or next
    ("sending", "i8"),  # 1 while one is
    ("wake", "i8"),  # when it looks again, set while it waits for a time that is known
    ("sent", "i8"),  # chunks sent by this SM in all
    ("eaten", "i8"),  # chunks that math is done with; a chunk holds its stage from its start until then
    ("run", "i8"),  # math: place in the list of the task it is at
    ("stop", "i8"),  # end of the list
    ("task", "i8"),  # the task it is at, -1: none
    ("done", "i8"),  # chunks of it done
    ("state", "i8"),
    ("free", "i8"),  # since when it could have begun
])  # fmt: skip
"""An SM: its two roles, and the ring between them."""


@njit(cache=True, nogil=True)
def _push(events, time, kind, s):
    heappush(events, np.int64(time) << TIME_SHIFT | np.int64(kind) << KIND_SHIFT | np.int64(s))


@njit(cache=True, nogil=True)
def _fed(task):
    """When the feeder is done with a task whose waits are met."""
    return task.seen + task.feed if task.last_wait >= 0 else task.seen


@njit(cache=True, nogil=True)
def _load(s, now, virtual, costs, prefetch, tasks, lanes, order, loads, events):
    """The loader of SM s goes on as far as it can: takes up tasks, starts the next chunk if there is a stage for it."""
    lane = lanes[s]
    if lane.sending or now < lane.wake:
        return
    while True:
        if lane.load < 0:
            if lane.take == lane.stop or not (prefetch or lane.take <= lane.run):
                return
            lane.load, lane.chunk = order[lane.take], 0
            lane.take += 1
            tasks[lane.load].sm, tasks[lane.load].claim = s, now
        if lane.chunk < tasks[lane.load].chunks:
            break
        lane.load = -1
    task = tasks[lane.load]
    if task.late:
        if task.unmet > 0:
            return
        fed = _fed(task)
        if fed > now:
            lane.wake = fed
            _push(events, fed, WAKE, s)
            return
    if lane.sent - lane.eaten < costs.stages:
        size = min(costs.chunk_bytes, task.bytes - lane.chunk * costs.chunk_bytes)
        lane.sending = 1
        heappush(loads, (virtual + (size << FRACTION), np.int64(s)))


@njit(cache=True, nogil=True)
def _settle(s, costs, tasks, lanes, landing, events):
    """Set the begin of the task that math of SM s is at, once its operands are known to come."""
    lane = lanes[s]
    if lane.task < 0 or lane.state != WAITING or tasks[lane.task].unmet > 0:
        return
    task = tasks[lane.task]
    begin = max(lane.free, _fed(task), task.claim)
    if task.chunks > 0:
        if lane.sent == lane.eaten:
            return
        landed = landing[s, lane.eaten % costs.stages]
        if landed > begin:
            begin = landed
            task.bytes_last = 1
    lane.state = BEGUN
    _push(events, begin + task.overhead, BEGIN, s)


@njit(cache=True, nogil=True)
def _compute(s, since, costs, tasks, lanes, landing, events):
    """Math of SM s does its next chunk from ``since`` on, or stalls because that was not even sent yet."""
    lane = lanes[s]
    task = tasks[lane.task]
    chunks = max(1, task.chunks)
    if task.chunks > 0:
        if lane.sent == lane.eaten:
            lane.state = STALLED
            return
        since = max(since, landing[s, lane.eaten % costs.stages])
    lane.state = RUNNING
    _push(events, since + task.math * (lane.done + 1) // chunks - task.math * lane.done // chunks, END, s)


@njit(cache=True, nogil=True)
def _next_task(s, now, lanes, order, events):
    """Math of SM s turns to the next task it owns, or asks for a ticket."""
    lane = lanes[s]
    lane.done, lane.state, lane.free = 0, WAITING, now
    if lane.run < lane.stop:
        lane.task = order[lane.run]
    else:
        lane.task = -1
        _push(events, now, CLAIM, s)


@njit(cache=True, nogil=True)
def _raise(task, now, tasks, counters, raises, waiters, freed):
    """Raise the counters of a task; put the tasks whose last wait this meets into ``freed`` and return how many."""
    n = 0
    for i in range(tasks[task].raise_from, tasks[task].raise_to):
        counter = counters[raises[i]]
        counter.value += 1
        while counter.next < counter.stop and waiters[counter.next].need <= counter.value:
            waiter = waiters[counter.next]
            counter.next += 1
            t = tasks[waiter.task]
            seen = now + t.hop
            if t.last_wait < 0 or seen > t.seen or waiter.wait < t.last_wait:
                t.last_wait = waiter.wait  # of waits met in the same ns, the first
            t.seen = seen
            t.unmet -= 1
            if t.unmet == 0:
                freed[n] = waiter.task
                n += 1
    return n


@njit(cache=True, nogil=True)
def replay(costs, rates, prefetch, tasks, counters, raises, waiters, lanes, order, queue, start):
    """Run the lists and the queue from ``start`` on; returns when the last task published."""
    costs = costs[0]
    for some in (order, queue):  # what an earlier kernel met is there when this one starts
        for t in some:
            if tasks[t].unmet == 0:
                tasks[t].seen = min(tasks[t].seen, start)
    landing = np.zeros((len(lanes), costs.stages), np.int64)  # when chunk i of an SM lands, at i mod stages
    freed = np.empty(len(tasks), np.int64)
    loads = [(np.int64(0), np.int64(0))][:0]  # (virtual time at which the chunk is all sent, SM)
    publishes = [(np.int64(0), np.int64(0))][:0]  # (time, task)
    events = [np.int64(0)][:0]
    virtual, now, last, ticket = np.int64(0), np.int64(start), np.int64(start), 0
    for s in range(len(lanes)):
        _next_task(s, now, lanes, order, events)
        _load(s, now, virtual, costs, prefetch, tasks, lanes, order, loads, events)
        _settle(s, costs, tasks, lanes, landing, events)
    while len(loads) > 0 or len(events) > 0 or len(publishes) > 0:
        before, rate = now, rates[len(loads)]
        now = NEVER
        if len(events) > 0:
            now = events[0] >> TIME_SHIFT
        if len(publishes) > 0:
            now = min(now, publishes[0][0])
        if len(loads) > 0:
            now = min(now, before + (loads[0][0] - virtual + rate - 1) // rate)
        virtual += rate * (now - before)

        while len(loads) > 0 and loads[0][0] <= virtual:
            s = heappop(loads)[1]
            lane = lanes[s]
            landing[s, lane.sent % costs.stages] = now + costs.latency
            lane.sending = 0
            lane.sent += 1
            lane.chunk += 1
            if lane.state == STALLED:
                _compute(s, now, costs, tasks, lanes, landing, events)
            else:
                _settle(s, costs, tasks, lanes, landing, events)
            _load(s, now, virtual, costs, prefetch, tasks, lanes, order, loads, events)

        while True:
            if len(publishes) > 0 and publishes[0][0] == now:
                for i in range(_raise(heappop(publishes)[1], now, tasks, counters, raises, waiters, freed)):
                    at = tasks[freed[i]].sm
                    if at >= 0:
                        _settle(at, costs, tasks, lanes, landing, events)
                        _load(at, now, virtual, costs, prefetch, tasks, lanes, order, loads, events)
                continue
            if len(events) == 0 or events[0] >> TIME_SHIFT > now:
                break
            event = heappop(events)
            kind, s = event >> KIND_SHIFT & 3, event & 0xFFFF
            lane = lanes[s]
            if kind == END:
                task = tasks[lane.task]
                lane.done += 1
                lane.eaten += task.chunks > 0
                if lane.done < task.chunks:
                    _compute(s, now, costs, tasks, lanes, landing, events)
                else:
                    task.end = now
                    last = max(last, now + task.publish)
                    heappush(publishes, (now + task.publish, np.int64(lane.task)))
                    lane.run += 1
                    _next_task(s, now, lanes, order, events)
                _load(s, now, virtual, costs, prefetch, tasks, lanes, order, loads, events)
                _settle(s, costs, tasks, lanes, landing, events)
            elif kind == BEGIN:
                landed = 0
                for i in range(lane.eaten, lane.sent):
                    landed += landing[s, i % costs.stages] <= now
                tasks[lane.task].begin = now
                tasks[lane.task].fill = min(15, 16 * landed // costs.stages)
                _compute(s, now, costs, tasks, lanes, landing, events)
            elif kind == WAKE:
                _load(s, now, virtual, costs, prefetch, tasks, lanes, order, loads, events)
            elif ticket < len(queue):
                lane.task = lane.load = queue[ticket]
                lane.chunk = 0
                ticket += 1
                tasks[lane.task].sm, tasks[lane.task].claim = s, now
                lane.free = lane.wake = now + costs.claim
                _push(events, lane.wake, WAKE, s)
                _settle(s, costs, tasks, lanes, landing, events)
    return last
