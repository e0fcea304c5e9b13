"""The balanced policy, on graphs of the shapes that an engine builds, small enough to work out by hand."""

from dataclasses import replace

import numpy as np
import pytest
from random_graphs import random_graph

from mkviz.balance import deal, liveness
from mkviz.errors import MkvizError
from mkviz.graph import GraphBuilder
from mkviz.order import follows
from mkviz.policies import make_schedule, owned

OPS = ("norm", "router", "top_k", "qkv", "attention", "merge", "up", "o_proj", "down")
UP = 1000  # bytes of a task that runs beside attention


def step(layers=1, *, rows=1, heads=1, splits=1, window=None, ups=12, projections=3, routers=2, parallel=True, row_tasks=False):
    """A graph like the engine's.  ``window``: splits of layers that see a window; ``row_tasks``: norms and top-k are tasks."""
    b = GraphBuilder("step", OPS, {"splits": splits})
    x = None
    for layer in range(layers):
        qkv = [b.counter(f"qkv.{layer}.{g}") for g in range(heads)]
        att, mid, hid, after = (b.counter(f"{name}.{layer}") for name in ("att", "mid", "hid", "x"))
        seen = [] if x is None else [x]
        if row_tasks:
            normed = b.counter(f"normed.{layer}")
            b.tasks("norm", rows, layer=layer, waits=seen, raises=[normed])
            seen = [normed]
        before_up, logits = seen if parallel else [mid], b.counter(f"logits.{layer}")
        b.tasks("router", routers, layer=layer, bytes=UP, waits=before_up, raises=[logits])
        if row_tasks:
            known = b.counter(f"known.{layer}")
            b.tasks("top_k", rows, layer=layer, waits=[logits], raises=[known])
            logits = known
        for g in range(heads):
            b.tasks("qkv", 3, layer=layer, tile=3 * g, bytes=UP, waits=seen, raises=[qkv[g]])
        tile, slots = 0, splits if window is None or splits == 1 else min(window, splits)
        for row in range(rows):
            for g in range(heads):
                part = att if splits == 1 else b.counter(f"part.{layer}.{row}.{g}")
                b.tasks("attention", slots, layer=layer, tile=tile, bytes=2 * UP, waits=[qkv[g]], raises=[part])
                tile += slots
                if splits > 1:
                    b.tasks("merge", 2, layer=layer, waits=[part], raises=[att])
        b.tasks("up", ups, layer=layer, bytes=UP, waits=[*before_up, logits], raises=[hid])
        b.tasks("o_proj", projections, layer=layer, bytes=3 * UP, waits=[att], raises=[mid])
        b.tasks("down", projections, layer=layer, bytes=5 * UP, waits=[hid, mid], raises=[after])
        x = after
    return b.build()


def of(graph, op, layer=0):
    return np.flatnonzero((graph.op == graph.ops.index(op)) & (graph.layer == layer))


def counts(graph, schedule, op, layer=0):
    return np.bincount(schedule.sm_of(len(graph))[of(graph, op, layer)], minlength=schedule.sms)


@pytest.mark.parametrize(("rows", "heads", "splits", "sms"), [(1, 4, 16, 12), (1, 4, 64, 13), (4, 2, 8, 7), (8, 4, 4, 132)])
def test_live_attention_is_even_for_any_number_of_live_splits(rows, heads, splits, sms):
    g = step(rows=rows, heads=heads, splits=splits)
    sm, tasks = make_schedule(g, sms, "balanced").sm_of(len(g)), of(g, "attention")
    for live in range(1, splits + 1):
        on = np.bincount(sm[tasks[g.tile[tasks] % splits < live]], minlength=sms)
        assert on.max() == -(-rows * heads * live // sms)
        assert on.min() == rows * heads * live // sms


def test_who_has_attention_gets_less_of_what_runs_beside_it():
    g = step(ups=7)  # one attention task: 3 SMs, two of which have none
    for late, expected in ((0, [2, 2, 3]), (1, [1, 3, 3]), (2, [1, 3, 3]), (3, [0, 3, 4]), (5, [0, 3, 4]), (99, [0, 3, 4])):
        s = make_schedule(g, 3, "balanced", attention_bytes=late * UP, fresh_bytes=0)
        up, attention = counts(g, s, "up"), counts(g, s, "attention")
        assert sorted(up) == sorted(expected)
        assert up[attention == 1][0] == expected[0]


def test_the_page_of_this_step_is_waited_for():
    """Of one split it is certain, of two live ones the second has it; behind another attention task nothing is left of it."""
    for splits, sms, expected in ((1, 3, [0, 4, 5]), (2, 3, [4, 0, 5])):
        g = step(splits=splits, ups=9)
        s = make_schedule(g, sms, "balanced", attention_bytes=0, fresh_bytes=4 * UP)
        up = counts(g, s, "up")
        by_split = s.sm_of(len(g))[of(g, "attention")].tolist()
        others = sorted(set(range(sms)) - set(by_split), key=up.tolist().__getitem__)
        assert up[by_split + others].tolist() == expected
    g = step(splits=2, ups=9)
    assert counts(g, make_schedule(g, 1, "balanced"), "attention").tolist() == [2]
    g = step(rows=3, splits=2, ups=9)  # 6 live tasks on 3 SMs: all are alike
    assert counts(g, make_schedule(g, 3, "balanced", fresh_bytes=99 * UP), "up").tolist() == [3, 3, 3]


def test_what_may_be_live_counts_for_what_it_may_cost():
    """4 splits on 4 SMs: 3 are live at least.  Then the fourth SM is 3/4 of a task before the mean and the others 1/4 behind
    it; if all are live nobody is behind.  The worse of the two: 1/4 of 4000 bytes behind for three, so one task less."""
    g = step(splits=4, ups=13)
    s = make_schedule(g, 4, "balanced", attention_bytes=4 * UP, fresh_bytes=0)
    assert counts(g, s, "up")[s.sm_of(len(g))[of(g, "attention")]].tolist() == [3, 3, 3, 4]


def test_liveness():
    full, window, one = step(splits=4, heads=2), step(splits=8, heads=2, window=3), step(heads=2, rows=2)
    split, live, fresh = liveness(full, of(full, "attention"))
    assert split.tolist() == [0, 1, 2, 3] * 2
    assert live.tolist() == [True, True, True, False] * 2
    assert fresh == pytest.approx([0, 0, 4 / 7, 3 / 7] * 2)  # 3 live are as likely as 4 live, 4 to 3
    split, live, fresh = liveness(window, of(window, "attention"))
    assert (split.tolist(), live.all(), fresh.tolist()) == ([0, 1, 2] * 2, True, [0, 0, 1] * 2)
    split, live, fresh = liveness(one, of(one, "attention"))
    assert (split.tolist(), live.all(), fresh.tolist()) == ([0] * 4, True, [1] * 4)


def test_any_first_part_of_what_runs_beside_attention_is_even():
    """Slots without rows are the last ones, and how many have rows is not known."""
    g = step(splits=8, window=3, heads=2, ups=60)  # 6 live attention tasks on 8 SMs
    s = make_schedule(g, 8, "balanced", attention_bytes=2 * UP, fresh_bytes=0)
    sm, late = s.sm_of(len(g)), 2 * counts(g, s, "attention")
    for n in range(1, 61):
        up = np.bincount(sm[of(g, "up")[:n]], minlength=8)
        behind, has = late + up, up > 0
        assert behind[has].max() - behind.min() <= 1


def test_remainders_go_to_another_each_time():
    g = step(layers=4, projections=3, ups=9, routers=1)
    s = make_schedule(g, 4, "balanced", attention_bytes=2 * UP, fresh_bytes=0)
    for op in ("o_proj", "down"):
        by_layer = [counts(g, s, op, layer) for layer in range(4)]
        assert all(n.tolist().count(1) == 3 for n in by_layer)
    for layer in range(4):  # nobody is without both
        assert (counts(g, s, "o_proj", layer) + counts(g, s, "down", layer)).min() == 1
        read = counts(g, s, "router", layer) + counts(g, s, "qkv", layer)
        assert read.tolist() == [1] * 4  # who has a router tile has one qkv less
    loads = np.bincount(s.sm_of(len(g)), g.bytes, 4)
    assert loads.max() / loads.min() < 1.2


def test_merges_stand_in_the_middle_of_what_does_not_wait_for_them():
    g = step(layers=2, splits=4, heads=2, ups=24)
    for sms in (3, 4):
        s = make_schedule(g, sms, "balanced")
        for sm in range(sms):
            mine = [t for t in s.tasks_of(sm) if g.layer[t] == 1]
            names = [g.ops[g.op[t]] for t in mine]
            around = [i for i, name in enumerate(names) if name == "merge"]
            ups = names.count("up")
            if around:
                assert names[: around[0]].count("up") == ups - ups // 2
                assert names[around[-1] :].count("up") == ups // 2
                assert "attention" not in names[around[0] :]


def test_one_after_the_other_is_not_traded():
    """Where what follows waits for attention, it is even by itself, and merges come as soon as they can."""
    g = step(splits=4, heads=2, ups=12, parallel=False)
    s = make_schedule(g, 4, "balanced", attention_bytes=99 * UP)
    assert counts(g, s, "up").tolist() == [3, 3, 3, 3]
    names = [[g.ops[g.op[t]] for t in s.tasks_of(sm)] for sm in range(4)]
    assert all(n.index("o_proj") < n.index("up") for n in names if "o_proj" in n)
    assert all(n[n.index("merge") - 1] == "attention" for n in names if "merge" in n)


def test_last_splits_stand_last():
    g = step(rows=4, heads=2, splits=8)
    s = make_schedule(g, 3, "balanced")
    for sm in range(3):
        splits = [g.tile[t] % 8 for t in s.tasks_of(sm) if g.ops[g.op[t]] == "attention"]
        assert splits == sorted(splits)


@pytest.mark.parametrize("parallel", [False, True])
@pytest.mark.parametrize("row_tasks", [False, True])
@pytest.mark.parametrize("splits", [1, 8])
def test_every_shape_of_step_follows_a_topological_order(parallel, row_tasks, splits):
    g = step(3, rows=3, heads=2, splits=splits, window=3, ups=31, projections=5, parallel=parallel, row_tasks=row_tasks)
    for sms in (1, 2, 7, 50):
        s = make_schedule(g, sms, "balanced")
        assert sorted(s.order.tolist()) == list(range(len(g)))
        assert len(s.queue) == 0
        for op in OPS:
            if op not in ("up", "attention"):
                assert np.ptp(counts(g, s, op, 1)) <= 1


def test_graphs_that_nobody_foresaw():
    """Any op may be called attention, wait for itself, or for what comes from it."""
    for seed in range(120):
        g = random_graph(seed, layers=5)
        for ops in (("attention", "a", "b"), ("a", "attention", "b"), ("attention", "attention", "a")):
            named = replace(g, ops=ops, meta={"splits": 4 if seed % 2 else 1})
            s = make_schedule(named, 1 + seed % 6, "balanced")  # refuses a deadlock
            assert sorted(s.order.tolist()) == list(range(len(g)))
            order, sm = deal(named, 4, 1000, 1000)
            assert follows(owned(order, sm, 4, "balanced"), order)
            place = np.argsort(order)
            for t in range(len(g)):
                for c, need in g.waits(t):
                    producers = [place[p] for p in range(len(g)) if c in g.raises(p)]
                    assert sum(p < place[t] for p in producers) >= need


def test_bad_options():
    with pytest.raises(MkvizError, match="attention_bytes is -1; 0 bytes or more"):
        make_schedule(step(), 3, "balanced", attention_bytes=-1)
    with pytest.raises(MkvizError, match="fresh_bytes is nan"):
        make_schedule(step(), 3, "balanced", fresh_bytes=float("nan"))
