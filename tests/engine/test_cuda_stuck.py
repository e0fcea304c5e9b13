"""What is said of a step that got stuck, from the words that a kernel leaves behind."""

import numpy as np
import pytest

from engine.cuda.abi import ABORT, NO_COUNTER
from engine.cuda.stuck import stuck_step
from mkviz.graph import GraphBuilder
from mkviz.schedule import Schedule

NO_TASK = 0xFFFFFFFF
LOADER, FEEDER, MATH, STORER = range(4)


@pytest.fixture
def graph():
    """load (two tiles) → a → mul (two tiles) → b → sum → c; nothing waits for c within the step."""
    g = GraphBuilder("chain", ("load", "mul", "sum"))
    a, b, c = (g.counter(name) for name in "abc")
    for tile in range(2):
        g.task("load", tile=tile, raises=[a])
    for tile in range(2):
        g.task("mul", tile=tile, waits=[a], raises=[b])
    g.task("sum", waits=[b], raises=[c])
    return g.build()


def said(graph, lists, role, task, counter, values, step=0, epoch=0, sm=1, seen=None) -> str:
    """The message when SM ``sm`` gave up at ``counter``; ``values`` are arrivals of this step, ``seen`` what the wait saw."""
    base = (epoch + step) * graph.arrivals.astype(np.int64)
    words = ((base + values) & 0xFFFFFFFF).astype(np.uint32)
    abort = np.zeros(1, ABORT)[0]
    for name, value in {"word": 1, "sm": sm, "role": role, "task": task, "counter": counter, "step": step}.items():
        abort[name] = value
    if counter != NO_COUNTER:
        abort["value"] = words[counter] if seen is None else (base[counter] + seen) & 0xFFFFFFFF
    return str(stuck_step(graph, Schedule.from_lists(lists), abort, words, epoch))


def test_a_producer_that_nobody_runs(graph):
    text = said(graph, [[0, 2], [3, 4]], FEEDER, 3, 0, [1, 0, 0])
    assert text == (
        "step stuck: mul · tile 1 (task 3) on SM 1 feeder waits for counter a: 1 of 2; raised by load · tile 1 on no SM; "
        "give every task to an SM"
    )


def test_a_wait_is_followed_back_to_the_one_that_began_it(graph):
    """The storer of sum gave up first, but only because mul waits for a load that nobody runs."""
    text = said(graph, [[0, 2], [3, 4]], STORER, 4, 1, [1, 0, 0])
    assert text == (
        "step stuck: sum (task 4) on SM 1 storer waits for counter b: 0 of 2; raised by mul · tile 0 on SM 0, which waits for "
        "a: 1 of 2; raised by load · tile 1 on no SM; give every task to an SM"
    )


def test_a_long_chain_shows_its_ends():
    """Ten tasks in a row, of which the first has no SM: the last one's wait and the first one's lack are told."""
    g = GraphBuilder("row", ("op",))
    counters = [g.counter(f"c{i}") for i in range(10)]
    for i in range(10):
        g.task("op", tile=i, waits=counters[i - 1 : i], raises=[counters[i]])
    g.task("op", tile=10, waits=[counters[9]])
    text = said(g.build(), [list(range(1, 11))], FEEDER, 10, 9, [0] * 10, sm=0)
    assert text == (
        "step stuck: op · tile 10 (task 10) on SM 0 feeder waits for counter "
        "c9: 0 of 1; raised by op · tile 9 on SM 0, which waits for c8: 0 of 1; raised by op · tile 8 on SM 0, which waits for "
        "c7: 0 of 1; raised by op · tile 7 on SM 0, which waits for … 4 more such waits … "
        "c2: 0 of 1; raised by op · tile 2 on SM 0, which waits for c1: 0 of 1; raised by op · tile 1 on SM 0, which waits for "
        "c0: 0 of 1; raised by op · tile 0 on no SM; give every task to an SM"
    )


def test_producers_that_wait_for_nothing(graph):
    text = said(graph, [[0, 1, 2], [3, 4]], LOADER, 3, 0, [1, 0, 0])
    assert "a: 1 of 2; raised by load · tile 0 on SM 0, load · tile 1 on SM 0; check the schedule" in text


def test_a_producer_behind_one_that_waits():
    """Nothing keeps load from running but that its SM is at mul, whose input nobody makes; merges are not in its way."""
    g = GraphBuilder("two", ("make", "merge", "mul", "load", "sum"))
    a, b, c = (g.counter(name) for name in "abc")
    g.task("make", raises=[a])
    g.task("merge", waits=[c])
    g.task("mul", waits=[a])
    g.task("load", raises=[b])
    g.task("sum", waits=[b], raises=[c])
    text = said(g.build(), [[1, 2, 3], [4]], FEEDER, 4, 1, [0, 0, 0])
    assert text == (
        "step stuck: sum (task 4) on SM 1 feeder waits for counter b: 0 of 1; raised by load on SM 0 behind mul, which "
        "waits for a: 0 of 1; raised by make on no SM; give every task to an SM"
    )


def test_tasks_that_wait_for_each_other(graph):
    """A list in an order that no run can follow: load stands behind the mul that needs it."""
    text = said(graph, [[3, 1], [0, 2, 4]], FEEDER, 2, 0, [1, 0, 0])
    assert text == (
        "step stuck: mul · tile 0 (task 2) on SM 1 feeder waits for counter a: 1 of 2; raised by load · tile 1 on SM 0 behind "
        "mul · tile 1, which waits for a again; check the schedule (mkviz schedule check)"
    )


@pytest.mark.parametrize("epoch", [0, 1000, 2**31 - 1, 2**32 - 3])
def test_arrivals_are_those_of_the_step(graph, epoch):
    """Counters go on growing, and wrap: 1000 steps before, or almost 2^32 arrivals."""
    text = said(graph, [[0, 2], [3, 4]], FEEDER, 3, 0, [1, 0, 0], step=2, epoch=epoch)
    assert "waits for counter a: 1 of 2;" in text


def test_the_count_is_what_the_wait_saw(graph):
    """A slow producer may have come after all."""
    assert "waits for counter a: 1 of 2; raised by load · tile 0" in said(
        graph, [[0, 1, 2], [3, 4]], FEEDER, 3, 0, [2, 0, 0], seen=1
    )


def test_a_step_that_does_not_begin(graph):
    """Roles at the end of step 4 wait for its last counter, which never came."""
    lists = [[0, 1, 2], [3]]
    base_of_step_3 = [0, 0, -1]  # arrivals of step 3 less those of step 4: c still stands where step 3 should have raised it
    text = said(graph, lists, MATH, NO_TASK, 2, base_of_step_3, step=4)
    assert text.startswith("step stuck: the next step on SM 1 math waits for counter c: 0 of 1; raised by sum on no SM;")


def test_a_wait_inside_a_block(graph):
    text = said(graph, [[0, 1, 2], [3, 4]], MATH, 3, NO_COUNTER, [2, 0, 0])
    assert text == (
        "step stuck: mul · tile 1 (task 3) on SM 1 math waits for another role of its block; report this with the trace"
    )
