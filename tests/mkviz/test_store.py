"""LiveStore: bounded, counted, immutable snapshots."""

import threading

import numpy as np
import pytest

from mkviz.errors import MkvizError
from mkviz.graph import GraphBuilder
from mkviz.protocols import RequestInfo, Sink, Source, StepInfo, TokenInfo
from mkviz.record import EVENT, KIND_PHASES, KIND_SKIPPED
from mkviz.schedule import Schedule
from mkviz.store import LiveStore, store_of


def graph_of(tasks, ops=("a", "b")):
    builder = GraphBuilder("g", ops)
    for i in range(tasks):
        builder.task(ops[i % len(ops)], layer=i)
    return builder.build()


def schedule(sms):
    return Schedule.from_lists([[] for _ in range(sms)])


def events_of(step, tasks, sms, start):
    events = np.zeros(tasks, EVENT)
    events["task"], events["sm"], events["step"] = np.arange(tasks), np.arange(tasks) % sms, step
    events["claim"] = events["ready"] = events["begin"] = start + np.arange(tasks) * 10
    events["end"] = events["publish"] = events["begin"] + 7
    return events


def fed(steps, tasks=100, sms=4, **kwargs):
    store = LiveStore(**kwargs)
    store.graph(0, graph_of(tasks), schedule(sms))
    for s in range(steps):
        store.step(StepInfo(s, 0, s * 10_000, s * 10_000 + tasks * 10), events_of(s, tasks, sms, s * 10_000))
    return store


def test_is_source_and_sink():
    store = LiveStore()
    assert isinstance(store, Source)
    assert all(callable(getattr(store, name)) for name in Sink.__dict__ if not name.startswith("_"))


def test_lanes_are_sorted_and_complete():
    store = LiveStore()
    store.graph(0, graph_of(50), schedule(3))
    events = events_of(0, 50, 3, 5000)
    np.random.default_rng(0).shuffle(events)
    store.step(StepInfo(0, 0, 4990, 6000), events)
    snapshot = store.snapshot()
    assert len(snapshot) == 50 and snapshot.origin == 4990 and snapshot.extent == (0, 1010)
    for lane in range(3):
        rows = slice(*snapshot.lane_ptr[0, lane : lane + 2])
        assert snapshot.task[rows].tolist() == list(range(lane, 50, 3))
        assert (np.diff(snapshot.begin[rows]) > 0).all()
        assert [snapshot.ops[k] for k in snapshot.op[rows]] == ["ab"[t % 2] for t in range(lane, 50, 3)]


def test_memory_is_bounded_and_the_dropped_are_counted():
    store = LiveStore(max_bytes=1 << 18)
    store.graph(0, graph_of(100), schedule(4))
    kept, most = None, 0
    for s in range(500):
        store.step(StepInfo(s, 0, s * 10_000, s * 10_000 + 1000), events_of(s, 100, 4, s * 10_000))
        most = max(most, store.nbytes)
    kept = store.snapshot()
    assert most <= 1 << 18
    assert 10 <= len(kept.steps) < 500
    assert kept.dropped_steps == 500 - len(kept.steps) and kept.dropped_records == 100 * kept.dropped_steps
    assert kept.steps["step"].tolist() == list(range(500 - len(kept.steps), 500))  # the newest stay
    for c, step in enumerate(kept.steps["step"]):
        rows = slice(kept.lane_ptr[c, 0], kept.lane_ptr[c, -1])
        assert sorted(kept.task[rows].tolist()) == list(range(100))
        assert kept.begin[rows].min() == step * 10_000


def test_many_tiny_steps_are_bounded_too():
    store = LiveStore(max_bytes=1 << 16)
    store.graph(0, graph_of(1), schedule(1))
    for s in range(3000):
        store.step(StepInfo(s, 0, s * 100, s * 100 + 10), events_of(s, 1, 1, s * 100))
    snapshot = store.snapshot()
    assert store.nbytes <= 1 << 16 and len(snapshot.infos) == len(snapshot.steps) == 3000 - snapshot.dropped_steps


def test_a_step_that_can_never_fit_is_counted():
    store = fed(1, tasks=100, max_bytes=1 << 16)
    big = graph_of(5000)
    store.graph(1, big, schedule(4))
    store.step(StepInfo(1, 1, 0, 1), events_of(1, 5000, 4, 0))
    assert store.snapshot().dropped_records == 5000 and len(store.snapshot()) == 100


def test_snapshots_never_change():
    store = fed(20, max_bytes=1 << 16)
    before = store.snapshot()
    assert store.snapshot() is before  # no new version, no work
    copies = {name: getattr(before, name).copy() for name in ("begin", "task", "lane_ptr", "steps")}
    for s in range(20, 300):
        store.step(StepInfo(s, 0, s * 10_000, s * 10_000 + 1000), events_of(s, 100, 4, s * 10_000))
    assert store.snapshot().version > before.version
    for name, copy in copies.items():
        rows = slice(before.lane_ptr[0, 0], None) if name in ("begin", "task") else slice(None)
        np.testing.assert_array_equal(getattr(before, name)[rows], copy[rows])


def test_readers_and_writers_at_once():
    store = fed(0, max_bytes=1 << 17)
    done, seen, wrong = threading.Event(), 0, []

    def read():
        while not done.is_set():
            snapshot = store.snapshot()
            for c in range(len(snapshot.steps)):
                rows = slice(snapshot.lane_ptr[c, 0], snapshot.lane_ptr[c, -1])
                if snapshot.begin[rows].min() != snapshot.steps["step"][c] * 10_000:
                    wrong.append(c)

    reader = threading.Thread(target=read)
    reader.start()
    for s in range(400):
        store.step(StepInfo(s, 0, s * 10_000, s * 10_000 + 1000), events_of(s, 100, 4, s * 10_000))
        seen += 1
    done.set()
    reader.join()
    assert seen == 400 and not wrong


def test_what_is_no_task_is_not_drawn_but_counted():
    store = LiveStore()
    store.graph(0, graph_of(10), schedule(2))
    events = events_of(0, 10, 2, 0)
    events["flags"][:3], events["flags"][3] = KIND_SKIPPED, KIND_PHASES
    events["task"][4], events["sm"][5] = 99, 7  # out of range: torn or foreign
    store.step(StepInfo(0, 0, 0, 100, lost=5), events)
    store.lost(11, 1)
    snapshot = store.snapshot()
    assert len(snapshot) == 4 and snapshot.skipped == 3
    assert snapshot.lost_records == 2 + 11 and snapshot.lost_steps == 1 and snapshot.steps["lost"].tolist() == [7]


def test_graphs_share_ops_and_lanes_widen():
    store = LiveStore()
    store.graph(0, graph_of(4, ("a", "b")), schedule(2))
    store.step(StepInfo(0, 0, 0, 100), events_of(0, 4, 2, 0))
    store.graph(1, graph_of(6, ("b", "c")), schedule(3))
    store.step(StepInfo(1, 1, 1000, 1100), events_of(1, 6, 3, 1000))
    snapshot = store.snapshot()
    assert snapshot.ops == ("a", "b", "c") and snapshot.lanes == 3
    assert np.diff(snapshot.lane_ptr).tolist() == [[2, 2, 0], [2, 2, 2]]
    rows = slice(snapshot.lane_ptr[1, 0], snapshot.lane_ptr[1, -1])
    assert [snapshot.ops[k] for k in snapshot.op[rows]] == ["bc"[t % 2] for t in snapshot.task[rows]]


def test_step_lookup():
    snapshot = fed(3).snapshot()
    assert [snapshot.step_at(t) for t in (0, 500, 5000, 10_000, 21_000, 30_000)] == [0, 0, -1, 1, 2, -1]
    assert snapshot.index_of(2) == 2 and snapshot.index_of(9) == -1


def test_tokens_and_requests_travel():
    store = fed(1)
    store.token(TokenInfo(0, 0, 17, "hi", 0, 123))
    store.request(RequestInfo(0, "queued", 1))
    store.request(RequestInfo(0, "done", 2))
    snapshot = store.snapshot()
    assert [t.text for t in snapshot.tokens] == ["hi"] and snapshot.requests[0].state == "done"


def test_store_of_events():
    events = np.concatenate([events_of(7, 10, 2, 70_000), events_of(3, 10, 2, 30_000)])
    store = store_of(events, {0: (graph_of(10), schedule(2))}, [StepInfo(3, 0, 29_000, 31_000), StepInfo(5, 0, 50_000, 50_001)])
    snapshot = store.snapshot()
    assert snapshot.steps["step"].tolist() == [3, 5, 7] and snapshot.closed
    assert snapshot.steps["begin"].tolist() == [29_000, 50_000, 70_000]


def test_bad_input_is_named():
    with pytest.raises(MkvizError, match="graph 4"):
        LiveStore().step(StepInfo(9, 4, 0, 1), np.zeros(0, EVENT))
    with pytest.raises(MkvizError, match="max_bytes 10"):
        LiveStore(max_bytes=10)
    with pytest.raises(MkvizError, match="dtype"):
        store_of(np.zeros(3), {})
