"""Level of detail: sums equal exact overlaps, and the modes and both kernels agree."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mkviz import lod, lod_kernels, lod_numpy
from mkviz.graph import GraphBuilder
from mkviz.protocols import StepInfo
from mkviz.record import EVENT
from mkviz.schedule import Schedule
from mkviz.store import LiveStore

OPS = ("qkv", "attention", "o")
BOTH = pytest.mark.parametrize("kernels", [lod_kernels, lod_numpy], ids=["numba", "numpy"])


def store_of_tasks(steps, lanes=3):
    """``steps``: lists of (lane, ready, begin, end, op index); tasks count through all steps, task t reads 100·(t+1) bytes."""
    builder = GraphBuilder("tiny", OPS)
    flat = [task for step in steps for task in step]
    for i, task in enumerate(flat):
        builder.task(OPS[task[4]], layer=i % 4, bytes=100 * (i + 1))
    store = LiveStore("simulated", "simulated")
    store.graph(0, builder.build(), Schedule.from_lists([[] for _ in range(lanes)]))
    number = 0
    for s, step in enumerate(steps):
        events = np.zeros(len(step), EVENT)
        for event, (lane, ready, begin, end, _) in zip(events, step, strict=True):
            event["task"], event["sm"], event["step"] = number, lane, s
            event["claim"], event["ready"], event["begin"], event["end"], event["publish"] = ready, ready, begin, end, end
            number += 1
        lo, hi = min((t[1] for t in step), default=0), max((t[3] for t in step), default=0)
        store.step(StepInfo(s, 0, lo, hi), events)
    return store.snapshot()


def frame(snapshot, x0, x1, cols, kernels, weight=(1, 1, 1)):
    tables = lod.GraphTables(snapshot)
    return lod.image_frame(snapshot, tables, x0, x1, cols, tables.op, np.array(weight, float), kernels)


@st.composite
def traces(draw):
    """One or two steps on three lanes; on a lane tasks follow each other, sometimes touching, sometimes after a wait."""
    steps, clock = [], 1000
    for _ in range(draw(st.integers(1, 2))):
        step, latest = [], clock
        for lane in range(3):
            now = clock
            for _ in range(draw(st.integers(0, 5))):
                ready = now + draw(st.sampled_from([0, 0, 3, 40]))
                begin = ready + draw(st.sampled_from([0, 2]))
                end = begin + draw(st.integers(0, 60))
                step.append((lane, ready, begin, end, draw(st.integers(0, 2))))
                now = end
            latest = max(latest, now)
        steps.append(step)
        clock = latest + draw(st.sampled_from([0, 25]))
    return steps


def overlap(a, b, x0, x1):
    return max(0.0, min(b, x1) - max(a, x0))


def by_hand(steps, snapshot, x0, x1):
    """Busy ns per (lane, op), wait ns per lane, tail ns over lanes, bytes: from the task list alone, one interval at a time."""
    busy, wait, tail, read, number = np.zeros((3, 3)), np.zeros(3), 0.0, 0.0, 0
    bounds = [(int(s["begin"]) - snapshot.origin, int(s["end"]) - snapshot.origin) for s in snapshot.steps]
    for step, (first, last) in zip(steps, bounds, strict=True):
        for lane in range(3):
            free = first
            for i, (at, ready, begin, end, op) in enumerate(step):
                if at != lane:
                    continue
                ready, begin, end = ready - snapshot.origin, begin - snapshot.origin, end - snapshot.origin
                wait[lane] += overlap(free, ready, x0, x1)
                busy[lane, op] += overlap(begin, end, x0, x1)
                if end > begin:
                    read += 100 * (number + i + 1) * overlap(begin, end, x0, x1) / (end - begin)
                free = end
            tail += overlap(free, last, x0, x1)
        number += len(step)
    return busy, wait, tail, read


views = st.tuples(st.floats(-50, 300), st.floats(1, 400), st.integers(1, 40))


@BOTH
@settings(max_examples=60, deadline=None)
@given(steps=traces(), view=views)
def test_sums_equal_exact_overlaps(kernels, steps, view):
    snapshot = store_of_tasks(steps)
    x0, x1, cols = view[0], view[0] + view[1], view[2]
    busy, wait, tail, read = by_hand(steps, snapshot, x0, x1)
    f = frame(snapshot, x0, x1, cols, kernels)
    np.testing.assert_allclose(f.busy.sum(1) * f.dx, busy.sum(1), rtol=1e-5, atol=1e-3)
    np.testing.assert_allclose(f.wait.sum(1) * f.dx, wait, rtol=1e-5, atol=1e-3)
    np.testing.assert_allclose(f.tail_lanes.sum() * f.dx, tail, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(f.rate.sum() * f.dx, read, rtol=1e-6, atol=1e-6)
    total = lod.summary(snapshot, lod.GraphTables(snapshot), x0, x1, kernels)
    by_name = dict(zip(snapshot.ops, total.busy, strict=True))
    np.testing.assert_allclose([by_name[op] for op in OPS], busy.sum(0), rtol=1e-9, atol=1e-6)
    np.testing.assert_allclose(
        [total.wait.sum(), total.tail, total.bytes.sum()], [wait.sum(), tail, read], rtol=1e-9, atol=1e-6
    )


@settings(max_examples=60, deadline=None)
@given(steps=traces(), view=views)
def test_kernels_agree(steps, view):
    snapshot = store_of_tasks(steps)
    x0, x1, cols = view[0], view[0] + view[1], view[2]
    a, b = (frame(snapshot, x0, x1, cols, k) for k in (lod_kernels, lod_numpy))
    np.testing.assert_allclose(a.share, b.share, atol=1e-4)
    clear = np.abs(a.busy - a.share) < a.share * 0.99  # no tie
    assert (a.grid == b.grid)[clear & (a.share > 1e-3)].all()
    for limit in (1000, 3):
        p, q = (lod.rect_frame(snapshot, lod.GraphTables(snapshot), x0, x1, limit, k) for k in (lod_kernels, lod_numpy))
        assert (p is None) == (q is None)
        if p is not None:
            for column in ("row", "lane", "step", "free"):
                np.testing.assert_array_equal(getattr(p, column), getattr(q, column))


@BOTH
@settings(max_examples=60, deadline=None)
@given(steps=traces(), view=views)
def test_image_and_rects_agree(kernels, steps, view):
    """Painting the rectangles on the pixel grid gives the image's busy and wait."""
    snapshot = store_of_tasks(steps)
    x0, x1, cols = view[0], view[0] + view[1], view[2]
    f = frame(snapshot, x0, x1, cols, kernels)
    rects = lod.rect_frame(snapshot, lod.GraphTables(snapshot), x0, x1, 1000, kernels)
    busy, wait = np.zeros_like(f.busy), np.zeros_like(f.wait)
    edges = x0 + f.dx * np.arange(cols + 1)
    for row, lane, free in zip(rects.row, rects.lane, rects.free, strict=True):
        begin, end, ready = (float(c[row]) - snapshot.origin for c in (snapshot.begin, snapshot.end, snapshot.ready))
        for j in range(cols):
            busy[lane, j] += overlap(begin, end, edges[j], edges[j + 1]) / f.dx
            wait[lane, j] += overlap(free, ready, edges[j], edges[j + 1]) / f.dx
    np.testing.assert_allclose(f.busy, busy, atol=1e-3)
    np.testing.assert_allclose(f.wait, wait, atol=1e-3)


@BOTH
def test_empty(kernels):
    store = LiveStore()
    snapshot = store.snapshot()
    f = frame(snapshot, 0, 10, 5, kernels, weight=())
    assert f.grid.shape == (0, 5) and f.busy_lanes.tolist() == [0] * 5
    snapshot = store_of_tasks([[]])
    f = frame(snapshot, 0, 10, 5, kernels)
    assert (f.grid == lod.NONE).all() and f.busy.sum() == 0
    assert len(lod.rect_frame(snapshot, lod.GraphTables(snapshot), 0, 10, 5, kernels).row) == 0
    assert lod.summary(snapshot, lod.GraphTables(snapshot), 0, 10, kernels).busy_share == 0


@BOTH
def test_task_longer_than_the_view(kernels):
    snapshot = store_of_tasks([[(1, 0, 0, 1000, 2)]])
    f = frame(snapshot, 400, 410, 4, kernels)
    assert snapshot.ops[f.grid[1, 0]] == "o" and (f.busy[1] == 1).all() and (f.busy[[0, 2]] == 0).all()
    assert len(lod.rect_frame(snapshot, lod.GraphTables(snapshot), 400, 410, 10, kernels).row) == 1


@BOTH
def test_touching_edges(kernels):
    """Tasks that end where the view begins, or begin where it ends, are not in it."""
    snapshot = store_of_tasks([[(0, 0, 0, 10, 0), (0, 10, 10, 20, 1), (0, 20, 20, 30, 2)]])
    f = frame(snapshot, 10, 20, 2, kernels)
    assert [snapshot.ops[k] for k in f.grid[0]] == ["attention", "attention"] and f.busy[0].tolist() == [1, 1]
    assert snapshot.task[lod.rect_frame(snapshot, lod.GraphTables(snapshot), 10, 20, 10, kernels).row].tolist() == [1]
    f = frame(snapshot, 0, 30, 3, kernels)
    assert [snapshot.ops[k] for k in f.grid[0]] == list(OPS)


@BOTH
def test_hand_worked_step(kernels):
    """Lane 0: qkv 0..40; lane 1: waits until 40, attention 50..90 (10 unclaimed), lane 2 never works: tail throughout."""
    snapshot = store_of_tasks([[(0, 0, 0, 40, 0), (1, 40, 50, 90, 1)]])
    f = frame(snapshot, 0, 100, 10, kernels)
    assert f.busy_lanes.tolist() == pytest.approx([1, 1, 1, 1, 0, 1, 1, 1, 1, 0])
    assert f.waiting_lanes.tolist() == pytest.approx([1, 1, 1, 1, 0, 0, 0, 0, 0, 0])
    assert f.tail_lanes.tolist() == pytest.approx([1, 1, 1, 1, 2, 2, 2, 2, 2, 0])
    assert f.rate.tolist() == pytest.approx([2.5] * 4 + [0] + [5] * 4 + [0])
    total = lod.summary(snapshot, lod.GraphTables(snapshot), 0, 100, kernels)
    assert (total.busy_share, total.wait_share, total.tail_share) == pytest.approx((80 / 270, 40 / 270, 140 / 270))
    assert total.unbegun_share == pytest.approx(10 / 270)


@BOTH
def test_weights_choose_by_presence(kernels):
    """One ns of qkv in a pixel of attention: hidden by share, shown when it weighs more; a class of weight 0 never shows."""
    snapshot = store_of_tasks([[(0, 0, 0, 1, 0), (0, 1, 1, 100, 1)]])
    assert snapshot.ops[frame(snapshot, 0, 100, 1, kernels).grid[0, 0]] == "attention"
    assert snapshot.ops[frame(snapshot, 0, 100, 1, kernels, weight=(1e9, 1, 1)).grid[0, 0]] == "qkv"
    assert snapshot.ops[frame(snapshot, 0, 100, 1, kernels, weight=(1, 0, 1)).grid[0, 0]] == "qkv"
    assert frame(snapshot, 0, 100, 1, kernels, weight=(0, 0, 0)).grid[0, 0] == lod.NONE


@BOTH
def test_overlapping_records_keep_the_running_end(kernels):
    """An import with a task inside a longer one: the lane is free only after the longer one."""
    snapshot = store_of_tasks([[(0, 0, 0, 100, 0), (0, 10, 10, 20, 1), (0, 130, 130, 140, 2)]])
    f = frame(snapshot, 110, 130, 2, kernels)
    assert f.wait[0].tolist() == [1, 1] and f.busy[0].tolist() == [0, 0]
    inside = frame(snapshot, 40, 60, 2, kernels)
    assert inside.busy[0].tolist() == [1, 1] and inside.wait[0].tolist() == [0, 0]
    assert lod.summary(snapshot, lod.GraphTables(snapshot), 0, 140, kernels).wait.sum() == 30


def test_long_times_stay_exact():
    """An hour into a trace, a 5 ns task is still 5 ns."""
    hour = 3_600_000_000_000
    snapshot = store_of_tasks([[(0, 0, 0, 10, 0)], [(0, hour, hour, hour + 5, 1)]])
    assert lod.summary(snapshot, lod.GraphTables(snapshot), hour - 10, hour + 10).busy.sum() == 5
