"""Recordings with random contents, for tests of what becomes of them."""

import numpy as np

from mkviz.graph import Graph
from mkviz.protocols import RequestInfo, Row, StepInfo, TokenInfo
from mkviz.record import EVENT
from mkviz.schedule import Schedule
from mkviz.trace import TraceWriter


def make_graph(rng, tasks=12, name="g"):
    """A graph without any order in it: the trace must not need one."""
    counters = int(rng.integers(1, 6))
    waits = [rng.integers(0, counters, rng.integers(0, 4)) for _ in range(tasks)]
    raises = [rng.integers(0, counters, rng.integers(0, 3)) for _ in range(tasks)]

    def ptr(lists):
        return np.concatenate([[0], np.cumsum([len(x) for x in lists])]).astype(np.int32)

    wait_counter = np.concatenate([*waits, []]).astype(np.int32)
    return Graph(
        name, ("first", "never used", "zwölf"), rng.choice([0, 2], tasks).astype(np.uint8),
        rng.integers(-1, 40, tasks).astype(np.int16), rng.integers(-1, 8, tasks).astype(np.int16),
        rng.integers(-1, 10**6, tasks).astype(np.int32), rng.integers(0, 2**40, tasks), rng.integers(0, 2**40, tasks),
        ptr(waits), wait_counter, rng.integers(1, 2**32, len(wait_counter)).astype(np.uint32), ptr(raises),
        np.concatenate([*raises, []]).astype(np.int32), tuple(f"c{i}" for i in range(counters)), {"model": "m", "rows": [1, 2]},
    )  # fmt: skip


def make_schedule(rng, tasks=12, sms=3):
    """Every task once, in a list or in the queue; an SM may have none."""
    order = rng.permutation(tasks).tolist()
    cuts = sorted(rng.integers(0, tasks + 1, sms).tolist())
    lists = [order[a:b] for a, b in zip([0, *cuts[:-1]], cuts, strict=True)]
    schedule = Schedule.from_lists(lists, order[cuts[-1] :], "random")
    return Schedule(sms, schedule.order_ptr, schedule.order, schedule.queue, rng.permutation(schedule.order), "random")


def make_events(rng, step, tasks=12, sms=3):
    events = np.zeros(int(rng.integers(0, tasks + 1)), EVENT)
    events["step"], events["task"] = step, rng.permutation(tasks)[: len(events)]
    events["sm"] = np.sort(rng.integers(0, sms, len(events)))
    start = 1_700_000_000 * 10**9 + step * 1000
    for name in ("claim", "ready", "begin", "end", "publish"):
        start = events[name] = start + rng.integers(0, 300, len(events))
    for name, high in (("last_wait", 2**12), ("role", 2**8), ("fill", 2**4), ("flags", 2**8)):
        events[name] = rng.integers(0, high, len(events))
    return events[np.lexsort((events["begin"], events["sm"]))]


def make_recording(seed, steps=20):
    """(graphs, [(info, events)], tokens, requests) with random contents."""
    rng = np.random.default_rng(seed)
    graphs = {i * 7: (make_graph(rng, name=f"g{i}"), make_schedule(rng)) for i in range(int(rng.integers(1, 4)))}
    told, number = [], 0
    for _ in range(steps):
        number += int(rng.integers(1, 3))
        events = make_events(rng, number)
        begin, end = (int(events["ready"].min()), int(events["publish"].max())) if len(events) else (0, 0)
        rows = [
            Row(r, int(rng.integers(0, 9)), 5 + r, int(rng.integers(0, 10**5)), "decode") for r in range(rng.integers(0, 3))
        ]
        routes = [(int(layer), 0, int(rng.integers(0, 128)), 1) for layer in range(rng.integers(0, 3))]
        told.append(
            (StepInfo(number, int(rng.choice(list(graphs))), begin, end, rows, routes, int(rng.integers(0, 3))), events)
        )
    tokens = [TokenInfo(0, i, i * 3, "é\n\0"[i % 3], info.step, 10 * i) for i, (info, _) in enumerate(told)]
    requests = [RequestInfo(0, "queued", 1, 7, 0, "prompt"), RequestInfo(0, "done", 2, 7, 5, "", "stop")]
    return graphs, told, tokens, requests


def record(path, recording, close=True, complete=True, **options):
    graphs, told, tokens, requests = recording
    writer = TraceWriter(path, **{"kind": "measured", "device": "cpu", "overwrite": True, **options})
    for graph_id, (graph, schedule) in graphs.items():
        writer.graph(graph_id, graph, schedule)
    for request in requests:
        writer.request(request)
    for k, (info, events) in enumerate(told):
        writer.step(info, events)
        if k % 7 == 6:
            writer.flush()
    for token in tokens:
        writer.token(token)
    if close:
        writer.close(complete)
    return writer


def all_events(recording):
    return np.concatenate([events for _, events in recording[1]])


def assert_same_arrays(a, b):
    for name, value in vars(a).items():
        if isinstance(value, np.ndarray):
            assert getattr(b, name).dtype == value.dtype and np.array_equal(getattr(b, name), value), name
