"""How far a step is at a moment, on a step worked by hand."""

import numpy as np
import pytest

from mkviz.graph import GraphBuilder
from mkviz.progress import Progress
from mkviz.protocols import StepInfo
from mkviz.record import EVENT, KIND_SKIPPED
from mkviz.schedule import Schedule
from mkviz.store import LiveStore

ORIGIN = 40_000
TIMES = [  # lane, ready, begin, end, publish, last wait, flags
    (0, 0, 0, 100, 110, 0xFFF, 0),  # raises c
    (1, 0, 0, 150, 160, 0xFFF, 0),  # raises c
    (1, 150, 150, 150, 150, 0xFFF, KIND_SKIPPED),  # raises c, leaves no task's record
    (0, 200, 210, 300, 310, 0, 0),  # waits for all three of c, raises d
    (1, 320, 330, 400, 405, 1, 0),  # waits for one of c and for d
]


@pytest.fixture
def progress():
    builder = GraphBuilder("step", ("a", "b"))
    c, d = builder.counter("c"), builder.counter("d")
    for _ in range(3):
        builder.task("a", raises=[c])
    builder.task("b", waits=[c], raises=[d])
    builder.task("b", waits=[(c, 1), d])
    store = LiveStore("simulated", "simulated")
    store.graph(0, builder.build(), Schedule.from_lists([[0, 3], [1, 2, 4]]))
    rows = [
        (9, ORIGIN + r, ORIGIN + r, ORIGIN + b, ORIGIN + e, ORIGIN + p, task, lane, wait, 0, 0, flags, 0)
        for task, (lane, r, b, e, p, wait, flags) in enumerate(TIMES)
    ]
    store.step(StepInfo(9, 0, ORIGIN, ORIGIN + 420), np.array(rows, EVENT))
    return Progress(store.snapshot(), 0)


def counters(progress, time):
    """name -> (value, target, unrecorded, task that raised last, SMs waiting)"""
    snapshot = progress.snapshot
    return {
        progress.graph.counters[s.counter]: (
            s.value, s.target, s.untold, int(snapshot.task[s.row]) if s.row >= 0 else None, s.waiting
        )
        for s in progress.at(time).counters
    }  # fmt: skip


def tasks(progress, time):
    moment = progress.at(time)
    return moment.begun, moment.ended, moment.running, moment.waiting


def test_counters_fill_up(progress):
    assert (progress.begin, progress.end) == (0, 420)
    assert counters(progress, 109) == {"c": (0, 3, 1, None, 1)}  # SM 0 is free from 100 and waits for c
    assert counters(progress, 110) == {"c": (1, 3, 1, 0, 1)}
    assert counters(progress, 160) == {"c": (2, 3, 1, 1, 1), "d": (0, 1, 0, None, 1)}  # SM 1 waits for d since 150
    assert [s.met for s in progress.at(160).counters] == [True, False]  # the skipped slot's raise is not recorded
    assert [s.met for s in progress.at(159).counters] == [False, False]
    assert counters(progress, 315) == {"c": (2, 3, 1, 1, 0), "d": (1, 1, 0, 3, 1)}  # raised at 310, seen at 320
    assert counters(progress, 320)["d"] == (1, 1, 0, 3, 0)


def test_tasks_begin_run_and_end(progress):
    assert tasks(progress, -1) == (0, 0, 0, 0)
    assert tasks(progress, 0) == (2, 0, 2, 0)
    assert tasks(progress, 100) == (2, 1, 1, 1)
    assert tasks(progress, 205) == (2, 2, 0, 1)  # SM 0 is ready since 200 and has not begun; SM 1 waits
    assert tasks(progress, 210) == (3, 2, 1, 1)
    assert tasks(progress, 420) == (4, 4, 0, 0)


def test_event_by_event(progress):
    both, seen, time = range(2), [], -1.0
    while time < 420:
        time = progress.next_event(time, 1, both)
        seen.append(time)
    assert seen == [0, 100, 110, 150, 160, 210, 300, 310, 330, 400, 405, 420]  # then the step's end
    assert progress.next_event(150, -1, both) == 110
    assert progress.next_event(150, -1, range(1, 2)) == 0  # of SM 1 alone
    assert progress.next_event(0, -1, both) == 0
    named = [(word, int(progress.snapshot.task[row])) for word, row in progress.events_at(0, both)]
    assert named == [("begin", 0), ("begin", 1)]
    assert [w for w, _ in progress.events_at(310, both)] == ["publish"] and progress.events_at(310, range(1, 2)) == []
