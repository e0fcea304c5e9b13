"""Hops: the step of the slack tests worked by hand, and random schedules against the definition."""

import numpy as np
import pytest
from step_makers import SMALL, simulated_steps
from test_blame import ROWS, graph, step

from mkviz.accounting import charge
from mkviz.errors import MkvizError
from mkviz.hops import _of_step, hops
from mkviz.protocols import StepInfo
from mkviz.schedule import Schedule
from mkviz.store import LiveStore


def store(*steps):
    out = LiveStore("made by hand")
    out.graph(0, graph(), Schedule.from_lists([[], [], []], range(6)))
    for number, (rows, lost) in enumerate(steps):
        events = step(rows).events
        events["step"] = number
        out.step(StepInfo(number, 0, 0, 1000, lost=lost), events)
    return out


def test_a_step_worked_by_hand():
    found = hops(store((ROWS, 0)))
    assert found.label == "made by hand" and found.notes == []
    columns = ["task", "counter", "producer", "producer_sm", "met", "ready", "hop", "exposed", "slack"]
    assert found.frame()[columns].values.tolist() == [
        [3, "ab", 1, 1, 540, 600, 60, 600, 0],  # SM 2 stood idle from 0 to 600
        [4, "ab", 1, 1, 540, 590, 50, 0, 160],  # SM 0 was busy until 700
        [5, "ab", 0, 0, 320, 350, 30, 0, 180],  # one of the two was enough; SM 1 was busy until 500
    ]
    assert found.by("counter").values.tolist() == [["ab", 3, 1, 600, 600, 600, 600, 160]]
    by = found.by("producer_op", "op", "producer")
    assert by.values.tolist() == [["a", "b", 1, 2, 1, 600, 600, 600, 600, 160], ["a", "b", 0, 1, 0, 0, 0, 0, 0, 180]]
    for wrong in ((), ("counter", "role")):
        with pytest.raises(MkvizError, match="one or several of step, counter"):
            found.by(*wrong)


def test_arrivals_count_in_the_order_of_their_publish():
    """0 ends before 1 and publishes after it; 5 needs one of them."""
    rows = [(0, 0, 0, 0, 300, 360), (1, 1, 0, 0, 310, 330), (5, 2, 380, 380, 900)]
    assert hops(store((rows, 0))).frame()[["producer", "met", "hop"]].values.tolist() == [[1, 330, 50]]


def test_percentiles_are_waits_that_happened():
    """Steps in which SM 2 waits 600, 610, 650 ns, and one of which no producer has a record."""
    rows = [[*ROWS[:3], (3, 2, ready, 700, 900)] for ready in (600, 610, 650)]
    by = hops(store(*((r, 0) for r in rows))).by("counter")
    assert by[["waits", "exposed", "ns", "p50", "p90", "max"]].values.tolist() == [[3, 3, 1860, 610, 650, 650]]


def test_waits_that_nobody_can_tell():
    found = hops(store(([(3, 2, 600, 620, 900)], 0), (ROWS, 2)))
    assert found.notes == ["of 2 steps 1 lost records and is left out"]
    row = found.frame().iloc[0]
    assert (row["producer"], row["producer_op"], row["exposed"]) == (-1, "", 600)
    assert row[["met", "hop", "slack"]].isna().all()
    assert hops(store(([], 0))).notes == ["no dependencies"] and len(hops(store()).frame()) == 0


def test_the_histogram_of_waits():
    """Exposed: 600, 610 and 650 ns are from 512 to below 1024, 1024 itself is in the next bin; hops 60, 70, 110 and 484 ns."""
    found = hops(store(*(([*ROWS[:3], (3, 2, ready, ready, 1050)], 0) for ready in (600, 610, 650, 1024))))
    assert found.histogram().values.tolist() == [[512, 1024, 3, 1860], [1024, 2048, 1, 1024]]
    assert found.histogram("producer_op", of="hop").values.tolist() == [
        ["a", 32, 64, 1, 60],
        ["a", 64, 128, 2, 180],
        ["a", 256, 512, 1, 484],
    ]
    assert len(found.histogram(of="slack")) == 0 and found.histogram("op")["op"].tolist() == ["b", "b"]
    with pytest.raises(MkvizError, match="one of exposed, hop, slack"):
        found.histogram(of="wait")
    with pytest.raises(MkvizError, match="one or several of step"):
        found.histogram("role")
    plot = found.plot()
    assert plot.title.text == "made by hand · exposed time of a wait"
    data = plot.renderers[0].data_source.data
    assert data["bin"] == ["512 ns – 1.02 µs", "1.02 µs – 2.05 µs"] and data["b"].tolist() == [1.86, 1.024]


def test_random_schedules_by_the_definition():
    exposed = 0
    for seed, s, _ in simulated_steps(200):
        graph, by_task = s.graph, {int(e["task"]): e for e in s.events}
        ptr, producers = graph.producers
        columns = _of_step(s)
        free = dict(zip(s.events["task"].tolist(), s.lanes.free.tolist(), strict=True))
        at, waited = 0, set()
        for task in range(len(graph)):
            waits = graph.waits(task)
            met = []
            for counter, need in waits:
                times = sorted(
                    int(by_task[p]["publish"]) - s.begin for p in producers[ptr[counter] : ptr[counter + 1]].tolist()
                )
                met.append(times[need - 1])
            for i, (counter, _) in enumerate(waits):
                assert (columns["task"][at], columns["counter"][at], columns["met"][at]) == (
                    task,
                    counter,
                    met[i],
                )
                assert columns["slack"][at] == max([*met, free[task]]) - met[i], seed
                if met.index(max(met)) == i:
                    assert columns["hop"][at] == int(by_task[task]["ready"]) - s.begin - met[i] >= SMALL.hop_ns, seed
                else:
                    assert columns["hop"][at] == columns["exposed"][at] == 0, seed
                at += 1
            waited |= {task} if waits else set()
        assert at == len(columns["task"])
        of_waiting = np.isin(s.events["task"], list(waited))
        assert columns["exposed"].sum() == charge(s)["wait"][of_waiting].sum(), seed  # each ns of it once
        exposed += int(columns["exposed"].sum())
    assert exposed > 0
