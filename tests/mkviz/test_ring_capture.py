"""Rings that stop at full: with capture, what is not yet read is never overwritten."""

import pytest
from ring_pen import MutatingLink, Pen

from mkviz.decode import RingReader
from mkviz.ring import HostLink, HostRings, RingWriter


def test_capture_stops_at_full_and_goes_on_when_read():
    rings = HostRings(1, 8, capture=True)
    writer, reader = RingWriter(rings, 0), RingReader(rings.link())
    writer.anchor(1_000)

    def write(tasks):
        for task in tasks:
            writer.write(task, 0, 1_000 + task, 1, 2, 3, 4)

    write(range(11))
    assert reader.read().events["task"].tolist() == list(range(8))  # kept to the last slot: nobody overwrites
    assert (reader.written.sum(), reader.lost.sum(), reader.torn.sum()) == (11, 3, 0)
    write(range(11, 22))
    assert reader.read().events["task"].tolist() == list(range(11, 19))
    write(range(22, 24))
    assert reader.read().events["task"].tolist() == [22, 23]
    assert (reader.written.sum(), reader.received.sum(), reader.lost.sum(), reader.torn.sum()) == (24, 18, 6, 0)
    write(range(100, 150))  # far beyond the ring
    assert reader.read().events["task"].tolist() == list(range(100, 108))
    assert (reader.written.sum(), reader.lost.sum(), reader.torn.sum()) == (74, 48, 0)


def test_capture_tells_records_that_were_refused_from_torn_ones():
    """The writer reaches its limit while the reader copies, and the limit is raised over what it did not store."""
    rings = HostRings(1, 8, capture=True)
    writer = RingWriter(rings, 0)
    writer.anchor(1_000)

    def write(tasks):
        for task in tasks:
            writer.write(task, 0, 1_000 + task, 1, 2, 3, 4)

    write(range(8))
    reader = RingReader(MutatingLink(rings, lambda: write(range(8, 11))))
    assert reader.read().events["task"].tolist() == list(range(8))
    reader.link = HostLink(rings)
    write(range(11, 13))
    assert reader.read().events["task"].tolist() == [11, 12]
    assert (reader.written.sum(), reader.lost.sum(), reader.torn.sum()) == (13, 3, 0)


def captured(steps):
    """(rings, write): capture rings of 8 records, one a step; ``write(first, stop)`` plays steps, a microsecond each."""
    rings = HostRings(1, 8, capture=True)
    writer = RingWriter(rings, 0)

    def write(*steps):
        for step in range(*steps):
            writer.anchor(10**9 + 1_000 * step, step=step)
            writer.step(step)
            writer.write(step, step, 10**9 + 1_000 * step, 1, 2, 3, 4)
            writer.step(step + 1)

    write(*steps)
    return rings, write


@pytest.mark.parametrize("steps", [5, 8, 300, 700, 800, 1_100, 5_000])
def test_a_full_ring_keeps_its_steps_however_far_the_line_has_gone_on(steps):
    """The step's 10 bits say too little: the line may be any number of steps beyond what the ring kept."""
    rings, write = captured((0,))
    reader = RingReader(rings.link())
    write(steps)
    assert reader.read().events["step"].tolist() == list(range(min(steps, 8)))
    write(steps, 2 * steps + 3)
    batch = reader.read()
    kept = list(range(steps, min(2 * steps + 3, steps + 8)))
    assert batch.events["step"].tolist() == kept
    assert batch.events["claim"].tolist() == [10**9 + 1_000 * step for step in kept]


@pytest.mark.parametrize(
    ("beyond", "found"),
    [
        (5, range(13, 18)),  # the newest record lies at the head
        (8, range(13, 18)),  # refused before and after, but the line is near
        (5_000, []),  # and so far that nothing tells which 1024 steps these were: lost, not guessed
    ],
)
def test_records_between_two_gaps_are_told_by_a_near_line_or_lost(beyond, found):
    rings, write = captured((0, 10))  # 8 and 9 are refused
    reader = RingReader(MutatingLink(rings, lambda: write(10, 13)))  # so are these, while the reader copies
    assert reader.read().events["step"].tolist() == list(range(8))
    reader.link = HostLink(rings)
    write(13, 13 + beyond)  # index 10 to 17 may be stored now
    assert reader.read().events["step"].tolist() == list(found)
    assert reader.written.sum() == 13 + beyond
    assert (reader.received.sum(), reader.torn.sum()) == (8 + len(found), 0)
    write(13 + beyond, 16 + beyond)
    assert reader.read().events["step"].tolist() == list(range(13 + beyond, 16 + beyond))


def test_a_gap_of_many_steps_lies_between_what_follows_and_what_is_newest():
    rings, write = captured((0, 6))
    reader = RingReader(rings.link())
    assert reader.read().events["step"].tolist() == list(range(6))  # 6 to 13 may be stored now
    write(6, 12)

    def go_on():
        write(12, 2_000)  # 12 and 13 are stored, the others refused

    reader.link = MutatingLink(rings, go_on)
    assert reader.read().events["step"].tolist() == list(range(6, 12))  # 12 to 19 may be stored: all gone by already
    reader.link = HostLink(rings)
    write(2_000, 2_001)
    assert reader.read().events["step"].tolist() == [12, 13]
    write(2_001, 2_004)
    assert reader.read().events["step"].tolist() == [2_001, 2_002, 2_003]
    assert (reader.written.sum(), reader.lost.sum(), reader.torn.sum()) == (2_004, 1_987, 0)


def test_capture_still_sees_torn_records():
    rings = HostRings(1, 8, capture=True)
    pen, reader = Pen(rings), RingReader(rings.link())
    pen.line(anchor_ns=1_000)
    for i in range(3):
        pen.write(claim=1_000, task=i)
    pen.place(1, claim=1_000, lap=7)
    assert reader.read().events["task"].tolist() == [0, 2]
    assert reader.torn.sum() == 1
