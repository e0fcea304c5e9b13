"""Steps for the tests of analyses: ``from step_makers import step_of, simulated_steps``."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from random_graphs import random_graph

from mkviz.graph import Graph
from mkviz.machine import Machine
from mkviz.policies import make_schedule
from mkviz.protocols import StepInfo
from mkviz.record import EVENT
from mkviz.schedule import Schedule
from mkviz.simulator import simulate
from mkviz.step_records import StepRecords, of_events
from mkviz.store import LiveStore

SMALL = Machine(
    name="small", sms=5, bandwidth=100e9, sm_bandwidth=40e9, sm_flops=20e12, sm_math_bandwidth=60e9, ring_bytes=64 << 10,
    chunk_bytes=16 << 10, latency_ns=44, publish_ns=21, hop_ns=39, feed_ns=25, task_overhead_ns=3, claim_ns=20, launch_ns=55,
)  # fmt: skip


def step_of(graph: Graph, sms: int, rows: list[tuple], begin: int = 0, end: int = 0, base: int = 0, **info) -> StepRecords:
    """A step of records (task, sm, ready, begin, end[, publish[, flags[, claim]]]), moved by ``base``; claim: 0."""
    events = np.zeros(len(rows), EVENT)
    for e, (task, sm, ready, start, stop, *more) in zip(events, rows, strict=True):
        publish, flags, claim = (*more, *(stop, 0, 0)[len(more) :])
        e["task"], e["sm"], e["flags"] = task, sm, flags
        for name, time in (("claim", claim), ("ready", ready), ("begin", start), ("end", stop), ("publish", publish)):
            e[name] = base + time
    schedule = Schedule.from_lists([[] for _ in range(sms)], range(len(graph)))
    return of_events(StepInfo(0, 0, base + begin, base + end, **info), events, graph, schedule)


def simulated_steps(count: int) -> Iterator[tuple[int, StepRecords, int]]:
    """(seed, step, SMs) of random graphs, dealt out by each policy in turn, half of them as a kernel per op; times lie up to
    2^62 ns from 0."""
    for seed in range(count):
        graph = random_graph(seed, layers=3, width=4)
        sms = 1 + seed % 5
        schedule = make_schedule(graph, sms, ("round_robin", "list", "layered", "claimed")[seed % 4])
        result = simulate(graph, schedule, SMALL, barrier_per_op=bool(seed // 4 % 2))
        base, events = (seed % 3 - 1) * (1 << 62), result.events.copy()
        for name in ("claim", "ready", "begin", "end", "publish"):
            events[name] += base
        yield seed, of_events(StepInfo(seed, 0, base, base + result.makespan), events, graph, schedule), sms


def store_of_steps(*steps: StepRecords, label: str = "made by hand") -> LiveStore:
    """A source of steps of one graph, numbered from 0."""
    store = LiveStore(label)
    first = steps[0]
    store.graph(0, first.graph, Schedule.from_lists([[] for _ in range(first.sms)], range(len(first.graph))))
    for number, step in enumerate(steps):
        events = step.events.copy()
        events["step"] = number
        store.step(StepInfo(number, 0, step.begin, step.end, lost=step.lost), events)
    return store
