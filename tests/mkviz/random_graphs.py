"""Seeded random graphs and schedules for property tests: ``from random_graphs import random_graph``."""

from __future__ import annotations

import numpy as np

from mkviz.graph import Graph, GraphBuilder
from mkviz.schedule import Schedule


def random_graph(
    seed: int,
    layers: int = 4,
    width: int = 6,
    max_bytes: int = 200_000,
    max_flops: int = 40_000_000,
    shuffle: bool | None = None,
) -> Graph:
    """A layered DAG of up to ``layers * 3 * width`` tasks.

    In it: counters with one and with many producers, tasks that raise several counters and tasks that raise none, tasks
    without waits, waits for fewer arrivals than there are, chains in which partial i waits for i arrivals of the counter that
    it raises itself, and tasks without bytes or without flops.  Each (layer, op) depends on earlier ones only, so it can be a
    kernel of its own.  With ``shuffle`` (by default every fourth seed) task ids are no topological order.
    """
    rng = np.random.default_rng(seed)
    ops = ("norm", "matmul", "reduce")
    b = GraphBuilder(f"random {seed}", ops)
    tasks: list[dict] = []
    raised: dict[int, int] = {}  # counter -> arrivals, of the groups so far
    for layer in range(int(rng.integers(1, layers + 1))):
        for op in ops[: int(rng.integers(1, 4))]:
            count, earlier, own = int(rng.integers(1, width + 1)), list(raised), {}
            mine = [b.counter(f"{op}.{layer}.{i}") for i in range(int(rng.integers(1, 4)))]
            chain = b.counter(f"chain {op}.{layer}") if rng.random() < 0.2 else None
            for tile in range(count):
                waits = []
                if earlier and rng.random() < 0.85:
                    for c in rng.choice(earlier, min(len(earlier), int(rng.integers(1, 4))), replace=False).tolist():
                        waits.append((c, int(rng.integers(1, raised[c] + 1))) if rng.random() < 0.2 else c)
                raises = [c for c in mine if rng.random() < 0.6]
                if chain is not None:
                    raises.append(chain)
                    if tile:
                        waits.append((chain, tile))
                for c in raises:
                    own[c] = own.get(c, 0) + 1
                size = int(rng.integers(1, max_bytes)) if rng.random() < 0.8 else 0
                flops = int(rng.integers(1, max_flops)) if rng.random() < 0.8 else 0
                tasks.append({"op": op, "layer": layer, "tile": tile, "bytes": size, "flops": flops})
                tasks[-1] |= {"waits": waits, "raises": raises}
            raised |= own
    if shuffle if shuffle is not None else seed % 4 == 0:
        tasks = [tasks[i] for i in rng.permutation(len(tasks))]
    for task in tasks:
        b.task(**task)
    return b.build()


def random_schedule(graph: Graph, seed: int, sms: int, disorder: float = 0.2, queued: float = 0.3) -> Schedule:
    """Some tasks owned, some queued, near graph order; the larger ``disorder`` (0: graph order), the likelier a deadlock."""
    rng = np.random.default_rng(seed)
    tasks = np.argsort(np.arange(len(graph)) + rng.normal(0, disorder * len(graph) + 1e-9, len(graph))).tolist()
    lists: list[list[int]] = [[] for _ in range(sms)]
    queue: list[int] = []
    for t in tasks:
        if rng.random() < queued:
            queue.append(t)
        else:
            lists[int(rng.integers(sms))].append(t)
    return Schedule.from_lists(lists, queue, "random")
