"""The ring decoder on synthetic rings with known answers, written by hand with ``Pen``."""

import pytest
from ring_pen import MutatingLink, Pen, one_ring

from mkviz.clocks import Clocks
from mkviz.decode import RingReader
from mkviz.errors import MkvizError
from mkviz.record import FLAG_COVERED, FLAG_SATURATED, LIVE
from mkviz.ring import HostLink, HostRings, RingWriter


def test_a_record_is_decoded_field_by_field():
    rings = HostRings(2, 8, ring_sm=[7, 131], ring_role=[0, 3])
    pen = Pen(rings, 1)
    pen.line(anchor_ns=5_000_000_000, step=2**33 + 5)
    pen.write(claim=5_000_000_100, step=2**33 + 5, task=4_000_000, deltas=(10, 25, 300, 301), tail=0x2A9_003)
    batch = RingReader(rings.link()).read()
    assert batch.events.tolist() == [
        (2**33 + 5, 5_000_000_100, 5_000_000_110, 5_000_000_125, 5_000_000_400, 5_000_000_401,
         4_000_000, 131, 3, 3, 0x9, 0x2A, 0),
    ]  # fmt: skip
    assert batch.gaps == []


def test_each_record_once_across_many_laps_of_ring_and_of_the_lap_byte():
    pen, reader = one_ring(8)
    pen.line(anchor_ns=1_000)
    seen = []
    for i in range(8 * 300):  # the 8-bit lap wraps at 256 laps
        pen.write(claim=1_000 + i, task=i)
        if i % 5 == 4:
            seen += reader.read().events["task"].tolist()
    assert seen == list(range(8 * 300))
    assert reader.torn.sum() == reader.lost.sum() == 0


def test_seq_wraps_at_2_to_32():
    pen, reader = one_ring(8)
    pen.at = 2**32 - 3
    reader._taken[:] = pen.at
    pen.line(anchor_ns=10**9)
    for i in range(6):
        pen.write(claim=10**9 + i, task=i)
    assert reader.read().events["task"].tolist() == [0, 1, 2, 3, 4, 5]
    assert reader.torn.sum() == 0


def test_claim_crosses_the_low_word():
    pen, reader = one_ring()
    wrap = 77 * 2**32
    claims = [wrap - 3, wrap - 1, wrap, wrap + 5, wrap + 1_900_000_000]
    pen.line(anchor_ns=wrap - 500)
    for claim in claims:
        pen.write(claim=claim)
    assert reader.read().events["claim"].tolist() == claims


def test_claims_far_older_than_the_newest_anchor_are_chained_back():
    pen, reader = one_ring(64)
    claims = [10**12 + i * 500_000_000 for i in range(40)]  # 20 s in steps of half a second
    for claim in claims:
        pen.write(claim=claim)
    pen.line(anchor_ns=claims[-1] + 1_500_000_000)
    assert reader.read().events["claim"].tolist() == claims


def test_short_step_wraps_and_is_anchored_by_the_line():
    pen, reader = one_ring(4096)
    pen.line(anchor_ns=1_000)
    steps = [*range(10_000, 13_000), 13_900]
    for step in steps:
        pen.write(claim=2_000, step=step)
    pen.line(step=13_901)
    assert reader.read().events["step"].tolist() == steps


def test_a_record_may_be_ahead_of_a_line_read_a_moment_before():
    pen, reader = one_ring()
    pen.line(anchor_ns=1_000, step=1_023)
    pen.write(claim=1_000, step=1_022)
    pen.write(claim=1_000, step=1_025)
    assert reader.read().events["step"].tolist() == [1_022, 1_025]


def test_overwritten_records_are_lost_exactly_and_never_read():
    pen, reader = one_ring(16)
    pen.line(anchor_ns=1_000)
    for i in range(100):
        pen.write(claim=1_000 + i, task=i, step=i // 10)
    pen.line(step=10)
    batch = reader.read()
    # 16 slots, less the one being written and one for the store that may overtake the head
    assert batch.events["task"].tolist() == list(range(86, 100))
    assert (reader.written.sum(), reader.received.sum(), reader.lost.sum(), reader.torn.sum()) == (100, 14, 86, 0)
    assert [(g.ring, g.records, g.first, g.last) for g in batch.gaps] == [(0, 86, -1, 8)]


def test_records_overwritten_during_the_copy_are_dropped_not_mixed():
    rings = HostRings(1, 16)
    pen = Pen(rings)
    pen.line(anchor_ns=1_000)
    for i in range(12):
        pen.write(claim=1_000 + i, task=i)

    def write_ten_more():
        for i in range(12, 22):
            pen.write(claim=1_000 + i, task=i)

    reader = RingReader(MutatingLink(rings, write_ten_more))
    # 0..11 were announced; by the end of the copy 22 exist, so 0..7 may be gone: 22 - 16 + 2
    assert reader.read().events["task"].tolist() == [8, 9, 10, 11]
    assert (reader.lost.sum(), reader.torn.sum()) == (8, 0)
    reader.link = HostLink(rings)
    assert reader.read().events["task"].tolist() == list(range(12, 22))
    assert (reader.written.sum(), reader.received.sum(), reader.lost.sum()) == (22, 14, 8)


@pytest.mark.parametrize("wrong", [{"seq": 19}, {"lap": 2}, {"seq": 0}, {"seq": 19, "lap": 2}])
def test_a_torn_record_is_counted_and_dropped(wrong):
    pen, reader = one_ring(16)
    pen.line(anchor_ns=1_000, step=2)
    for i in range(5):
        pen.write(claim=1_000 + i, task=i, step=i // 3)
    pen.place(2, claim=4_000_000_000, task=99, step=700, **wrong)
    batch = reader.read()
    assert batch.events["task"].tolist() == [0, 1, 3, 4]
    assert batch.events["claim"].tolist() == [1_000, 1_001, 1_003, 1_004]  # its claim did not disturb the chain
    assert (reader.torn.sum(), reader.lost.sum()) == (1, 1)
    assert [(g.records, g.first, g.last) for g in batch.gaps] == [(1, 0, 1)]


def test_a_slot_never_written_is_torn():
    pen, reader = one_ring()
    pen.line(anchor_ns=1_000, head=1)
    assert len(reader.read().events) == 0
    assert (reader.torn.sum(), reader.lost.sum()) == (1, 1)


def test_python_writer_agrees_with_the_words_of_the_design():
    by_hand, by_writer = HostRings(1, 4), HostRings(1, 4)
    pen, writer = Pen(by_hand), RingWriter(by_writer, 0)
    for i in range(7):
        pen.write(claim=2**32 + i, step=1_027, task=4_194_303, deltas=(1, 2, 3, 2**32 - 1), tail=0x20_7_00A)
        writer.write(4_194_303, 1_027, 2**32 + i, 1, 2, 3, 2**32 - 1, last_wait=10, fill=7, flags=0x20)
    assert by_hand.records.tolist() == by_writer.records.tolist()
    assert by_hand.live["head"][0] == by_writer.live["head"][0] == 7


def test_saturation_is_flagged_beside_other_flags():
    pen, reader = one_ring()
    pen.line(anchor_ns=10**10)
    pen.write(claim=10**10, deltas=(1, 2, 2**32 - 1, 2**32 - 1), tail=0xFFF | FLAG_COVERED << 16)
    pen.write(claim=10**10, deltas=(1, 2, 3, 2**32 - 2))
    events = reader.read().events
    assert events["flags"].tolist() == [FLAG_COVERED | FLAG_SATURATED, 0]
    assert events["end"][0] == 10**10 + 2**32 - 1  # at least


def test_sms_with_skewed_clocks_agree_in_ns():
    """Two SMs at 1.5 and 2 cycles per ns, zeros 4e7 cycles apart, record the same instants."""
    rings = HostRings(2, 8)
    link = rings.link()
    link.cycles_per_ns, link.fixed_rate = 1.9, False
    reader, pens = RingReader(link), [Pen(rings, 0), Pen(rings, 1)]
    for ns in (10**9, 3 * 10**9):
        for pen, rate, zero in zip(pens, (1.5, 2.0), (0, 4 * 10**7), strict=True):
            pen.line(anchor_ns=ns, anchor_cycles=int(ns * rate) + zero)
        reader.read()
    for pen, rate in zip(pens, (1.5, 2.0), strict=True):
        pen.write(claim=3 * 10**9 + 64, deltas=[int(rate * ns) for ns in (200, 400, 2000, 2100)])
    events = reader.read().events
    base = 3 * 10**9 + 64
    for field, ns in (("ready", 200), ("begin", 400), ("end", 2000), ("publish", 2100)):
        assert events[field].tolist() == [base + ns, base + ns]
    assert reader.clocks.error_ns is None  # two anchors each say nothing about the error


def test_a_torn_anchor_is_not_used():
    rings = HostRings(1, 8)
    pen, clocks = Pen(rings), Clocks(1.9)
    pen.line(anchor_ns=1_000, anchor_cycles=1_900)
    reader = RingReader(MutatingLink(rings, lambda: pen.line(anchor_ns=2_000)), clocks)
    reader.read()  # the ns changed between the two readings, the cycles did not yet
    assert clocks.count == 0
    reader.link = HostLink(rings)
    pen.line(anchor_cycles=3_800)
    reader.read()
    assert clocks.since(0).tolist() == [(0, 0, 2_000, 3_800)]


def test_without_any_anchor_records_stay_where_they_are():
    pen, reader = one_ring()
    pen.write(claim=2**33 + 5)
    assert len(reader.read().events) == 0
    pen.line(anchor_ns=2**33)
    assert reader.read().events["claim"].tolist() == [2**33 + 5]
    assert reader.lost.sum() == 0


def test_a_ring_without_an_anchor_borrows_one():
    rings = HostRings(2, 8)
    Pen(rings, 0).line(anchor_ns=2**33)
    Pen(rings, 1).write(claim=2**33 + 5)
    assert RingReader(rings.link()).read().events["claim"].tolist() == [2**33 + 5]


def test_budget_takes_the_newest_of_every_ring():
    rings = HostRings(2, 128)
    pens = [Pen(rings, 0), Pen(rings, 1)]
    for pen, n in zip(pens, (100, 50), strict=True):
        pen.line(anchor_ns=1_000)
        for i in range(n):
            pen.write(claim=1_000 + i, task=i)
    reader = RingReader(rings.link())
    events = reader.read(budget=30).events
    assert events["task"][events["sm"] == 0].tolist() == list(range(80, 100))
    assert events["task"][events["sm"] == 1].tolist() == list(range(40, 50))
    assert reader.lost.tolist() == [80, 40]


def test_frontier_trails_the_lines_by_one_reading():
    """A line's step may be newer than the head beside it, so only lines seen before the heads count."""
    rings = HostRings(2, 8)
    pens = [Pen(rings, 0), Pen(rings, 1)]
    reader = RingReader(rings.link())
    pens[0].line(step=5)
    pens[1].line(step=3)
    assert reader.read().frontier == 0
    assert reader.read().frontier == 3


def test_heads_that_go_back_are_refused():
    pen, reader = one_ring()
    pen.line(anchor_ns=1_000)
    pen.write(claim=1_000)
    reader.read()
    pen.line(head=0)
    with pytest.raises(MkvizError, match="ring 0: head went back from 1 to 0"):
        reader.read()


def test_live_lines_are_copies_with_state():
    pen, reader = one_ring()
    pen.line(state=2, task=17, counter=4, target=9, since=1_234)
    live = reader.read().live
    pen.line(state=0)
    assert live.dtype == LIVE
    assert (live["state"][0], live["task"][0], live["counter"][0], live["target"][0]) == (2, 17, 4, 9)


def test_lines_and_records_start_on_cache_lines():
    rings = HostRings(3, 8)
    assert rings.live.ctypes.data % 128 == 0 and rings.records.ctypes.data % 128 == 0


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((0, 8), "n_rings 0"),
        ((1, 12), "capacity 12; a power of two"),
        ((1, 2), "capacity 2"),
        ((2, 8, [1]), r"ring_sm has shape \(1,\); one entry for each of 2 rings"),
        ((2, 8, None, [1, 2, 3]), r"ring_role has shape \(3,\)"),
    ],
)
def test_bad_rings_are_refused(args, message):
    with pytest.raises(MkvizError, match=message):
        HostRings(*args)
