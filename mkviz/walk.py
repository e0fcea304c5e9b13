"""Walks through a graph that need no clock: who can come before whom.  Compiled with numba, so import it where it is needed.

A task becomes free when each of its counters has had ``need`` arrivals; arrivals never go away.  What can run therefore never
depends on timing, and one walk, in whatever order, decides what any execution can reach.  With a queue this still holds: were
an execution to stop where another goes on, take the first task the other finishes and this one does not.  Its waits are met
in both, so here it was never reached: it is not owned (its predecessors on the list are finished here too), and every SM that
claims holds a blocked task.  Those stand before it in the queue and are unfinished in the other execution as well, which holds
one task more with the same SMs.  Hence there is no such task, and :func:`walk` is exact.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import NamedTuple

import numpy as np
from numba import njit

from mkviz.graph import Graph
from mkviz.schedule import Schedule


class Links(NamedTuple):
    """Both directions of a graph as CSR: what tasks raise, and by counter who waits, ascending by need.

    ``wait`` is the index of that wait among the waiter's own.  A need beyond all arrivals is cut down to them, and a need of
    0 left out, so that a walk shows cycles and nothing else; the validator reports such needs by themselves.
    """

    unmet: np.ndarray  # i32[T]: waits of each task
    raise_ptr: np.ndarray  # i64[T + 1]
    raise_counter: np.ndarray  # i32[]
    waiter_ptr: np.ndarray  # i64[C + 1]
    waiter: np.ndarray  # i32[]: task
    need: np.ndarray  # i64[]
    wait: np.ndarray  # i32[]


def links(graph: Graph) -> Links:
    counts = np.diff(graph.wait_ptr)
    task = np.repeat(np.arange(len(graph), dtype=np.int32), counts)
    wait = (np.arange(len(task)) - np.repeat(graph.wait_ptr[:-1], counts)).astype(np.int32)
    counter = graph.wait_counter.astype(np.int64)
    need = np.minimum(graph.wait_need, graph.arrivals[counter]).astype(np.int64)
    order = np.lexsort((need, counter))
    order = order[need[order] > 0]
    ptr = np.zeros(len(graph.counters) + 1, np.int64)
    np.cumsum(np.bincount(counter[order], minlength=len(graph.counters)), out=ptr[1:])
    unmet = np.bincount(task[order], minlength=len(graph)).astype(np.int32)
    raise_ptr, raise_counter = graph.raise_ptr.astype(np.int64), graph.raise_counter.astype(np.int32)
    return Links(unmet, raise_ptr, raise_counter, ptr, task[order], need[order], wait[order])


@njit(cache=True, nogil=True)
def _finish(task, links, unmet, value, cursor, free):
    """Raise the counters of ``task``; put the tasks that this frees into ``free`` and return how many."""
    n = 0
    for i in range(links.raise_ptr[task], links.raise_ptr[task + 1]):
        c = links.raise_counter[i]
        value[c] += 1
        while cursor[c] < links.waiter_ptr[c + 1] and links.need[cursor[c]] <= value[c]:
            t = links.waiter[cursor[c]]
            cursor[c] += 1
            unmet[t] -= 1
            if unmet[t] == 0:
                free[n] = t
                n += 1
    return n


@njit(cache=True, nogil=True)
def _sort(links, order):
    tasks = len(links.unmet)
    unmet, cursor = links.unmet.copy(), links.waiter_ptr[:-1].copy()
    value = np.zeros(len(cursor), np.int64)
    free = np.empty(tasks, np.int32)
    heap = [np.int64(t) for t in range(tasks) if unmet[t] == 0]
    n = 0
    while len(heap) > 0:
        task = heappop(heap)
        order[n] = task
        n += 1
        for i in range(_finish(task, links, unmet, value, cursor, free)):
            heappush(heap, np.int64(free[i]))
    return n


def sort(graph: Graph) -> np.ndarray:
    """i32[]: a topological order, of tasks that are free the lowest first; tasks behind a cycle are left out."""
    order = np.empty(len(graph), np.int32)
    return order[: _sort(links(graph), order)]


@njit(cache=True, nogil=True)
def _walk(links, order_ptr, order, queue, held, done):
    tasks, sms = len(links.unmet), len(order_ptr) - 1
    unmet, cursor = links.unmet.copy(), links.waiter_ptr[:-1].copy()
    value = np.zeros(len(cursor), np.int64)
    free = np.empty(tasks, np.int32)
    holder = np.full(tasks, -1, np.int32)  # the SM that waits with this task in hand
    at = order_ptr[:-1].copy()
    ticket = 0
    ready = [np.int64(s) for s in range(sms - 1, -1, -1)]
    while len(ready) > 0:
        s = ready.pop()
        while True:
            task = held[s]
            if task < 0:
                if at[s] < order_ptr[s + 1]:
                    task = order[at[s]]
                    at[s] += 1
                elif ticket < len(queue):
                    task = queue[ticket]
                    ticket += 1
                else:
                    break
            if unmet[task] > 0:
                held[s] = task
                holder[task] = s
                break
            held[s] = -1
            done[task] = True
            for i in range(_finish(task, links, unmet, value, cursor, free)):
                if holder[free[i]] >= 0:
                    ready.append(np.int64(holder[free[i]]))
    return ticket


def walk(graph: Graph, schedule: Schedule) -> tuple[np.ndarray, np.ndarray, int]:
    """Run the schedule without a clock until nothing moves.

    Returns (held i32[sms], the task each SM is stuck at, -1: none; done bool[T]; tickets taken from the queue).
    """
    held = np.full(schedule.sms, -1, np.int32)
    done = np.zeros(len(graph), bool)
    ptr, order, queue = (np.ascontiguousarray(a, np.int64) for a in (schedule.order_ptr, schedule.order, schedule.queue))
    tickets = _walk(links(graph), ptr, order, queue, held, done)
    return held, done, int(tickets)


@njit(cache=True, nogil=True)
def _list(links, wait_ptr, wait_counter, topo, cost, hop, sms, sm_of, place):
    tasks = len(cost)
    behind = np.zeros(len(links.waiter_ptr) - 1, np.int64)  # longest path that begins at a counter
    rank = np.zeros(tasks, np.int64)
    for k in range(tasks - 1, -1, -1):
        t = topo[k]
        longest = np.int64(0)
        for i in range(links.raise_ptr[t], links.raise_ptr[t + 1]):
            longest = max(longest, behind[links.raise_counter[i]])
        rank[t] = cost[t] + longest
        for i in range(wait_ptr[t], wait_ptr[t + 1]):
            behind[wait_counter[i]] = max(behind[wait_counter[i]], rank[t] + hop)

    unmet, cursor = links.unmet.copy(), links.waiter_ptr[:-1].copy()
    value = np.zeros(len(cursor), np.int64)
    free = np.empty(tasks, np.int32)
    seen = np.zeros(len(cursor), np.int64)  # when the latest arrival at a counter is seen
    later = [(np.int64(0), np.int64(t)) for t in range(tasks) if unmet[t] == 0]  # (when its waits are met, task)
    ready = [(np.int64(0), np.int64(0))][:0]  # (-rank, task)
    idle = [(np.int64(0), np.int64(s)) for s in range(sms)]
    now = np.int64(0)  # it never goes back: what is ready was not before
    for n in range(tasks):
        since, s = heappop(idle)
        now = max(now, since)
        if len(ready) == 0:
            now = max(now, later[0][0])
        while len(later) > 0 and later[0][0] <= now:
            t = heappop(later)[1]
            heappush(ready, (-rank[t], t))
        t = heappop(ready)[1]
        sm_of[t], place[n] = s, t
        end = now + cost[t]
        heappush(idle, (end, s))
        for i in range(links.raise_ptr[t], links.raise_ptr[t + 1]):
            seen[links.raise_counter[i]] = max(seen[links.raise_counter[i]], end + hop)
        for i in range(_finish(t, links, unmet, value, cursor, free)):
            met = np.int64(0)
            for j in range(wait_ptr[free[i]], wait_ptr[free[i] + 1]):
                met = max(met, seen[wait_counter[j]])
            heappush(later, (met, np.int64(free[i])))


def list_schedule(graph: Graph, topo: np.ndarray, cost: np.ndarray, hop: int, sms: int) -> tuple[np.ndarray, np.ndarray]:
    """List scheduling: whichever SM is free first takes, of the tasks then ready, the one with the longest path behind it.

    ``cost`` i64[T] and ``hop``, from a producer's end to its consumer's begin, are ns.  Returns (sm_of i32[T], tasks in the
    order in which they were placed i32[T]).
    """
    sm_of, place = np.empty(len(graph), np.int32), np.empty(len(graph), np.int32)
    wait_ptr, wait_counter = graph.wait_ptr.astype(np.int64), graph.wait_counter.astype(np.int32)
    _list(links(graph), wait_ptr, wait_counter, topo, cost.astype(np.int64), hop, sms, sm_of, place)
    return sm_of, place
