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


def assert_order(graph, order):
    """Every wait is met by what stands before."""
    place = np.argsort(order)
    for t in range(len(graph)):
        for c, need in graph.waits(t):
            ptr, producers = graph.producers
            assert (place[producers[ptr[c] : ptr[c + 1]]] < place[t]).sum() >= need


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
    g = step(heads=4, ups=9)  # 4 tasks on 3 SMs: who has two need not wait for it, the others lose 3 tasks' time
    s = make_schedule(g, 3, "balanced", attention_bytes=0, fresh_bytes=3 * UP)
    assert counts(g, s, "up")[np.argsort(counts(g, s, "attention"))].tolist() == [2, 2, 5]
    g = step(rows=3, splits=2, ups=9)  # 6 live tasks on 3 SMs: all are alike
    assert counts(g, make_schedule(g, 3, "balanced", fresh_bytes=99 * UP), "up").tolist() == [3, 3, 3]


def test_what_may_be_live_counts_for_what_it_may_cost():
    """4 splits on 4 SMs: 3 are live at least.  Then the fourth SM is 3/4 of a task before the mean and the others 1/4 behind
    it; if all are live nobody is behind.  The worse of the two: 1/4 of 4000 bytes behind for three, so one task less."""
    g = step(splits=4, ups=13)
    s = make_schedule(g, 4, "balanced", attention_bytes=4 * UP, fresh_bytes=0)
    assert counts(g, s, "up")[s.sm_of(len(g))[of(g, "attention")]].tolist() == [3, 3, 3, 4]


def test_what_is_certain_counts_where_that_is_worse():
    """The same on 5 SMs: 0.4 tasks behind for three and 0.6 ahead for the others, or 0.2 behind for four and 0.8 ahead.  At
    10,000 bytes a task the first three are 10 tasks later than the last SM, the fourth 8."""
    g = step(splits=4, ups=22)
    s = make_schedule(g, 5, "balanced", attention_bytes=10 * UP, fresh_bytes=0)
    by_split = s.sm_of(len(g))[of(g, "attention")].tolist()
    assert counts(g, s, "up")[[*by_split, 10 - sum(by_split)]].tolist() == [2, 2, 2, 4, 12]


def test_only_what_is_certain_counts_as_read():
    """Of 4 SMs each has a router or qkv tile, a split and two tasks beside it; the split of one may have nothing to read."""
    g = step(splits=4, routers=1, ups=8, projections=1)
    sm = make_schedule(g, 4, "balanced", attention_bytes=0, fresh_bytes=0).sm_of(len(g))
    assert sm[of(g, "o_proj")] == sm[of(g, "attention")[3]]


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


def test_merges_stand_right_behind_attention_where_they_are_asked_to():
    g = step(layers=2, splits=4, heads=2, ups=24)
    s = make_schedule(g, 4, "balanced", merges_beside=False)
    for sm in range(4):
        names = [g.ops[g.op[t]] for t in s.tasks_of(sm) if g.layer[t] == 1]
        first, last = names.index("merge"), len(names) - names[::-1].index("merge")
        assert set(names[first:last]) == {"merge"} and names[first - 1] == "attention"


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


def beside(first, second, chained):
    """Attention with a merge, and two ops beside it, the second of which may wait for the first."""
    b = GraphBuilder("beside", ["attention", "merge", "a", "b"])
    part, done = b.counter("part"), b.counter("done")
    b.task("attention", layer=0, raises=[part])
    b.task("merge", layer=0, waits=[part])
    b.tasks("a", first, layer=0, bytes=UP, raises=[done])
    b.tasks("b", second, layer=0, bytes=UP, waits=[done] if chained else [])
    return b.build()


def test_several_ops_beside_attention_are_even_together():
    """One SM is four tasks behind: the others get four of the first op, four of the next, and the last three go round."""
    g = beside(4, 7, chained=False)
    s = make_schedule(g, 3, "balanced", attention_bytes=4 * UP, fresh_bytes=0)
    busy = counts(g, s, "attention").astype(bool)
    assert counts(g, s, "a")[busy].tolist() == [0]
    assert counts(g, s, "b")[busy].tolist() == [1]
    assert (counts(g, s, "a") + counts(g, s, "b"))[~busy].tolist() == [5, 5]


def test_merges_stay_where_a_move_would_turn_an_order_around():
    """SM 0 has attention and then only b, SM 1 all of a: half of each list first would put some b before some a."""
    g = beside(4, 4, chained=True)
    order, sm = deal(g, 2, 4 * UP, 0)
    assert_order(g, order)
    assert np.bincount(sm[np.argsort(order)][of(g, "a")], minlength=2).tolist() in ([0, 4], [4, 0])


def test_tasks_without_a_layer_are_of_one():
    g = step(splits=4, heads=2, ups=11)
    a, b = (make_schedule(x, 3, "balanced") for x in (g, replace(g, layer=np.full(len(g), -1, np.int16))))
    assert a.order.tolist() == b.order.tolist()
    assert a.order_ptr.tolist() == b.order_ptr.tolist()


def test_what_reads_nothing_goes_round():
    b = GraphBuilder("norms", ["norm"])
    for layer in range(5):
        b.task("norm", layer=layer)
    s = make_schedule(b.build(), 3, "balanced")
    assert [s.tasks_of(sm).tolist() for sm in range(3)] == [[0, 3], [1, 4], [2]]


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
    for seed in range(60):
        g = random_graph(seed, layers=5)
        for ops in (("attention", "a", "b"), ("a", "attention", "b"), ("attention", "attention", "a")):
            named = replace(g, ops=ops, meta={"splits": 4 if seed % 2 else 1})
            s = make_schedule(named, 1 + seed % 6, "balanced")  # refuses a deadlock
            assert sorted(s.order.tolist()) == list(range(len(g)))
            order, sm = deal(named, 4, 1000, 1000)
            assert follows(owned(order, sm, 4, "balanced"), order)
            assert_order(g, order)


def test_bad_options():
    with pytest.raises(MkvizError, match="attention_bytes is -1; 0 bytes or more"):
        make_schedule(step(), 3, "balanced", attention_bytes=-1)
    with pytest.raises(MkvizError, match="fresh_bytes is nan"):
        make_schedule(step(), 3, "balanced", fresh_bytes=float("nan"))
