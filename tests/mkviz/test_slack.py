"""Slack and exposed waits, worked by hand."""

import numpy as np
import pytest

from mkviz.graph import GraphBuilder
from mkviz.protocols import StepInfo
from mkviz.record import EVENT
from mkviz.schedule import Schedule
from mkviz.slack import free_of_step, waited_for
from mkviz.store import LiveStore

TIMES = [  # lane, ready, begin, end, publish
    (0, 0, 0, 300, 320),  # a
    (1, 0, 0, 500, 540),  # b
    (0, 300, 310, 700, 710),  # keeps SM 0 busy; publishes c
    (2, 600, 620, 900, 900),  # needs a and b: SM 2 idle until 600
    (0, 590, 700, 800, 800),  # needs a and b: SM 0 free only at 700
    (1, 350, 500, 510, 515),  # needs one of a, b: a is enough
]


@pytest.fixture
def snapshot():
    builder = GraphBuilder("slack", ("a", "b"))
    ab, c = builder.counter("ab"), builder.counter("c")
    builder.task("a", raises=[ab])
    builder.task("a", raises=[ab])
    builder.task("b", raises=[c])
    builder.task("b", waits=[ab])
    builder.task("b", waits=[ab])
    builder.task("b", waits=[(ab, 1)])
    store = LiveStore("simulated", "simulated")
    store.graph(0, builder.build(), Schedule.from_lists([[0, 2, 4], [1, 5], [3]]))
    rows = [(0, r, r, b, e, p, t, lane, 0, 0, 0, 0, 0) for t, (lane, r, b, e, p) in enumerate(TIMES)]
    rows = [(s, c + 7000, r + 7000, b + 7000, e + 7000, p + 7000, *rest) for s, c, r, b, e, p, *rest in rows]
    store.step(StepInfo(0, 0, 7000, 8000), np.array(rows, EVENT))
    return store.snapshot()


def of(snapshot, task):
    rows, _, free = free_of_step(snapshot, 0)
    at = int(np.flatnonzero(snapshot.task[rows] == task)[0])
    waited = waited_for(snapshot, 0, rows.start + at, float(free[at]))
    return waited, [(int(snapshot.task[d.row]), d.publish, d.slack) for d in waited.dependencies]


def test_an_exposed_wait(snapshot):
    waited, found = of(snapshot, 3)
    assert (waited.free, waited.exposed, waited.late) == (0, 600, 60)  # published at 540, seen at 600
    assert found == [(1, 540, 0), (0, 320, 220)]  # a published 220 ns before b, which was the last
    assert waited.spare is None and waited.next_slack == 220


def test_a_wait_hidden_behind_other_work_is_slack(snapshot):
    waited, found = of(snapshot, 4)
    assert (waited.free, waited.exposed, waited.late) == (700, 0, 0)
    assert found == [(1, 540, 160), (0, 320, 380)]  # needed at 700, when the lane was free
    assert waited.spare == 160


def test_producers_past_the_need_do_not_count(snapshot):
    waited, found = of(snapshot, 5)
    assert found == [(0, 320, 180)]  # the lane was free at 500; b came at 540, not needed
    assert waited.spare == 180 and waited.next_slack is None


def test_without_dependencies(snapshot):
    waited, found = of(snapshot, 2)
    assert found == [] and waited.exposed == 0 and waited.spare is None and waited.next_slack is None
