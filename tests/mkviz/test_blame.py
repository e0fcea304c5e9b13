"""Blame path: steps worked by hand, and a thousand random schedules whose path must tile the makespan and mean what it says."""

from dataclasses import replace

import numpy as np
import pytest
from step_makers import SMALL, simulated_steps, step_of

from mkviz.blame import CAUSES, blame, blame_of, critical_path
from mkviz.errors import MkvizError
from mkviz.graph import GraphBuilder
from mkviz.machine import H200
from mkviz.protocols import StepInfo
from mkviz.record import FLAG_BYTES_LAST
from mkviz.schedule import Schedule
from mkviz.store import LiveStore


def graph():
    """0 and 1 raise ab; 2 waits for nothing; 3 and 4 need both of ab, 5 one of them."""
    builder = GraphBuilder("blame", ("a", "b"))
    ab, c = builder.counter("ab"), builder.counter("c")
    builder.task("a", layer=0, bytes=1000, raises=[ab])
    builder.task("a", layer=0, bytes=2000, raises=[ab])
    builder.task("b", layer=1, bytes=4000, raises=[c])
    builder.task("b", layer=1, waits=[ab])
    builder.task("b", layer=1, waits=[ab])
    builder.task("b", layer=1, waits=[(ab, 1)])
    return builder.build()


ROWS = [  # task, SM, ready, begin, end, publish
    (0, 0, 0, 0, 300, 320),
    (1, 1, 0, 0, 500, 540),
    (2, 0, 300, 310, 700, 710),
    (3, 2, 600, 620, 900, 900),
    (4, 0, 590, 700, 800, 800),
    (5, 1, 350, 500, 510, 515),
]


def step(rows=ROWS, end=1000, sms=3, **info):
    return step_of(graph(), sms, rows, 0, end, **info)


def told(found):
    return [(int(s["begin"]), int(s["end"]), CAUSES[s["cause"]], int(s["task"])) for s in found.segments]


def test_a_hop_from_the_last_producer():
    found = blame_of(step(), replace(H200, bandwidth=35e9))
    assert told(found) == [
        (0, 500, "compute", 1),
        (500, 540, "publish", 1),
        (540, 600, "hop", 3),  # seen 60 ns after the publish
        (600, 620, "overhead", 3),
        (620, 900, "compute", 3),
        (900, 1000, "tail", -1),
    ]
    assert found.critical == 540 + 280  # b, then 3: nobody else's chain is as long
    assert (found.bytes, found.floor) == (7000, 200)
    assert found.totals == {
        "compute": 780, "publish": 40, "hop": 60, "starved": 0, "overhead": 20, "tail": 100, "unknown": 0,
    }  # fmt: skip
    rows = found.waterfall()[["cause", "op", "segments", "ns"]].values.tolist()
    assert rows[:3] == [["compute", "a", 1, 500], ["compute", "b", 1, 280], ["tail", "", 1, 100]]
    assert found.waterfall()["ns"].sum() == 1000 and found.waterfall()["share"][0] == 0.5
    assert found.frame()[["layer", "sm"]].values.tolist() == [[0, 1], [0, 1], [1, 2], [1, 2], [1, 2], [-1, -1]]


def test_the_waterfall_as_a_plot():
    plot = blame_of(step(), replace(H200, bandwidth=35e9), "made by hand").plot()
    assert plot.title.text == "made by hand · what held step 0" and plot.xaxis.axis_label == "time on the blame path (µs)"
    data = plot.renderers[0].data_source.data
    parts = ["compute a", "compute b", "tail", "hop b", "publish a", "overhead b"]
    assert data["name"] == [*parts, "step", "bandwidth floor", "longest chain"]
    assert data["left"].tolist() == [0, 0.5, 0.78, 0.88, 0.94, 0.98, 0, 0, 0]
    assert data["right"].tolist()[-4:] == [1, 1, 0.2, 0.82]
    assert [mark.location for mark in plot.center if hasattr(mark, "location")] == [0.2, 0.82]


def test_a_lane_that_was_busy_comes_before_producers_that_were_early():
    rows = [*ROWS[:3], (4, 0, 590, 705, 990, 1000, FLAG_BYTES_LAST)]
    assert told(blame_of(step(rows))) == [
        (0, 300, "compute", 0),
        (300, 310, "overhead", 2),
        (310, 700, "compute", 2),
        (700, 705, "starved", 4),
        (705, 990, "compute", 4),
        (990, 1000, "publish", 4),
    ]


def test_of_a_counter_the_arrivals_that_were_needed_count():
    rows = [*ROWS[:2], (5, 2, 350, 350, 1000, 1000)]  # the first of the two arrivals was enough
    assert told(blame_of(step(rows))) == [
        (0, 300, "compute", 0),
        (300, 320, "publish", 0),
        (320, 350, "hop", 5),
        (350, 1000, "compute", 5),
    ]


def test_a_task_that_was_taken_up_late_blames_its_own_sm():
    rows = [*ROWS[:2], (3, 0, 700, 710, 1000, 1000, 0, 650)]  # all had come by 540, SM 0 was free at 300
    assert told(blame_of(step(rows))) == [
        (0, 300, "compute", 0),
        (300, 650, "overhead", 3),
        (650, 700, "hop", 3),
        (700, 710, "overhead", 3),
        (710, 1000, "compute", 3),
    ]


def test_what_nobody_can_tell_is_unknown():
    assert told(blame_of(step([ROWS[0], (3, 1, 600, 620, 1000, 1000)])))[:1] == [(0, 300, "compute", 0)]  # 1: no record
    assert told(blame_of(step([(3, 1, 600, 620, 1000)]))) == [
        (0, 600, "unknown", 3),  # neither producer has a record
        (600, 620, "overhead", 3),
        (620, 1000, "compute", 3),
    ]
    broken = [ROWS[0], (1, 0, 400, 400, 0), (2, 0, 600, 620, 1000)]
    assert told(blame_of(step(broken))) == [
        (0, 300, "compute", 0),
        (300, 620, "unknown", -1),  # SM 0 had a record without end in between
        (620, 1000, "compute", 2),
    ]
    lost = blame_of(step(lost=2))
    assert told(lost) == [(0, 1000, "unknown", -1)] and lost.critical is None and "2 records are lost" in lost.notes[0]
    assert told(blame_of(step([]))) == [(0, 1000, "unknown", -1)]
    assert told(blame_of(step([], end=0))) == []


def test_a_publish_after_what_it_allowed_is_no_negative_hop():
    """Clocks of two SMs are apart by their error: 1 seems to publish at 540, 10 ns after 3 saw it."""
    rows = [*ROWS[:2], (3, 2, 530, 535, 1000, 1000)]
    assert told(blame_of(step(rows))) == [
        (0, 500, "compute", 1),
        (500, 530, "publish", 1),
        (530, 535, "overhead", 3),
        (535, 1000, "compute", 3),
    ]


def test_records_that_wait_for_each_other_end_the_path():
    builder = GraphBuilder("circle", ("a",))
    one, two = builder.counter("one"), builder.counter("two")
    builder.task("a", waits=[two], raises=[one])
    builder.task("a", waits=[one], raises=[two])
    found = blame_of(step_of(builder.build(), 2, [(0, 0, 50, 50, 60), (1, 1, 40, 40, 100)], 0, 100))
    assert sum(found.totals.values()) == 100 and found.totals["unknown"] == 40


def test_a_step_of_a_source_by_its_number():
    store = LiveStore("made by hand")
    store.graph(0, graph(), Schedule.from_lists([[], [], []], range(6)))
    store.step(StepInfo(8, 0, 0, 1000), step().events)
    found = blame(store, 8)
    assert (found.label, found.step, found.makespan, found.floor) == ("made by hand", 8, 1000, None)
    assert found.totals == blame_of(step()).totals
    with pytest.raises(MkvizError, match="step 9 is not there"):
        blame(store, 9)


def test_a_graph_without_dependencies_or_bytes_is_told():
    builder = GraphBuilder("loose", ("a",))
    for _ in range(2):
        builder.task("a")
    found = blame_of(step_of(builder.build(), 1, [(0, 0, 0, 0, 40), (1, 0, 50, 60, 100)], 0, 100), H200)
    assert [note.split(":")[0] for note in found.notes] == ["no dependencies", "no bytes"]
    assert found.totals == {
        "compute": 80, "publish": 0, "hop": 0, "starved": 0, "overhead": 20, "tail": 0, "unknown": 0,
    }  # fmt: skip
    assert (found.critical, found.floor) == (40, None)


def longest_chain(step):
    """By the definition, round after round from 'never' until nothing changes."""
    graph, took = step.graph, {}
    for e in step.events:
        took[int(e["task"])] = int(max(e["publish"], e["end"]) - e["begin"])
    ptr, producers = graph.producers
    done = dict.fromkeys(range(len(graph)), float("inf"))
    while True:
        before = dict(done)
        for task in done:
            ends = [sorted(before[p] for p in producers[ptr[c] : ptr[c + 1]].tolist())[n - 1] for c, n in graph.waits(task)]
            done[task] = max(ends, default=0) + took[task]
        if done == before:
            return max(done.values())


def test_a_thousand_random_schedules_are_tiled_by_their_path():
    seen = set()
    for seed, step, _ in simulated_steps(1000):
        found = blame_of(step, SMALL)
        s, by_task = found.segments, {int(e["task"]): e for e in step.events}
        assert s["begin"][0] == 0 and s["end"][-1] == step.makespan, seed
        assert (s["end"] > s["begin"]).all() and (s["begin"][1:] == s["end"][:-1]).all(), seed
        assert found.totals["unknown"] == 0 and found.critical <= step.makespan and (found.floor or 0) <= step.makespan
        graph = step.graph
        ptr, producers = graph.producers
        for begin, end, cause, task, sm in s.tolist():
            cause, begin, end = CAUSES[cause], begin + step.begin, end + step.begin
            seen.add(cause)
            if cause == "tail":
                assert begin == max(e["publish"] for e in step.events)
                continue
            e = by_task[task]
            assert e["sm"] == sm
            if cause == "compute":
                assert e["begin"] <= begin and end <= e["end"], seed
            elif cause == "publish":
                assert (begin, end) == (e["end"], e["publish"]), seed
            elif cause == "hop":
                at = [by_task[p]["publish"] for c, _ in graph.waits(task) for p in producers[ptr[c] : ptr[c + 1]].tolist()]
                assert (end - begin, end) == (SMALL.hop_ns, e["ready"]) and begin in at, seed
            else:
                late = "starved" if e["flags"] & FLAG_BYTES_LAST else "overhead"
                assert (end, cause) in ((e["begin"], late), (e["claim"], "overhead")), seed
        if seed % 4 == 0:
            assert critical_path(step) == longest_chain(step), seed
    assert seen == {"compute", "publish", "hop", "starved", "overhead"}


def test_longer_hand_overs_show_as_hops_and_nothing_else():
    """Two tasks in a chain on two SMs: of a hand-over that takes 1000 ns more, the path says 1000 ns more of hop."""
    from mkviz.simulator import simulate
    from mkviz.step_records import of_events

    builder = GraphBuilder("chain", ("up", "down"))
    done = builder.counter("done")
    builder.task("up", bytes=100_000, raises=[done])
    builder.task("down", bytes=100_000, waits=[done])
    chain, schedule = builder.build(), Schedule.from_lists([[0], [1]])
    totals = []
    for hop in (39, 1039):
        result = simulate(chain, schedule, replace(SMALL, hop_ns=hop))
        totals.append(blame_of(of_events(StepInfo(0, 0, 0, result.makespan), result.events, chain, schedule)).totals)
    assert {c: totals[1][c] - totals[0][c] for c in CAUSES if totals[1][c] != totals[0][c]} == {"hop": 1000}
    assert np.sum(list(totals[0].values())) > 0
