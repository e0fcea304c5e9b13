"""Policies: functions that turn a graph into a schedule.

A new policy is one function that says which SM runs which tasks in which order::

    @policy("mine")
    def mine(graph, sms, *, seed=0):
        order = topological_order(graph)            # producers before their consumers
        sm = np.random.default_rng(seed).integers(sms, size=len(order))
        return owned(order, sm, sms, "mine")        # SM sm[i] runs task order[i]

    make_schedule(graph, 132, policy="mine", seed=7)

Lists that follow one topological order can never deadlock; whatever a policy returns is validated all the same.
"""

from __future__ import annotations

import heapq
import inspect
from collections.abc import Callable

import numpy as np

from mkviz.balance import deal
from mkviz.errors import MkvizError
from mkviz.graph import Graph
from mkviz.machine import H200, Machine
from mkviz.order import topological_order
from mkviz.schedule import Schedule
from mkviz.validate import check

POLICIES: dict[str, Callable[..., Schedule]] = {}


def policy(name: str):
    """Register a function ``(graph, sms, **options) -> Schedule`` under a name."""

    def register(function):
        POLICIES[name] = function
        return function

    return register


def make_schedule(graph: Graph, sms: int, policy: str = "list", **options) -> Schedule:
    """Schedule a graph over ``sms`` SMs by a named policy and validate the result.

    Raises :class:`MkvizError` for an unknown policy or option, an SM count below 1, a graph that no schedule can run, and a
    policy whose schedule deadlocks.
    """
    if policy not in POLICIES:
        raise MkvizError(f"unknown policy {policy!r}", f"one of {', '.join(POLICIES)}")
    if not isinstance(sms, int | np.integer) or sms < 1:
        raise MkvizError(f"policy {policy}: {sms!r} SMs", "a whole number, 1 or more")
    known = list(inspect.signature(POLICIES[policy]).parameters)[2:]
    for option in options:
        if option not in known:
            raise MkvizError(f"policy {policy}: unknown option {option!r}", f"one of {', '.join(known) or '(it takes none)'}")
    check(graph)
    schedule = POLICIES[policy](graph, int(sms), **options)
    check(graph, schedule)
    return schedule


def owned(tasks: np.ndarray, sm: np.ndarray, sms: int, policy: str) -> Schedule:
    """A schedule without a queue in which SM ``sm[i]`` runs ``tasks[i]``, each SM in the order of ``tasks``."""
    ptr = np.zeros(sms + 1, np.int32)
    np.cumsum(np.bincount(sm, minlength=sms), out=ptr[1:])
    order = np.asarray(tasks, np.int32)[np.argsort(sm, kind="stable")]
    return Schedule(sms, ptr, order, np.empty(0, np.int32), order.copy(), policy)


@policy("round_robin")
def round_robin(graph: Graph, sms: int) -> Schedule:
    """Task i goes to SM i mod sms, in graph order."""
    order = topological_order(graph)
    return owned(order, np.arange(len(order)) % sms, sms, "round_robin")


@policy("layered")
def layered(graph: Graph, sms: int, *, machine: Machine = H200) -> Schedule:
    """Graph order; each task goes to the SM with the least work in this layer, so that every layer is even by itself."""
    order = topological_order(graph)
    cost, layer = machine.task_ns(graph, sms).tolist(), graph.layer.tolist()
    sm, loads, last = np.empty(len(order), np.int64), [], None
    for i, t in enumerate(order.tolist()):
        if layer[t] != last:  # go on where the last layer stopped: always starting at SM 0 would load it with every remainder
            first = (sm[i - 1] + 1) % sms if i else 0
            loads, last = [(0, k, int((first + k) % sms)) for k in range(sms)], layer[t]
        load, k, s = loads[0]
        heapq.heapreplace(loads, (load + cost[t], k, s))
        sm[i] = s
    return owned(order, sm, sms, "layered")


@policy("balanced")
def balanced(graph: Graph, sms: int, *, attention_bytes: int = 128 << 10, fresh_bytes: int = 256 << 10,
             merges_beside: bool = True) -> Schedule:  # fmt: skip
    """Each layer evened out for a kernel that walks its lists in order: see :mod:`mkviz.balance`.

    Of what runs beside attention an SM gets ``attention_bytes`` less for each attention task that it has, and ``fresh_bytes``
    less where one of them ends in the page that this step writes.  ``merges_beside``: merges stand in the middle of what runs
    beside attention, else right behind it.  Raises :class:`MkvizError` where one of the sizes is below 0.
    """
    for name, value in (("attention_bytes", attention_bytes), ("fresh_bytes", fresh_bytes)):
        if not value >= 0:
            raise MkvizError(f"policy balanced: {name} is {value}", "0 bytes or more")
    order, sm = deal(graph, sms, attention_bytes, fresh_bytes, merges_beside)
    return owned(order, sm, sms, "balanced")


@policy("list")
def list_(graph: Graph, sms: int, *, machine: Machine = H200) -> Schedule:
    """List scheduling by cost: the SM that is free first takes the ready task with the longest path behind it."""
    from mkviz.walk import list_schedule  # numba

    sm, placed = list_schedule(graph, topological_order(graph), machine.task_ns(graph, sms), machine.hand_over_ns, sms)
    return owned(placed, sm[placed], sms, "list")


@policy("claimed")
def claimed(graph: Graph, sms: int) -> Schedule:
    """Nobody owns anything: SMs claim all tasks, in graph order, as they become free."""
    none = np.empty(0, np.int32)
    return Schedule(sms, np.zeros(sms + 1, np.int32), none, topological_order(graph), none.copy(), "claimed")
