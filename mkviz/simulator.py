"""Simulator: a discrete-event replay of one step of a graph, under a schedule, on a machine model.

Each SM has a loader and a math role.  The loader takes up tasks in load order and sends their bytes, chunk by chunk, into the
SM's ring, ahead of math as far as the ring reaches; all SMs that send share the bandwidth evenly.  Math takes the tasks in
order: it begins one when the last producer's publish was seen, a hop later, its activations are fed, and the first chunk has
landed.  It works through the chunks as they land, each for its share of the task's own math time, so that a task lasts as long
as the longer of its bytes and its math.
A chunk gives its stage back when math is done with it.  What is claimed from the queue is claimed when math is idle.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from mkviz.costs import COSTS_OF_TASK, Costs
from mkviz.errors import MkvizError
from mkviz.graph import Graph
from mkviz.machine import H200, Machine
from mkviz.record import EVENT, FLAG_BYTES_LAST, FLAG_COVERED, KIND_TASK, NO_WAIT
from mkviz.schedule import Schedule
from mkviz.validate import check


@dataclass(frozen=True, eq=False)
class Simulated:
    """One simulated step.  ``events``: EVENT[T], SM by SM in the order of execution, ns since the step began (step 0, role 0).

    ``makespan``: ns until the last publish; ``bytes``: read in all; ``kernels``: launches, 1 for a megakernel.
    """

    events: np.ndarray
    makespan: int
    bytes: int
    kernels: int
    machine: Machine

    @property
    def gbps(self) -> float:
        """Achieved GB/s over the step."""
        return self.bytes / self.makespan if self.makespan else 0.0

    @property
    def label(self) -> str:
        return f"simulated ({self.machine.name})"


def simulate(
    graph: Graph,
    schedule: Schedule,
    machine: Machine = H200,
    *,
    prefetch: bool = True,
    barrier_per_op: bool = False,
    late: np.ndarray | None = None,
    costs: Costs | None = None,
) -> Simulated:
    """Simulate one step.

    What-ifs: without ``prefetch`` an SM asks for the bytes of a task only when the task before it has ended, its own waits are
    met and its activations fed, like a block that is not divided into roles; a graph whose ``meta["prefetch"]`` is false
    is of a kernel that does so.  With ``barrier_per_op`` every (op, layer) is a kernel of its own, launched when all tasks of
    the kernel before have published, and nothing is loaded ahead across kernels.  Other machines are other ``machine`` values,
    other SM counts and orders other schedules.

    ``late`` bool[T] marks tasks whose bytes can be asked for only when their waits are met and their activations fed, because
    the addresses come from there (routed experts); by default the tasks of the ops that ``graph.meta["late_ops"]`` lists.
    ``costs``: of each task; by default what the machine says.

    Raises :class:`MkvizError` for a graph or schedule that the validator refuses, for more SMs than the machine has, for a
    ``late`` or ``costs`` of another length and for ops that cannot be kernels of their own.
    """
    from mkviz.replay import replay  # numba loads with the first simulation

    if schedule.sms > machine.sms:
        raise MkvizError(
            f"schedule over {schedule.sms} SMs, {machine.name} has {machine.sms}", "a schedule of its size or less"
        )
    check(graph, schedule)
    prefetch = prefetch and bool(graph.meta.get("prefetch", True))
    late = _late(graph, late) if prefetch else np.ones(len(graph), bool)
    costs = Costs.of_machine(graph, machine) if costs is None else costs
    if len(costs) != len(graph):
        raise MkvizError(f"costs of {len(costs)} tasks", f"of each of the {len(graph)} tasks of graph {graph.name}")
    shared, rates = _shared(machine), _rates(machine, schedule.sms)
    tasks, counters, waiters = _arrays(graph, machine, late, costs)
    raises = graph.raise_counter.astype(np.int64)
    end = kernels = 0
    for ptr, order, queue in _kernels(graph, schedule) if barrier_per_op else [_whole(schedule)]:
        start = end + int(machine.launch_ns) if kernels else 0  # the step begins with its first kernel already running
        end = int(replay(shared, rates, prefetch, tasks, counters, raises, waiters, _lanes(ptr), order, queue, start))
        kernels += 1
    return Simulated(_events(graph, tasks), end, int(graph.bytes.sum()), kernels, machine)


def _shared(machine: Machine) -> np.ndarray:
    from mkviz.replay import COSTS

    return np.array([(machine.stages, machine.chunk_bytes, machine.latency_ns, machine.claim_ns)], COSTS)


def _arrays(graph: Graph, machine: Machine, late: np.ndarray, costs: Costs) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Tasks, counters and waiters as the replay keeps them."""
    from mkviz.replay import COUNTER, TASK, WAITER
    from mkviz.walk import links

    graph_links = links(graph)
    tasks = np.zeros(len(graph), TASK)
    tasks["bytes"] = graph.bytes
    tasks["chunks"] = -(-graph.bytes.astype(np.int64) // machine.chunk_bytes)
    for name in COSTS_OF_TASK:
        tasks[name] = getattr(costs, name)
    tasks["raise_from"], tasks["raise_to"] = graph.raise_ptr[:-1], graph.raise_ptr[1:]
    tasks["unmet"] = graph_links.unmet
    tasks["late"] = late
    tasks["sm"] = tasks["last_wait"] = -1
    counters = np.zeros(len(graph.counters), COUNTER)
    counters["next"], counters["stop"] = graph_links.waiter_ptr[:-1], graph_links.waiter_ptr[1:]
    waiters = np.empty(len(graph_links.waiter), WAITER)
    waiters["task"], waiters["need"], waiters["wait"] = graph_links.waiter, graph_links.need, graph_links.wait
    return tasks, counters, waiters


def _lanes(order_ptr: np.ndarray) -> np.ndarray:
    from mkviz.replay import LANE

    lanes = np.zeros(len(order_ptr) - 1, LANE)
    lanes["take"] = lanes["run"] = order_ptr[:-1]
    lanes["stop"] = order_ptr[1:]
    lanes["load"] = lanes["task"] = -1
    return lanes


def _rates(machine: Machine, sms: int) -> np.ndarray:
    """i64[sms + 1]: what each of n loading SMs gets, in 2^-16 bytes per ns, rounded down."""
    from mkviz.replay import FRACTION

    one = 10**9
    cap = (int(machine.sm_bandwidth) << FRACTION) // one
    rates = [0, *(min(cap, (int(machine.bandwidth) << FRACTION) // (one * n)) for n in range(1, sms + 1))]
    if rates[-1] < 1:
        raise MkvizError(f"{machine.name}: {machine.bandwidth} bytes/s for {sms} SMs", "15,300 bytes/s per SM or more")
    return np.array(rates, np.int64)


def _late(graph: Graph, late: np.ndarray | None) -> np.ndarray:
    if late is None:
        names = graph.meta.get("late_ops", [])
        for name in names:
            if name not in graph.ops:
                raise MkvizError(f"graph {graph.name}: late_ops names {name!r}", f"ops among {', '.join(graph.ops)}")
        return np.isin(graph.op, [graph.ops.index(name) for name in names])
    if len(late) != len(graph):
        raise MkvizError(f"late has {len(late)} entries", f"one for each of the {len(graph)} tasks")
    return np.asarray(late, bool)


def _whole(schedule: Schedule) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return schedule.order_ptr.astype(np.int64), schedule.order.astype(np.int64), schedule.queue.astype(np.int64)


def _kernels(graph: Graph, schedule: Schedule) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """The schedule cut into one kernel per (op, layer), producers first; within a kernel SMs and orders stay as they were."""
    place = kernel_of(graph)
    sm = np.repeat(np.arange(schedule.sms), np.diff(schedule.order_ptr))
    of = place[schedule.order]
    by_kernel = np.lexsort((sm, of))  # stable: each SM keeps its order
    order, sm = schedule.order[by_kernel].astype(np.int64), sm[by_kernel]
    kernels = int(place.max(initial=-1)) + 1
    bounds = np.searchsorted(of[by_kernel], np.arange(kernels + 1))
    queue = schedule.queue[np.argsort(place[schedule.queue], kind="stable")].astype(np.int64)
    tickets = np.searchsorted(place[queue], np.arange(kernels + 1))
    for k in range(kernels):
        mine = slice(bounds[k], bounds[k + 1])
        ptr = np.searchsorted(sm[mine], np.arange(schedule.sms + 1)).astype(np.int64)
        yield ptr, order[mine], queue[tickets[k] : tickets[k + 1]]


def kernel_of(graph: Graph) -> np.ndarray:
    """i64[T]: the place of each task's (op, layer) in an order of kernels, by first task where dependencies leave a choice."""
    import heapq

    if len(graph) == 0:
        return np.empty(0, np.int64)
    key = graph.layer.astype(np.int64) * len(graph.ops) + graph.op
    _, first, kernel = np.unique(key, return_index=True, return_inverse=True)
    count = len(first)

    def pairs(counter, ptr):
        """Distinct counter * count + kernel."""
        return np.unique(counter.astype(np.int64) * count + np.repeat(kernel, np.diff(ptr)))

    raised, awaited = pairs(graph.raise_counter, graph.raise_ptr), pairs(graph.wait_counter, graph.wait_ptr)
    after: list[set[int]] = [set() for _ in range(count)]
    lo, hi = np.searchsorted(raised // count, awaited // count), np.searchsorted(raised // count, awaited // count, "right")
    for consumer, a, b in zip((awaited % count).tolist(), lo.tolist(), hi.tolist(), strict=True):
        for producer in (raised[a:b] % count).tolist():
            if producer != consumer:
                after[producer].add(consumer)
    unmet = np.zeros(count, np.int64)
    for consumers in after:
        unmet[list(consumers)] += 1
    heap = [(int(first[k]), k) for k in np.flatnonzero(unmet == 0).tolist()]
    heapq.heapify(heap)
    place, n = np.full(count, -1, np.int64), 0
    while heap:
        k = heapq.heappop(heap)[1]
        place[k], n = n, n + 1
        for c in after[k]:
            unmet[c] -= 1
            if unmet[c] == 0:
                heapq.heappush(heap, (int(first[c]), c))
    if n < count:
        stuck = ", ".join(f"{graph.ops[key[first[k]] % len(graph.ops)]} of layer {key[first[k]] // len(graph.ops)}"
                          for k in np.flatnonzero(place < 0)[:5].tolist())  # fmt: skip
        raise MkvizError(f"graph {graph.name}: {stuck} wait for each other", "no barrier per op: they cannot run one by one")
    return place[kernel]


def _events(graph: Graph, tasks: np.ndarray) -> np.ndarray:
    events = np.zeros(len(graph), EVENT)
    events["task"] = np.arange(len(graph))
    events["sm"] = tasks["sm"]
    events["claim"] = tasks["claim"]
    events["ready"] = np.maximum(tasks["claim"], tasks["seen"])
    events["begin"] = tasks["begin"]
    events["end"] = tasks["end"]
    covered = np.diff(graph.raise_ptr) == 0  # nothing to release: publish is the last store
    events["publish"] = tasks["end"] + tasks["publish"]
    events["last_wait"] = np.where(tasks["last_wait"] < 0, NO_WAIT, tasks["last_wait"])
    events["fill"] = tasks["fill"]
    events["flags"] = KIND_TASK | np.where(covered, FLAG_COVERED, 0) | np.where(tasks["bytes_last"], FLAG_BYTES_LAST, 0)
    return events[np.lexsort((tasks["begin"], tasks["sm"]))]
