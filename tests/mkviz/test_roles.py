"""Roles' sub-lanes: spans by hand, sums equal exact overlaps, rectangles and pixels agree; level 2 joins its task in the
store."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mkviz import lod, role_kernels, role_numpy, roles
from mkviz.graph import GraphBuilder
from mkviz.protocols import StepInfo
from mkviz.record import EVENT, KIND_PHASES
from mkviz.schedule import Schedule
from mkviz.store import NO_CHUNK, LiveStore

OPS = ("load", "free", "other")  # "free" tasks read no bytes
BOTH = pytest.mark.parametrize("kernels", [role_kernels, role_numpy], ids=["numba", "numpy"])
LANES = 3


def store_of_spans(steps, phases=()):
    """``steps``: lists of (lane, claim, ready, begin, end, publish, op); tasks count through all steps.  ``phases``: task -> ns
    at which its last chunk was there."""
    builder, flat = GraphBuilder("spans", OPS), [task for step in steps for task in step]
    for task in flat:
        builder.task(OPS[task[6]], bytes=0 if task[6] == 1 else 1000)
    store = LiveStore("simulated", "simulated")
    store.graph(0, builder.build(), Schedule.from_lists([[] for _ in range(LANES)]))
    number = 0
    for s, step in enumerate(steps):
        rows = []
        for lane, claim, ready, begin, end, publish, _ in step:
            rows.append((s, claim, ready, begin, end, publish, number, lane, 0xFFF, 0, 0, 0, 0))
            if number in dict(phases):
                rows.append((s, claim, begin, begin, end, dict(phases)[number], number, lane, 0xFFF, 0, 0, KIND_PHASES, 0))
            number += 1
        low, high = min((t[2] for t in step), default=0), max((t[5] for t in step), default=0)
        store.step(StepInfo(s, 0, low, high), np.array(rows, EVENT))
    return store.snapshot()


HAND = [(1, 1000, 1300, 1500, 1900, 2000, 0), (1, 1100, 1950, 2000, 2400, 2450, 1)]


def test_spans_by_hand():
    snapshot = store_of_spans([HAND], {0: 1740})
    assert roles.level(snapshot, slice(None)) == 2
    (claim, there), (ready, begin), (start, end), (last, publish) = roles.spans(snapshot, slice(None))
    assert claim.tolist() == [1000, 1100] and there.tolist() == [1740, 2000]  # the second has no phases: until its begin
    assert ready.tolist() == [1300, 1950] and begin.tolist() == start.tolist() == [1500, 2000]
    assert end.tolist() == last.tolist() == [1900, 2400] and publish.tolist() == [2000, 2450]
    assert snapshot.last_chunk.tolist() == [240, NO_CHUNK]
    assert roles.level(store_of_spans([HAND]), slice(None)) == 1


@BOTH
def test_a_frame_by_hand(kernels):
    snapshot = store_of_spans([HAND], {0: 1740})
    tables = lod.GraphTables(snapshot)
    o = snapshot.origin  # 1300: the step's first ready
    frame = roles.role_frame(snapshot, tables, 1000 - o, 2500 - o, 3, range(1, 2), tables.op, np.ones(3), kernels)
    assert frame.grid.shape == (4, 3) and frame.dx == 500
    assert (frame.busy * 500).tolist() == [
        [500, 240, 0],  # loader: 1000..1740; the second task reads nothing
        [200, 50, 0],  # feeder: 1300..1500 and 1950..2000
        [0, 400, 400],  # math: 1500..1900 and 2000..2400
        [0, 100, 50],  # storer: 1900..2000 and 2400..2450
    ]
    assert (frame.wait * 500).tolist() == [
        [0, 0, 0],
        [300 + 400, 450, 0],  # feeder: claim to ready of both, 1000..1300 and 1100..1950, which overlap
        [0, 50, 0],  # math: free from 1900, ready at 1950; the first was ready when the step began
        [0, 0, 0],
    ]
    assert frame.grid.tolist() == [[0, 0, 255], [0, 1, 255], [255, 0, 1], [255, 0, 1]]


def test_hits_by_hand():
    snapshot = store_of_spans([HAND], {0: 1740})
    tables, o = lod.GraphTables(snapshot), snapshot.origin
    hits = {
        (1200, 0): 0, (1739, 0): 0, (1740, 0): None, (1960, 1): 1, (1400, 1): 0, (1950, 2): None, (2100, 2): 1, (1950, 3): 0,
        (2420, 3): 1,
    }  # fmt: skip
    for (time, role), row in hits.items():
        found = roles.role_hit(snapshot, tables, time - o, 1, role)
        assert (found and found[1]) == row, (time, role)
    assert roles.role_hit(snapshot, tables, 1200 - o, 0, 0) is None


@st.composite
def traces(draw):
    """One or two steps on three lanes; roles of a lane overlap as they like, loaders begin before their step does."""
    steps, clock = [], 1000
    for _ in range(draw(st.integers(1, 2))):
        step = []
        for lane in range(LANES):
            now = clock
            for _ in range(draw(st.integers(0, 5))):
                ready = now + draw(st.sampled_from([0, 3, 40]))
                begin = ready + draw(st.integers(0, 9))
                end = begin + draw(st.integers(0, 60))
                claim = ready - draw(st.sampled_from([0, 5, 200]))
                step.append((lane, claim, ready, begin, end, end + draw(st.sampled_from([0, 7, 90])), draw(st.integers(0, 2))))
                now = end
        steps.append(step)
        clock = max([clock, *(t[5] for t in step)]) + draw(st.sampled_from([0, 25]))
    return steps


def overlap(a, b, x0, x1):
    return max(0.0, min(b, x1) - max(a, x0))


def by_hand(steps, late, x0, x1):
    """ns per (lane, role, op), one interval at a time."""
    out, number = np.zeros((LANES, 4, 3)), 0
    for step in steps:
        for lane, claim, ready, begin, end, publish, op in step:
            there = late.get(number, begin)
            for role, (a, b) in enumerate(((claim, there), (ready, begin), (begin, end), (end, publish))):
                if role > 0 or op != 1:
                    out[lane, role, op] += overlap(a, b, x0, x1)
            number += 1
    return out


views = st.tuples(st.integers(700, 1300), st.integers(1, 900), st.integers(1, 40))


@settings(max_examples=60, deadline=None)
@given(traces(), views, st.booleans())
def test_sums_are_exact_overlaps_and_both_kernels_agree(steps, view, phased):
    flat = [task for step in steps for task in step]
    late = {i: (t[3] + t[4]) // 2 for i, t in enumerate(flat) if i % 2} if phased else {}
    snapshot = store_of_spans(steps, late)
    tables, (x0, span, cols), lanes = lod.GraphTables(snapshot), view, range(LANES)
    a, b = x0 - snapshot.origin, x0 + span - snapshot.origin
    expected = by_hand(steps, late, x0, x0 + span)
    frames = [
        roles.role_frame(snapshot, tables, a, b, cols, lanes, tables.op, np.ones(len(snapshot.ops)), k)
        for k in (role_kernels, role_numpy)
    ]
    for frame in frames:
        busy = frame.busy.sum(1).reshape(LANES, 4) * frame.dx
        assert busy == pytest.approx(expected.sum(2), rel=1e-4, abs=1e-2)
        for op in range(3):  # a class by itself: its share is all of its time
            only = np.where(np.arange(3) == op, 1.0, 0.0)
            of_op = roles.role_frame(snapshot, tables, a, b, cols, lanes, tables.op, only, role_kernels)
            assert (of_op.grid[of_op.grid != 255] == op).all()
            time = of_op.share.sum(1).reshape(LANES, 4) * of_op.dx
            assert time == pytest.approx(expected[:, :, op], rel=1e-4, abs=1e-2)
    for name in ("share", "busy", "wait"):
        assert getattr(frames[0], name) == pytest.approx(getattr(frames[1], name), abs=1e-4)


@settings(max_examples=60, deadline=None)
@given(traces(), views)
def test_rectangles_are_the_tasks_of_the_pixels(steps, view):
    snapshot = store_of_spans(steps)
    tables, (x0, span, cols) = lod.GraphTables(snapshot), view
    a, b = x0 - snapshot.origin, x0 + span - snapshot.origin
    rects = roles.role_rects(snapshot, a, b, range(LANES), 1000)
    frame = roles.role_frame(snapshot, tables, a, b, cols, range(LANES), tables.op, np.ones(3))
    drawn = np.zeros((LANES, 4))
    for role, (start, stop) in enumerate(roles.spans(snapshot, rects.row)):
        inside = np.maximum(np.minimum(stop - snapshot.origin, b) - np.maximum(start - snapshot.origin, a), 0)
        counts = (tables.bytes[snapshot.task[rects.row]] > 0) | (role > 0)
        drawn[:, role] = np.bincount(rects.lane, inside * counts, LANES)
    assert drawn == pytest.approx(frame.busy.sum(1).reshape(LANES, 4) * frame.dx, rel=1e-4, abs=1e-2)
    assert roles.role_rects(snapshot, a, b, range(LANES), len(rects.row)) is not None
    if len(rects.row):
        assert roles.role_rects(snapshot, a, b, range(LANES), len(rects.row) - 1) is None


def test_nothing_longer_than_the_view_and_a_whole_gpu():
    empty = store_of_spans([[]])
    frame = roles.role_frame(empty, lod.GraphTables(empty), 0, 100, 10, range(LANES), np.zeros(0, np.uint8), np.ones(3))
    assert (frame.grid == lod.NONE).all() and not frame.busy.any()
    assert len(roles.role_rects(empty, 0, 100, range(LANES), 5).row) == 0
    long = store_of_spans([[(0, 0, 0, 0, 10**6, 10**6, 0)]])
    tables = lod.GraphTables(long)
    frame = roles.role_frame(long, tables, 400_000, 400_100, 7, range(LANES), tables.op, np.ones(3))
    assert frame.busy[roles.MATH] == pytest.approx(np.ones(7)) and frame.busy.sum() == pytest.approx(7, rel=1e-5)
