"""Occupancy: steps worked by hand, bytes dated by the ring's fill, and random schedules against accounting."""

from dataclasses import replace

import numpy as np
import pytest
from step_makers import SMALL, simulated_steps, step_of, store_of_steps

from mkviz.accounting import charge
from mkviz.busy import occupancy, until
from mkviz.errors import MkvizError
from mkviz.graph import GraphBuilder
from mkviz.landings import landings
from mkviz.record import FLAG_BYTES_LAST, KIND_PHASES
from mkviz.step_records import of_events
from mkviz.store import StepInfo


def graph(*sizes):
    """Tasks of op load that read so many bytes, the last one of op add."""
    builder = GraphBuilder("busy", ["load", "add"])
    for i, size in enumerate(sizes):
        builder.task("add" if i == len(sizes) - 1 else "load", bytes=size)
    return builder.build()


ROWS = [  # task, SM, ready, begin, end
    (0, 0, 0, 0, 40),
    (1, 1, 10, 15, 30),
    (2, 1, 20, 25, 35),  # begun before the task before it had ended: 30 to 35 count
]


@pytest.mark.parametrize("base", [0, -(2**63) + 1, 2**63 - 200])
def test_a_step_worked_by_hand(base):
    o = occupancy(store_of_steps(step_of(graph(600, 0, 0), 2, ROWS, 0, 50, base)), bins=5)
    assert (o.label, o.origin, o.sms, o.edges.tolist()) == ("made by hand", base, 2, [0, 10, 20, 30, 40, 50])
    assert o.ops == ("load", "add")
    assert o.busy.tolist() == [[10, 15, 20, 10, 0], [0, 0, 0, 5, 0]]
    assert o.bytes.tolist() == [150, 150, 150, 150, 0] and o.read == 600  # evenly, from 0 to 40
    assert o.frame().values.tolist() == [
        [0, 10, "load", 10, 1.0], [10, 20, "load", 15, 1.5], [20, 30, "load", 20, 2.0], [30, 40, "load", 10, 1.0],
        [30, 40, "add", 5, 0.5],
    ]  # fmt: skip
    assert o.rate()["gb_s"].tolist() == [15, 15, 15, 15, 0] and o.rate()["share"].isna().all()
    assert o.notes == ["no reading of a ring of known size: bytes count evenly while their task runs"]
    assert o.faults["overlapping"] == 1


def test_several_steps_and_the_time_between_them():
    steps = [step_of(graph(600, 0, 0), 2, ROWS, 0, 50, base) for base in (1000, 1100)]
    o = occupancy(store_of_steps(*steps), bins=3, machine=replace(SMALL, bandwidth=40e9))
    assert (o.edges.tolist(), o.busy.tolist()) == ([0, 50, 100, 150], [[55, 0, 55], [5, 0, 5]])
    assert o.bytes.tolist() == [600, 0, 600] and o.rate()["share"].tolist() == [0.3, 0, 0.3]
    assert occupancy(store_of_steps(*steps), steps=1).origin == 1100
    with pytest.raises(MkvizError, match="bins 0"):
        occupancy(store_of_steps(*steps), bins=0)
    plot, reads = o.plot(), o.plot_bytes(dark=True)
    assert plot.title.text == "made by hand · busy SMs by op" and plot.yaxis.axis_label == "busy SMs of 2"
    assert plot.renderers[0].data_source.data["load"].tolist() == [1.1, 1.1, 0, 0, 1.1, 1.1]
    assert reads.yaxis.axis_label == "GB/s" and reads.renderers[-1].data_source.data["y"] == [40, 40]


def filled(*rows, sizes=(800, 800, 800), phases=()):
    """A step of one SM with a ring of 1600 bytes, 100 to the sixteenth, from rows (begin, end, fill, flags)."""
    step = step_of(graph(*sizes), 1, [(t, 0, b, b, e, e, flags) for t, (b, e, _, flags) in enumerate(rows)], 0, 400)
    events = step.events.copy()
    events["fill"] = [fill for _, _, fill, _ in rows]
    for task, seen in phases:
        phase = events[task : task + 1].copy()
        phase["flags"], phase["publish"] = KIND_PHASES, phase["begin"] + seen
        events = np.concatenate([events, phase])
    return of_events(StepInfo(0, 0, 0, 400), events, step.graph, _schedule(1))


def _schedule(sms):
    from mkviz.schedule import Schedule

    return Schedule.from_lists([[] for _ in range(sms)], range(3))


def landed(step):
    found = landings(step, 1600)
    return sorted(zip(found.start.tolist(), found.stop.tolist(), found.size.tolist(), strict=True))


def test_bytes_are_dated_by_readings_of_the_ring():
    """At 100, 1200 bytes are there: those of task 0 and 400 more; at 300 all: 1600 of tasks 0 and 1, and 800 more."""
    assert landed(filled((100, 200, 12, 0), (200, 300, 0, 0), (300, 400, 8, 0))) == [(0, 100, 1200), (100, 300, 1200)]


def test_where_bytes_came_last_nothing_more_had_landed():
    step = filled((100, 200, 12, 0), (200, 300, 0, 0), (300, 400, 0, FLAG_BYTES_LAST))
    assert landed(step) == [(0, 100, 1200), (100, 300, 400), (300, 400, 800)]
    o = occupancy(store_of_steps(step), bins=4, machine=replace(SMALL, ring_bytes=1600, chunk_bytes=100))
    assert o.bytes.tolist() == pytest.approx([1200, 200, 200, 800]) and o.dated == o.read == 2400 and o.notes == []


def test_a_task_does_not_end_before_its_bytes_are_there():
    """Between 0 bytes at 100 and 1600 at 300, only 400 would be there at 150, when task 0 ends and has used 800."""
    step = filled((100, 150, 0, FLAG_BYTES_LAST), (200, 300, 0, 0), (300, 400, 0, FLAG_BYTES_LAST))
    assert landed(step) == [(100, 150, 800), (150, 300, 800), (300, 400, 800)]


def test_level_2_tells_when_the_last_bytes_were_seen():
    step = filled((100, 200, 0, 0), (200, 300, 0, 0), (300, 400, 0, 0), phases=[(1, 30)])
    assert landed(step) == [(100, 200, 800), (200, 230, 800), (300, 400, 800)]
    step = filled((100, 200, 0, FLAG_BYTES_LAST), (200, 300, 0, 0), (300, 400, 0, 0), phases=[(0, 30)])
    assert landed(step)[0] == (100, 130, 800)


def test_an_sm_without_a_reading_counts_evenly_and_that_is_told():
    builder = GraphBuilder("two", ["load"])
    for _ in range(2):
        builder.task("load", bytes=800)
    step = step_of(builder.build(), 2, [(0, 0, 0, 100, 200, 200, FLAG_BYTES_LAST), (1, 1, 0, 0, 400)], 0, 400)
    o = occupancy(store_of_steps(step), bins=4, machine=replace(SMALL, ring_bytes=1600, chunk_bytes=100))
    assert o.bytes.tolist() == pytest.approx([200, 1000, 200, 200])
    assert o.notes == ["50% of the bytes, on SMs without a reading of the ring, count evenly while their task runs"]


def test_random_schedules_keep_every_nanosecond_and_byte():
    readings = 0
    for seed, step, _ in simulated_steps(24):
        o = occupancy(store_of_steps(step), bins=1 + seed * 7, machine=SMALL)
        assert o.busy.sum() == charge(step)["compute"].sum(), seed
        assert o.bytes.sum() == pytest.approx(o.read) and o.read == step.graph.bytes.sum()
        assert o.bytes.min() >= 0
        readings += o.dated > 0
    assert readings > 12


def test_intervals_before_a_time_even_where_sums_wrap_around():
    start = np.array([2**62, 2**62, 2**62, 2**62 + 7])
    assert until(start, start + 10, np.array([2**62, 2**62 + 8, 2**62 + 20])).tolist() == [0, 25, 40]
