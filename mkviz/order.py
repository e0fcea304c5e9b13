"""Order: producers before consumers, without compiling anything where the order is plain to see."""

from __future__ import annotations

import numpy as np

from mkviz.graph import Graph
from mkviz.kept import kept_with_graph
from mkviz.schedule import Schedule


def topological_order(graph: Graph) -> np.ndarray:
    """i32[]: task ids, producers first; graph order where that is such an order.  A graph with a cycle leaves some out.

    Needs beyond all arrivals count as cut down to them: the validator reports those by themselves.  It is kept with the graph.
    """
    return _order(graph).copy()


@kept_with_graph
def _order(graph: Graph) -> np.ndarray:
    task = np.repeat(np.arange(len(graph)), np.diff(graph.wait_ptr))
    need = np.minimum(graph.wait_need, graph.arrivals[graph.wait_counter]).astype(np.int64)
    task, counter, need = task[need > 0], graph.wait_counter[need > 0], need[need > 0]
    ptr, producer = graph.producers
    if (producer[ptr[counter] + need - 1] < task).all():  # in graph order, this producer is the one that meets the wait
        return np.arange(len(graph), dtype=np.int32)
    from mkviz.walk import sort  # numba

    return sort(graph)


def follows(schedule: Schedule, order: np.ndarray) -> bool:
    """Whether lists and queue follow a topological order of all tasks, and some SM owns nothing where there is a queue.

    Then nothing can deadlock: the first unfinished task in that order has its waits met and nothing unfinished before it.
    """
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    sm = np.repeat(np.arange(schedule.sms), np.diff(schedule.order_ptr))
    falls = (np.diff(place[schedule.order]) < 0) & (np.diff(sm) == 0)
    if falls.any() or (np.diff(place[schedule.queue]) < 0).any():
        return False
    return len(schedule.queue) == 0 or len(np.unique(sm)) < schedule.sms
