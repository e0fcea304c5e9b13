"""Validator: can this schedule run this graph, and if not, who is to blame."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from mkviz.errors import MkvizError
from mkviz.graph import MAX_TASKS, Graph
from mkviz.order import follows, topological_order
from mkviz.record import NO_WAIT
from mkviz.schedule import Schedule

SHOWN = 5  # culprits named one by one; the rest are counted
MAX_SMS = (1 << 15) - 1  # an SM index is i16


def check(graph: Graph, schedule: Schedule | None = None) -> None:
    """Raise :class:`MkvizError` for the first thing wrong with a graph, or with a graph under a schedule."""
    for what, remedy in _problems(graph, schedule):
        raise MkvizError(what, remedy)


def problems(graph: Graph, schedule: Schedule | None = None) -> list[str]:
    """All that is wrong, one line each; empty if the schedule runs the graph whatever the timing.

    Checked in this order, and no further than what the rest would need: arrays and indices; needs that producers cannot meet;
    cycles; tasks scheduled never or twice; ring order against consumption order; deadlock of the lists and the queue.
    """
    return [f"{what}; {remedy}" for what, remedy in _problems(graph, schedule)]


def _problems(graph: Graph, schedule: Schedule | None) -> Iterator[tuple[str, str]]:
    malformed = list(_graph_arrays(graph))
    if schedule is not None:
        malformed += _schedule_arrays(graph, schedule)
    yield from malformed
    if malformed:
        return
    yield from _waits(graph)
    order = topological_order(graph)
    cycle = _cycle(graph, order)
    if cycle:
        yield f"graph {graph.name} has a cycle: {_chain(cycle)}", "remove one of these waits"
    if schedule is None:
        return
    unfit = list(_each_once(graph, schedule))
    yield from unfit
    yield from _ring_order(graph, schedule)
    if not cycle and not unfit and not follows(schedule, order):
        yield from _deadlock(graph, schedule)


# -- arrays and indices


def _csr(name: str, ptr: np.ndarray, rows: int, entries: int, row_name) -> Iterator[tuple[str, str]]:
    if len(ptr) != rows + 1 or ptr[0] != 0 or ptr[-1] != entries:
        ends = f"{int(ptr[0])} to {int(ptr[-1])}" if len(ptr) else "nothing"
        yield f"{name} has {len(ptr)} entries from {ends}", f"{rows + 1} entries from 0 to {entries}"
    else:
        for row in np.flatnonzero(np.diff(ptr) < 0)[:SHOWN].tolist():
            yield f"{name} falls from {int(ptr[row])} to {int(ptr[row + 1])} at {row_name(row)}", "pointers that never fall"


def _range(name: str, values: np.ndarray, limit: int, of: str, where) -> Iterator[tuple[str, str]]:
    for i in np.flatnonzero((values < 0) | (values >= limit))[:SHOWN].tolist():
        yield f"{name}[{i}] ({where(i)}) names {of} {int(values[i])}", f"one of the {limit} there are, counted from 0"


def _graph_arrays(graph: Graph) -> Iterator[tuple[str, str]]:
    tasks, name = len(graph.op), f"graph {graph.name}"
    if tasks >= MAX_TASKS:
        yield f"{name}: {tasks} tasks", f"a record holds task ids below {MAX_TASKS}"
    columns = ("layer", "slot", "tile", "bytes", "flops")
    short = [c for c in columns if len(getattr(graph, c)) != tasks]
    for column in short:
        yield f"{name}: {column} has {len(getattr(graph, column))} entries", f"one for each of the {tasks} tasks"
    if len(graph.wait_need) != len(graph.wait_counter):
        yield f"{name}: {len(graph.wait_need)} needs for {len(graph.wait_counter)} waits", "one need for each wait"
    bad_op = np.flatnonzero(graph.op >= len(graph.ops))
    for t in bad_op[:SHOWN].tolist():
        yield f"{name}: task {t} is of op {int(graph.op[t])}", f"one of the {len(graph.ops)} there are, counted from 0"
    if short or len(bad_op):
        return

    def task(t):
        return f"task {t}, {graph.label(t)}"

    for column in ("bytes", "flops"):
        for t in np.flatnonzero(getattr(graph, column) < 0)[:SHOWN].tolist():
            yield f"{name}: {task(t)} has {int(getattr(graph, column)[t])} {column}", "0 or more"
    for word, ptr, counter in (
        ("wait", graph.wait_ptr, graph.wait_counter),
        ("raise", graph.raise_ptr, graph.raise_counter),
    ):
        bad_ptr = list(_csr(f"{name}: {word}_ptr", ptr, tasks, len(counter), task))
        yield from bad_ptr

        def owner(i, bad_ptr=bad_ptr, ptr=ptr):
            return "of no task" if bad_ptr else task(int(np.searchsorted(ptr, i, "right")) - 1)

        yield from _range(f"{name}: {word}_counter", counter, len(graph.counters), "counter", owner)
        if word == "wait" and not bad_ptr:
            for t in np.flatnonzero(np.diff(ptr) >= NO_WAIT)[:SHOWN].tolist():
                yield f"{name}: {task(t)} waits {int(ptr[t + 1] - ptr[t])} times", f"fewer than {NO_WAIT}, as a record counts"


def _schedule_arrays(graph: Graph, schedule: Schedule) -> Iterator[tuple[str, str]]:
    if not 1 <= schedule.sms <= MAX_SMS:
        yield f"schedule over {schedule.sms} SMs", f"1 to {MAX_SMS}"
        return
    bad_ptr = list(_csr("order_ptr", schedule.order_ptr, schedule.sms, len(schedule.order), lambda s: f"SM {s}"))
    yield from bad_ptr

    def owner(i):
        return "of no SM" if bad_ptr else f"SM {int(np.searchsorted(schedule.order_ptr, i, 'right')) - 1}"

    yield from _range("order", schedule.order, len(graph), "task", owner)
    yield from _range("queue", schedule.queue, len(graph), "task", lambda i: f"ticket {i}")
    if len(schedule.load_order) != len(schedule.order):
        yield f"load_order has {len(schedule.load_order)} tasks", f"the {len(schedule.order)} of order"
    else:
        yield from _range("load_order", schedule.load_order, len(graph), "task", owner)


# -- the graph


def _waits(graph: Graph) -> Iterator[tuple[str, str]]:
    arrivals = graph.arrivals.astype(np.int64)
    need, counter = graph.wait_need.astype(np.int64), graph.wait_counter
    bad = np.flatnonzero((need < 1) | (need > arrivals[counter]))
    for i in bad[:SHOWN].tolist():
        task, c = int(np.searchsorted(graph.wait_ptr, i, "right")) - 1, int(counter[i])
        name, have = graph.counters[c], int(arrivals[c])
        if need[i] < 1:
            yield f"{graph.label(task)} waits for {int(need[i])} arrivals at counter {name}", "at least 1, or no wait"
        elif have == 0:
            yield f"{graph.label(task)} waits for counter {name}, which nobody raises", "a producer, or no wait"
        else:
            yield f"{graph.label(task)} waits for {int(need[i])} arrivals at counter {name}", f"it has {have} in a step"
    if len(bad) > SHOWN:
        yield f"{len(bad) - SHOWN} more waits that cannot be met", "needs from 1 to the arrivals of their counters"


def _cycle(graph: Graph, order: np.ndarray) -> list[str]:
    """A cycle told task by task, each with the counter through which it waits for the next; empty if there is none."""
    if len(order) == len(graph):
        return []
    done = np.zeros(len(graph), bool)
    done[order] = True
    value = _values(graph, done)
    path, place, task = [], {}, int(np.flatnonzero(~done)[0])
    while task not in place:
        place[task] = len(path)
        counter, producer = _missing(graph, task, done, value)
        path.append(f"{graph.label(task)} (waits for {graph.counters[counter]})")
        task = producer
    return [*path[place[task] :], graph.label(task)]


def _values(graph: Graph, done: np.ndarray) -> np.ndarray:
    """i64[C]: what the counters stand at when the given tasks have run."""
    ran = np.repeat(done, np.diff(graph.raise_ptr))
    return np.bincount(graph.raise_counter[ran], minlength=len(graph.counters))


def _missing(graph: Graph, task: int, done: np.ndarray, value: np.ndarray) -> tuple[int, int]:
    """A counter that keeps a stuck task waiting, and a producer of it that has not run."""
    ptr, producer = graph.producers
    for counter, need in graph.waits(task):
        if value[counter] < min(need, int(graph.arrivals[counter])):
            among = producer[ptr[counter] : ptr[counter + 1]]
            return counter, int(among[~done[among]][0])
    raise AssertionError(f"task {task} is not stuck")


def _chain(links: list[str]) -> str:
    if len(links) > 24:
        links = [*links[:12], f"… {len(links) - 23} more …", *links[-11:]]
    return " → ".join(links)


# -- the schedule


def _each_once(graph: Graph, schedule: Schedule) -> Iterator[tuple[str, str]]:
    times = np.bincount(np.concatenate([schedule.order, schedule.queue]), minlength=len(graph))
    for bad, word, remedy in ((times == 0, "not scheduled", "one SM or the queue"), (times > 1, "scheduled twice", "once")):
        tasks = np.flatnonzero(bad)
        for t in tasks[:SHOWN].tolist():
            where = "".join(f", by {place}" for place in _places(schedule, t))
            yield f"{graph.label(t)} (task {t}) is {word}{where}", f"each task belongs to {remedy}"
        if len(tasks) > SHOWN:
            yield f"{len(tasks) - SHOWN} more tasks are {word}", f"each task belongs to {remedy}"


def _places(schedule: Schedule, task: int) -> list[str]:
    sms = np.searchsorted(schedule.order_ptr, np.flatnonzero(schedule.order == task), "right") - 1
    return [f"SM {s}" for s in sms.tolist()] + [f"ticket {i}" for i in np.flatnonzero(schedule.queue == task).tolist()]


def _ring_order(graph: Graph, schedule: Schedule) -> Iterator[tuple[str, str]]:
    differ = np.flatnonzero(schedule.load_order != schedule.order)
    sm = np.searchsorted(schedule.order_ptr, differ, "right") - 1
    for s in np.unique(sm)[:SHOWN].tolist():
        i = int(differ[sm == s][0])
        load, run = int(schedule.load_order[i]), int(schedule.order[i])
        yield (
            f"SM {s} loads {graph.label(load)} (task {load}) where it runs {graph.label(run)} (task {run})",
            "the ring is consumed in the order in which it is filled",
        )


def _deadlock(graph: Graph, schedule: Schedule) -> Iterator[tuple[str, str]]:
    from mkviz.walk import walk  # numba

    held, done, tickets = walk(graph, schedule)
    if done.all():
        return
    value = _values(graph, done)
    sm_of = schedule.sm_of(len(graph))
    stuck = {int(t): s for s, t in enumerate(held.tolist()) if t >= 0}
    # An SM that holds a ticket blocks what is still in the queue; without one, nobody has come to the queue yet.
    keeper = next((int(t) for t in schedule.queue[:tickets].tolist() if t in stuck), int(held[held >= 0][0]))
    path, place, task = [], {}, int(held[held >= 0][0])
    while task not in place:
        place[task] = len(path)
        counter, producer = _missing(graph, task, done, value)
        path.append(f"SM {stuck[task]} holds {graph.label(task)}, which waits for {graph.counters[counter]}")
        path[-1] += f" from {graph.label(producer)}"
        if producer in stuck:
            task = producer
        else:
            task = int(held[sm_of[producer]]) if sm_of[producer] >= 0 else keeper
            path[-1] += f", {'queued' if sm_of[producer] < 0 else 'which comes later'} on SM {stuck[task]}"
    path = [*path[place[task] :], f"SM {stuck[task]}"]
    yield f"deadlock: {_chain(path)}", "lists and queue that follow one topological order"
