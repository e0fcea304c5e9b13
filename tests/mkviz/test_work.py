"""Work: what the tasks of a step had to do, on graphs counted by hand."""

import numpy as np
import pytest

from mkviz.graph import GraphBuilder
from mkviz.protocols import Row, StepInfo
from mkviz.work import Work


def step(rows, requests=None, routes=()):
    """A step of that many rows, of as many requests unless told."""
    return StepInfo(0, 0, 0, 100, [Row(i, i % (requests or rows), 0, 0, "decode") for i in range(rows)], list(routes))


def layer():
    """A graph of 4 rows: 2 tiles of qkv (40 flops each for 4 rows), 4 of attention (a row each), 4 slots of experts in 2 tiles
    (10 flops each for one row), one down task over all slots and a shared expert, and the head."""
    meta = {"rows": 4, "last_row_ops": ["head"], "slot_bytes": {"down": 0.8}}
    b = GraphBuilder("layer", ["qkv", "attention", "up", "down", "head"], meta)
    for tile in range(2):
        b.task("qkv", layer=0, tile=tile, bytes=100, flops=40)
    for row in range(4):
        b.task("attention", layer=0, tile=row, bytes=50, flops=7)
    for slot in range(4):
        for tile in range(2):
            b.task("up", layer=0, slot=slot, tile=tile, bytes=30, flops=10)
    b.task("down", layer=0, bytes=1000, flops=400)
    b.task("head", bytes=500, flops=80)
    return b.build()


def of_op(graph, work, op):
    mine = graph.op == graph.ops.index(op)
    return work.bytes[mine].tolist(), pytest.approx(work.flops[mine].tolist())


def test_rows_do_their_share_and_those_with_tasks_of_their_own_all_of_theirs():
    graph = layer()
    ran = np.ones(len(graph), bool)
    ran[[4, 5]] = False  # attention of rows 2 and 3, which the step does not have
    work = Work.of(graph, step(2), ran)
    assert of_op(graph, work, "qkv") == ([100, 100], [20, 20])
    assert of_op(graph, work, "attention") == ([50, 50, 0, 0], [7, 7, 0, 0])
    assert of_op(graph, work, "head") == ([500], [40])


def test_slots_do_what_was_routed_to_them():
    """3 rows of 2 experts each: slot 0 has 3 of these 6, slot 1 two, slot 2 one; the graph counts 4 rows, 80 flops in all."""
    graph = layer()
    ran = np.ones(len(graph), bool)
    ran[[12, 13]] = False  # slot 3
    routes = [(0, 0, 7, 3), (0, 1, 2, 2), (0, 2, 9, 1)]
    work = Work.of(graph, step(3, routes=routes), ran)
    # 3/4 of 80 flops are 60, 10 for each of the 6; slots have two tasks
    assert of_op(graph, work, "up") == ([30] * 6 + [0, 0], [15, 15, 10, 10, 5, 5, 0, 0])
    # 3 of 4 slots were read, which are 0.8 of the bytes, and all of the shared expert
    assert of_op(graph, work, "down") == ([800], [300])
    # 8 tasks of 10 flops are 80 for 4 rows, of which 3/4 are done by the 6 that ran
    work = Work.of(graph, step(3, routes=[(0, slot, 7, 0) for slot in range(4)]), ran)
    assert of_op(graph, work, "up") == ([30] * 6 + [0, 0], [10] * 6 + [0, 0])
    assert of_op(graph, work, "down") == ([1000], [300])


def test_the_head_does_a_row_of_each_request():
    graph = layer()
    work = Work.of(graph, step(4, requests=1), np.ones(len(graph), bool))
    assert of_op(graph, work, "head") == ([500], [20]) and of_op(graph, work, "qkv") == ([100, 100], [40, 40])


def test_a_row_meets_the_keys_that_it_has():
    """Rows at positions 9 and 24 in blocks of 16 keys: 10 and 25 keys in one and two blocks, 35 of 48."""
    b = GraphBuilder("keys", ["attention"], {"rows": 2, "keys": {"attention": 16}})
    for tile in range(4):  # two rows, two blocks each
        b.task("attention", layer=0, tile=tile, bytes=480, flops=960)
    info = StepInfo(0, 0, 0, 100, [Row(0, 0, 9, 0, "decode"), Row(1, 1, 24, 0, "decode")])
    work = Work.of(b.build(), info, np.array([True, False, True, True]))
    assert work.bytes.tolist() == [350, 0, 350, 350] and work.flops.tolist() == pytest.approx([700, 0, 700, 700])


def test_a_step_that_does_not_say_its_rows_does_what_the_graph_counts():
    graph = layer()
    ran = np.ones(len(graph), bool)
    for work in (Work.of(graph, StepInfo(0, 0, 0, 100), ran), Work.of_rows(graph, 4)):
        assert work.bytes.tolist() == graph.bytes.tolist() and work.flops.tolist() == pytest.approx(graph.flops.tolist())
    assert of_op(graph, Work.of_rows(graph, 1), "qkv") == ([100, 100], [10, 10])
    bare = GraphBuilder("anybody's", ["op"])
    bare.task("op", bytes=5, flops=6)
    work = Work.of(bare.build(), step(3), np.ones(1, bool))
    assert work.bytes.tolist() == [5] and work.flops.tolist() == [6]
