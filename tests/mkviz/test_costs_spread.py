"""Spread: whose costs a task of another step gets, on tasks whose costs are written down."""

from types import SimpleNamespace

import numpy as np
import pytest

from mkviz.costs import Costs
from mkviz.costs_model import TOLD, OpCost, OpCosts
from mkviz.costs_spread import Spread
from mkviz.graph import GraphBuilder
from mkviz.machine import H200
from mkviz.work import Work

MODEL = OpCosts(
    {
        "a": OpCost(4, 100.0, 0.0, 0.0, TOLD, 0.0, 1, 2, 3, 4.0, 0.0),
        "b": OpCost(1, 0.0, 0.5, 0.0, TOLD, 0.0, 1, 2, 3, 4.0, 0.0),
    },
    H200,
)


def graph(*tasks):
    builder = GraphBuilder("spread", ("b", "a"))
    for op, layer, tile, size in tasks:
        builder.task(op, layer=layer, tile=tile, bytes=size)
    return builder.build()


def work(of):
    return Work(of.bytes, np.zeros(len(of)))


def fitted(of, math, hop, ran=None):
    hop = np.array(hop)
    costs = Costs(np.array(math), 10 * hop, hop, hop + 1, hop + 2)
    return SimpleNamespace(
        case=SimpleNamespace(graph=of, costs=costs), work=work(of), ran=np.ones(len(of), bool) if ran is None else ran
    )


BEFORE = graph(("a", 0, 0, 0), ("a", 0, 1, 0), ("a", 1, 0, 0), ("b", 0, 0, 400), ("a", 2, 0, 0))
SPREAD = Spread.of(MODEL, [fitted(BEFORE, [100, 200, 50, 300, 900], [5, 7, 9, 20, 99], np.array([1, 1, 1, 1, 0], bool))])


def test_the_same_task_then_one_of_its_layer_then_one_of_its_op():
    after = graph(("a", 0, 1, 0), ("a", 1, 5, 0), ("a", 2, 0, 0), ("b", 0, 0, 1000), ("a", 0, 0, 0))
    costs = SPREAD.costs(after, work(after), np.array([1, 1, 1, 1, 0], bool))
    assert (costs.math[0], costs.publish[0], costs.hop[0], costs.feed[0], costs.overhead[0]) == (200, 70, 7, 8, 9)
    assert (costs.math[1], costs.hop[1]) == (50, 9)  # no tile 5 there: the only one of layer 1
    assert (costs.math[2], costs.hop[2]) in {(100, 5), (200, 7), (50, 9)}  # layer 2 ran in no fitted step
    assert (costs.math[3], costs.hop[3]) == (750, 20)  # 300 where 200 were said: half as much again of what 1000 bytes take
    assert (costs.math[4], costs.publish[4], costs.hop[4], costs.overhead[4]) == (1, 0, 0, 0)


def test_all_that_are_alike_are_drawn_equally_often_and_always_the_same():
    after = graph(*[("a", 0, 7, 0)] * 1000)
    first, second = (SPREAD.costs(after, work(after), np.ones(1000, bool)) for _ in range(2))
    assert set(first.hop.tolist()) == {5, 7} and np.mean(first.hop == 5) == pytest.approx(0.5, abs=0.06)
    assert first.hop.tolist() == second.hop.tolist()


def test_what_a_step_had_comes_back_whole():
    costs = SPREAD.costs(BEFORE, work(BEFORE), np.array([1, 1, 1, 1, 0], bool))
    assert costs.math.tolist() == [100, 200, 50, 300, 1] and costs.hop.tolist() == [5, 7, 9, 20, 0]


def test_overhead_that_goes_with_flops_grows_with_them():
    """10 ns and 2 a flop: of tasks of 3 flops, said to have 16, one had 20 and one none.  Of 8 flops these are 26, 4 more and
    16 fewer, of none 14 and none."""
    model = OpCosts({"a": OpCost(2, 100.0, 0.0, 0.0, TOLD, 0.0, 1, 2, 3, 10.0, 2.0)}, H200)
    before, after = graph(("a", 0, 0, 0), ("a", 0, 1, 0)), graph(("a", 0, 0, 0), ("a", 0, 1, 0))
    step = fitted(before, [100, 100], [18, 0])
    step.case.costs.overhead[1] = 0
    step.work = Work(before.bytes, np.full(2, 3.0))
    spread = Spread.of(model, [step])
    for flops, overhead in ((3, [20, 0]), (8, [30, 10]), (0, [14, 0])):
        costs = spread.costs(after, Work(after.bytes, np.full(2, float(flops))), np.ones(2, bool))
        assert costs.overhead.tolist() == overhead
