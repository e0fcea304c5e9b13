"""Work: what the tasks of a step had to do.  Its graph counts bytes and flops for all the rows and slots that it may have."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mkviz.graph import Graph
from mkviz.protocols import StepInfo
from mkviz.step_bytes import by_op, share_of_keys, step_bytes


@dataclass(frozen=True, eq=False)
class Work:
    """Arrays over T tasks, 0 for those that did not run: ``bytes`` i64, ``flops`` f64."""

    bytes: np.ndarray
    flops: np.ndarray

    @classmethod
    def of(cls, graph: Graph, info: StepInfo, ran: np.ndarray) -> Work:
        """Of a step, of which the tasks ``ran`` bool[T] did.  Its rows do their share of the graph's (``meta["rows"]``), but:

        - where rows have tasks of their own, of which some did not run, the others did all of theirs;
        - a slot's tasks do what the step's routes say that they were given;
        - ops of ``meta["last_row_ops"]`` do a row of each request at most;
        - ops of ``meta["keys"]`` are counted for blocks of as many keys, of which each row's last block has fewer;
        - bytes are those of :func:`mkviz.step_bytes.step_bytes`.

        A step whose rows nobody told, or a graph that does not say its own, does what the graph counts.
        """
        rows = len(info.rows) or int(graph.meta.get("rows", 0))
        requests = len({row.request for row in info.rows}) or rows
        size, positions = np.where(ran, step_bytes(graph, info), 0), [row.position for row in info.rows]
        return cls(size, _flops(graph, rows, requests, info.routes, ran, positions))

    @classmethod
    def of_rows(cls, graph: Graph, rows: int) -> Work:
        """Of a step with that many rows, each of a request of its own, none of which share an expert."""
        return cls(graph.bytes, _flops(graph, rows, rows, [], np.ones(len(graph), bool), []))


def _flops(graph: Graph, rows: int, requests: int, routes, ran: np.ndarray, positions: list[int]) -> np.ndarray:
    flops = np.where(ran, graph.flops, 0).astype(float)
    full = int(graph.meta.get("rows", 0))
    if not full or not rows:
        return flops
    share = min(1.0, rows / full)
    routed: dict[int, dict[int, int]] = {}
    for layer, slot, _, count in routes:
        if count:  # older recordings name slots without saying how many rows they had: that tells nothing
            routed.setdefault(layer, {})[slot] = count
    blocks = by_op(graph, "keys")
    group = graph.layer.astype(np.int64) * len(graph.ops) + graph.op
    _, group = np.unique(group, return_inverse=True)
    for tasks in np.split(np.argsort(group, kind="stable"), np.cumsum(np.bincount(group))[:-1]):
        op, given = graph.ops[graph.op[tasks[0]]], routed.get(int(graph.layer[tasks[0]]), {})
        if op in blocks:
            flops[tasks] *= share_of_keys(positions, blocks[op])
        if op in graph.meta.get("last_row_ops", ()):
            flops[tasks] *= min(share, requests / full)
        elif given and (graph.slot[tasks] >= 0).all():
            flops[tasks] *= _slots(graph, tasks, given, share)
        else:
            whole, there = graph.flops[tasks].sum(), graph.flops[tasks][ran[tasks]].sum()
            flops[tasks] *= min(1.0, share * whole / there) if there else 0
    return flops


def _slots(graph: Graph, tasks: np.ndarray, given: dict[int, int], share: float) -> np.ndarray:
    """f64[]: of each of the tasks of an op in a layer, what it does over what the graph counts for it."""
    slot, flops = graph.slot[tasks], graph.flops[tasks].astype(float)
    rows = np.array([given.get(s, 0) for s in range(int(slot.max()) + 1)], float)
    counted = np.bincount(slot, flops, len(rows))
    each = share * counted.sum() / max(1.0, rows.sum())  # flops of a row that is routed to a slot
    return (rows * each / np.maximum(counted, 1.0))[slot]
