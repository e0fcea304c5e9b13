"""The steps of a source as a machine would run them: figures worked by hand, numbers and tokens those of the source."""

import threading

import numpy as np
import pytest

from mkviz.graph import GraphBuilder
from mkviz.machine import Machine
from mkviz.protocols import Row, StepInfo, TokenInfo
from mkviz.record import EVENT, NO_WAIT
from mkviz.schedule import Schedule
from mkviz.simulated import NEWEST, SimulatedSource
from mkviz.simulator import simulate
from mkviz.store import LiveStore

PLAIN = Machine(
    name="plain", sms=2, bandwidth=1e18, sm_bandwidth=1e18, sm_flops=1e9, sm_math_bandwidth=1e18, ring_bytes=1024,
    chunk_bytes=1024, latency_ns=0, publish_ns=5, hop_ns=7, feed_ns=0, task_overhead_ns=0, claim_ns=0, launch_ns=100,
)  # fmt: skip


def chain(sms=2, policy="lists", work=100):
    """Two tasks of ``work`` and 50 ns, the second waits for the first."""
    builder = GraphBuilder("chain", ("up", "down"))
    done = builder.counter("done")
    builder.task("up", flops=work, raises=[done])
    builder.task("down", flops=50, waits=[done])
    lists = [[0], [1]] if sms == 2 else [[0, 1]]
    return builder.build(), Schedule.from_lists(lists, policy=policy)


def live(*graphs, steps=()):
    """A store of measured steps [(number, graph)] whose own times are other than simulated ones."""
    store = LiveStore()
    for i, (graph, schedule) in enumerate(graphs):
        store.graph(i, graph, schedule)
    for number, graph in steps:
        take(store, number, graph)
    return store


def take(store, number, graph=0):
    events = np.zeros(2, EVENT)
    events["task"], events["last_wait"], events["step"] = [0, 1], NO_WAIT, number
    begin = 10**9 + number * 10**6
    for name, at in (("claim", 0), ("ready", 0), ("begin", 10), ("end", 900_000), ("publish", 900_000)):
        events[name] = begin + at
    rows, routes = [Row(0, 3, number, 17, "decode")], [(0, 0, 5, 1)]
    store.step(StepInfo(number, graph, begin, begin + 900_000, rows, routes, lost=0), events)


def times(snapshot, step):
    """{task: (SM, begin, end)} of one step, ns since the step began."""
    ptr, begin = snapshot.lane_ptr[step], snapshot.steps["begin"][step]
    return {
        int(snapshot.task[row]): (lane, int(snapshot.begin[row] - begin), int(snapshot.end[row] - begin))
        for lane in range(len(ptr) - 1)
        for row in range(ptr[lane], ptr[lane + 1])
    }


# 0 takes 100 ns, is published 5 later and seen 7 after that; 1 takes 50 and is published 5 later
STEP = {0: (0, 0, 100), 1: (1, 112, 162)}
MAKESPAN = 167


def test_steps_are_the_sources_and_times_the_machines():
    of = live(chain(), steps=[(4, 0), (5, 0), (9, 0)])
    source = SimulatedSource(of, PLAIN)
    snapshot = source.wait()
    assert (source.kind, source.label) == ("simulated", "simulated (plain)")
    assert snapshot.steps["step"].tolist() == [4, 5, 9]
    assert snapshot.steps["begin"].tolist() == [0, MAKESPAN, 2 * MAKESPAN]  # one after the other, without a pause
    assert snapshot.steps["end"].tolist() == [MAKESPAN, 2 * MAKESPAN, 3 * MAKESPAN]
    assert all(times(snapshot, i) == STEP for i in range(3))
    info = snapshot.infos[2]
    assert (info.rows, info.routes) == ([Row(0, 3, 9, 17, "decode")], [(0, 0, 5, 1)])


def test_a_kernel_per_op_is_launched_when_the_one_before_has_ended():
    source = SimulatedSource(live(chain(), steps=[(0, 0)]), PLAIN, barrier_per_op=True)
    begin = 105 + PLAIN.launch_ns
    assert times(source.wait(), 0) == {0: (0, 0, 100), 1: (1, begin, begin + 50)}
    assert source.label == "simulated (plain, a kernel per op)"


def test_it_follows_a_live_source_through_graphs_and_tokens():
    of = live(chain(), steps=[(0, 0)])
    source = SimulatedSource(of, PLAIN)
    assert len(source.wait().steps) == 1
    of.graph(1, *chain(work=200))
    take(of, 1, graph=1)
    of.token(TokenInfo(3, 0, 17, "first", 0, 999))  # of a step that came earlier
    of.token(TokenInfo(3, 1, 18, "second", 1, 1999))
    of.token(TokenInfo(3, 2, 19, "third", 2, 2999))  # ahead of its step
    snapshot = source.wait()
    assert snapshot.steps["step"].tolist() == [0, 1]
    assert times(snapshot, 1) == {0: (0, 0, 200), 1: (1, 212, 262)}
    assert [(t.text, t.time) for t in snapshot.tokens] == [("first", MAKESPAN), ("second", 2 * MAKESPAN + 100)]
    take(of, 2)
    snapshot = source.wait()
    assert [t.text for t in snapshot.tokens] == ["first", "second", "third"] and snapshot.tokens[-1].index == 2
    assert not snapshot.closed
    of.close()
    assert source.wait().closed


def test_nothing_is_simulated_until_somebody_looks_and_looking_does_not_wait(monkeypatch):
    of, go = live(chain(), steps=[(0, 0)]), threading.Event()
    monkeypatch.setattr("mkviz.simulated.simulate", lambda *args, **more: go.wait() and simulate(*args, **more))
    source = SimulatedSource(of, PLAIN)
    assert source.version == 0 and source.lanes == 0
    assert len(source.snapshot().steps) == 0
    while not source.words.startswith("Simulating on plain"):
        assert source.words == ""
    go.set()
    assert len(source.wait().steps) == 1 and source.words == ""
    version = source.version
    source.snapshot()
    assert source.version == version and not [t for t in threading.enumerate() if t.name == "mkviz-simulate"]


def test_of_a_source_that_is_closed_all_is_shown_at_once():
    of = live(chain(), steps=[(n, 0) for n in range(50)])
    of.close()
    source, seen = SimulatedSource(of, PLAIN), set()
    while not (snapshot := source.snapshot()).closed:
        seen.add(len(snapshot.steps))
    assert seen <= {0} and len(snapshot.steps) == 50


def test_of_a_long_source_the_newest_steps():
    source = SimulatedSource(live(chain(), steps=[(n, 0) for n in range(NEWEST + 3)]), PLAIN)
    assert source.wait().steps["step"].tolist() == list(range(3, NEWEST + 3))


def test_a_graph_for_fewer_sms_is_cut_anew_and_dealt_out_by_the_same_policy():
    asked = []

    def tiled(graph, sms):
        asked.append((graph.name, sms))
        return chain(work=300)[0]

    of = live(chain(sms=1, policy="claimed"), steps=[(0, 0), (1, 0)])
    snapshot = SimulatedSource(of, PLAIN, tiled=tiled).wait()
    assert asked == [("chain", 2)]
    graph, schedule = snapshot.graphs[0]
    assert graph.flops.tolist() == [300, 50] and (schedule.sms, schedule.policy) == (2, "claimed")
    schedule = SimulatedSource(live(chain(sms=1, policy="by hand"), steps=[(0, 0)]), PLAIN).wait().graphs[0][1]
    assert (schedule.sms, schedule.policy) == (2, "round_robin")  # one that mkviz has


@pytest.mark.parametrize("graph", [chain, lambda: tangle()])
def test_a_schedule_for_the_machine_is_kept_and_what_cannot_be_simulated_says_so(graph):
    def tiled(graph, sms):
        raise AssertionError("nobody asked for other tiles")

    of = live(graph(), steps=[(0, 0)])
    source = SimulatedSource(of, PLAIN, barrier_per_op=True, tiled=tiled)
    snapshot = source.wait()
    if graph is chain:
        assert snapshot.graphs[0][1] is of.graphs[0][1]
    else:
        assert source.words.startswith("This cannot be simulated: graph tangle") and "wait for each other" in source.words
        assert snapshot.closed and len(snapshot.steps) == 0


def tangle():
    """Ops that cannot run one after the other: b waits for an a, and another a for a b."""
    builder = GraphBuilder("tangle", ("a", "b"))
    first, second = builder.counter("first"), builder.counter("second")
    builder.task("a", raises=[first])
    builder.task("b", waits=[first], raises=[second])
    builder.task("a", waits=[second])
    return builder.build(), Schedule.from_lists([[0, 2], [1]])
