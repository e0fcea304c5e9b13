"""Graphs and schedules of other steps than the recorded one: tasks split in two, ops one after the other, lists dealt anew."""

from __future__ import annotations

from dataclasses import replace
from heapq import heapify, heappop, heappush

import numpy as np

from mkviz.errors import MkvizError
from mkviz.graph import Graph
from mkviz.schedule import Schedule


def split(graph: Graph, tasks: np.ndarray) -> tuple[Graph, np.ndarray]:
    """Each of ``tasks`` as two, with half of its bytes and flops each; both wait and raise as it did.

    Returns the graph and i64[]: of which task of the old graph each new one is (half).  First halves keep their ids, second
    ones follow after all others.  Raises MkvizError where a counter that one raises is waited for by a part of its arrivals:
    then nobody knows which half counts.
    """
    origin = np.concatenate([np.arange(len(graph)), tasks])
    halved = np.isin(graph.raise_counter, _raised(graph, tasks))
    counters = np.unique(graph.raise_counter[halved])
    waits = np.isin(graph.wait_counter, counters)
    partial = waits & (graph.wait_need < graph.arrivals[graph.wait_counter])
    for i in np.flatnonzero(partial)[:1].tolist():
        waiter, counter = int(np.searchsorted(graph.wait_ptr, i, "right")) - 1, int(graph.wait_counter[i])
        need, have = int(graph.wait_need[i]), int(graph.arrivals[counter])
        raise MkvizError(
            f"{graph.label(waiter)} waits for {need} of {have} arrivals at counter {graph.counters[counter]}",
            "a task to split whose counters are waited for as a whole",
        )
    wait_ptr, kept = _rows(graph.wait_ptr, origin)
    raise_ptr, raised = _rows(graph.raise_ptr, origin)
    wait_counter, raise_counter = graph.wait_counter[kept], graph.raise_counter[raised]
    arrivals = np.bincount(raise_counter, minlength=len(graph.counters))
    need = np.where(waits, arrivals[graph.wait_counter], graph.wait_need)[kept]
    parts = {}
    for name in ("bytes", "flops"):
        values = getattr(graph, name)
        parts[name] = np.concatenate([values, values[tasks] // 2])
        parts[name][tasks] -= values[tasks] // 2
    columns = {name: getattr(graph, name)[origin] for name in ("op", "layer", "slot", "tile")}
    return replace(
        graph, **columns, **parts, wait_ptr=wait_ptr, wait_counter=wait_counter, wait_need=need.astype(np.uint32),
        raise_ptr=raise_ptr, raise_counter=raise_counter,
    ), origin  # fmt: skip


def in_sequence(graph: Graph, op: str) -> Graph:
    """In each layer what runs beside ``op`` and neither leads to it nor comes from it waits for all of its tasks.

    Raises MkvizError for an op that is not in the graph, and where nothing runs beside it.
    """
    first = op_of(graph, op)
    leads, comes = _related(graph, first)
    key = graph.layer.astype(np.int64) * len(graph.ops) + graph.op
    layers = np.unique(graph.layer[graph.op == first])
    apart = np.isin(graph.layer, layers) & (graph.op != first) & ~np.isin(key, [*leads, *comes])
    layers = np.intersect1d(layers, graph.layer[apart])
    if not len(layers):
        raise MkvizError(f"graph {graph.name}: nothing runs beside {op}", "an op that has other work beside it in its layer")
    counter = {int(layer): len(graph.counters) + i for i, layer in enumerate(layers)}
    raising = np.flatnonzero((graph.op == first) & np.isin(graph.layer, layers))
    waiting = np.flatnonzero(apart)
    arrivals = {layer: int((graph.layer[raising] == layer).sum()) for layer in counter}
    raise_ptr, (raise_counter,) = _with(graph.raise_ptr, [graph.raise_counter], raising,
                                        [[counter[int(x)] for x in graph.layer[raising]]])  # fmt: skip
    layer_of = [int(x) for x in graph.layer[waiting]]
    wait_ptr, (wait_counter, wait_need) = _with(
        graph.wait_ptr, [graph.wait_counter, graph.wait_need], waiting,
        [[counter[x] for x in layer_of], [arrivals[x] for x in layer_of]],
    )  # fmt: skip
    names = (*graph.counters, *(f"{op}.{int(layer)} is done" for layer in layers))
    return replace(graph, counters=names, raise_ptr=raise_ptr, raise_counter=raise_counter, wait_ptr=wait_ptr,
                   wait_counter=wait_counter, wait_need=wait_need)  # fmt: skip


def dealt(graph: Graph, sm: np.ndarray, rank: np.ndarray, queue: np.ndarray, sms: int, policy: str) -> Schedule:
    """SM ``sm[t]`` runs task t, -1: one claims it (``queue`` bool[T] says which).  Lists and queue follow one topological order
    in which, of tasks that could be next, that of the lowest ``rank`` is."""
    order = ranked_order(graph, rank)
    owned = order[~queue[order]]
    ptr = np.zeros(sms + 1, np.int32)
    np.cumsum(np.bincount(sm[owned], minlength=sms), out=ptr[1:])
    lists = owned[np.argsort(sm[owned], kind="stable")].astype(np.int32)
    return Schedule(sms, ptr, lists, order[queue[order]].astype(np.int32), lists.copy(), policy)


def ranked_order(graph: Graph, rank: np.ndarray) -> np.ndarray:
    """i64[T]: task ids, producers first; of those that could be next always the one of the lowest rank."""
    from mkviz.walk import links

    found = links(graph)
    unmet, value, cursor = found.unmet.tolist(), [0] * len(graph.counters), found.waiter_ptr[:-1].tolist()
    stop, waiter, need = found.waiter_ptr[1:].tolist(), found.waiter.tolist(), found.need.tolist()
    ptr, counter, rank = found.raise_ptr.tolist(), found.raise_counter.tolist(), rank.tolist()
    heap = [(rank[t], t) for t in range(len(graph)) if not unmet[t]]
    heapify(heap)
    order = []
    while heap:
        task = heappop(heap)[1]
        order.append(task)
        for c in counter[ptr[task] : ptr[task + 1]]:
            value[c] += 1
            while cursor[c] < stop[c] and need[cursor[c]] <= value[c]:
                t = waiter[cursor[c]]
                cursor[c] += 1
                unmet[t] -= 1
                if not unmet[t]:
                    heappush(heap, (rank[t], t))
    if len(order) < len(graph):
        raise MkvizError(f"graph {graph.name}: {len(graph) - len(order)} tasks wait for each other", "another change")
    return np.array(order, np.int64)


def op_of(graph: Graph, name: str) -> int:
    """The index of an op.  Raises MkvizError for one that no task of the graph is of."""
    there = [op for i, op in enumerate(graph.ops) if (graph.op == i).any()]
    if name not in there:
        raise MkvizError(f"op {name!r} is not in graph {graph.name}", f"one of {', '.join(there)}")
    return graph.ops.index(name)


def _raised(graph: Graph, tasks: np.ndarray) -> np.ndarray:
    return graph.raise_counter[_rows(graph.raise_ptr, tasks)[1]]


def _rows(ptr: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(pointers, indices of entries) of some rows of a CSR, in their order."""
    counts = np.diff(ptr)[rows].astype(np.int64)
    out = np.zeros(len(rows) + 1, np.int64)
    np.cumsum(counts, out=out[1:])
    return out.astype(np.int32), np.arange(out[-1]) + np.repeat(ptr[:-1][rows].astype(np.int64) - out[:-1], counts)


def _with(ptr: np.ndarray, values: list[np.ndarray], rows: np.ndarray, more: list[list[int]]) -> tuple[np.ndarray, list]:
    """A CSR with one more entry at the end of each of some rows, ascending."""
    extra = np.zeros(len(ptr) - 1, np.int64)
    extra[rows] = 1
    at = ptr[1:][rows]
    return (ptr + np.append(0, np.cumsum(extra))).astype(np.int32), [
        np.insert(old, at, new).astype(old.dtype) for old, new in zip(values, more, strict=True)
    ]


def _related(graph: Graph, op: int) -> tuple[set[int], set[int]]:
    """(what leads to the tasks of an op, what comes from them), as layer * ops + op, where they are of one layer."""
    key = graph.layer.astype(np.int64) * len(graph.ops) + graph.op
    raising = np.repeat(key, np.diff(graph.raise_ptr))
    waiting = np.repeat(key, np.diff(graph.wait_ptr))
    producers: dict[int, set[int]] = {}
    for counter, k in {*zip(graph.raise_counter.tolist(), raising.tolist(), strict=True)}:
        producers.setdefault(counter, set()).add(k)
    before: dict[int, set[int]] = {}
    after: dict[int, set[int]] = {}
    for counter, k in {*zip(graph.wait_counter.tolist(), waiting.tolist(), strict=True)}:
        for producer in producers.get(counter, ()):
            if producer // len(graph.ops) == k // len(graph.ops):
                before.setdefault(k, set()).add(producer)
                after.setdefault(producer, set()).add(k)
    start = {int(k) for k in np.unique(key[graph.op == op])}
    return _reached(start, before), _reached(start, after)


def _reached(start: set[int], to: dict[int, set[int]]) -> set[int]:
    found, todo = set(), list(start)
    while todo:
        for k in to.get(todo.pop(), set()) - found:
            found.add(k)
            todo.append(k)
    return found
