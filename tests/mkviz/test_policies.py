"""Policies: what each of them promises, on graphs small enough to work out by hand."""

import subprocess
import sys

import numpy as np
import pytest
from random_graphs import random_graph

from mkviz import policies
from mkviz.errors import MkvizError
from mkviz.graph import GraphBuilder
from mkviz.machine import Machine
from mkviz.policies import make_schedule, owned, topological_order
from mkviz.walk import list_schedule

# 1 byte/ns per SM, 1 flop/ns, no overhead: a task of n bytes lasts n ns.  A hop is 10 ns.
TOY = Machine(
    name="toy",
    sms=2,
    bandwidth=2e9,
    sm_bandwidth=1e9,
    sm_flops=1e9,
    sm_math_bandwidth=1e18,
    ring_bytes=100,
    chunk_bytes=10,
    latency_ns=0,
    publish_ns=0,
    hop_ns=10,
    feed_ns=0,
    task_overhead_ns=0,
    claim_ns=0,
    launch_ns=0,
)


def lists(schedule):
    return [schedule.tasks_of(s).tolist() for s in range(schedule.sms)]


def independent(sizes):
    b = GraphBuilder("independent", ["a"])
    for i, size in enumerate(sizes):
        b.task("a", layer=i // 4, tile=i, bytes=size)
    return b.build()


def test_round_robin_is_task_i_to_sm_i_mod_n():
    s = make_schedule(independent([1] * 7), 3, policy="round_robin")
    assert lists(s) == [[0, 3, 6], [1, 4], [2, 5]]
    assert s.queue.tolist() == []
    assert s.policy == "round_robin"


def test_claimed_queues_everything_in_graph_order():
    s = make_schedule(independent([1] * 5), 3, policy="claimed")
    assert s.queue.tolist() == [0, 1, 2, 3, 4]
    assert len(s.order) == 0
    assert s.sms == 3


def test_topological_order_keeps_graph_order_where_it_can():
    b = GraphBuilder("backwards", ["a", "b"])
    x = b.counter("x")
    b.task("b", tile=0, waits=[x])  # its producer has a later id
    b.task("a", tile=0)
    b.task("a", tile=1, raises=[x])
    b.task("a", tile=2)
    assert topological_order(b.build()).tolist() == [1, 2, 0, 3]
    for need, expected in ((1, [0, 1, 2]), (2, [0, 2, 1])):  # only the second arrival comes too late for graph order
        b = GraphBuilder("partly", ["a", "b"])
        x = b.counter("x")
        b.task("a", tile=0, raises=[x])
        b.task("b", tile=0, waits=[(x, need)])
        b.task("a", tile=1, raises=[x])
        assert topological_order(b.build()).tolist() == expected


def test_list_takes_the_longest_path_first():
    b = GraphBuilder("paths", ["a", "b"])
    x = b.counter("x")
    b.task("a", tile=0, bytes=30)
    b.task("a", tile=1, bytes=5, raises=[x])
    b.task("b", tile=0, bytes=40, waits=[x])
    b.task("a", tile=2, bytes=25)
    s = make_schedule(b.build(), 2, policy="list", machine=TOY)
    # Longest paths: task 1 has 5 + hop 10 + 40 = 55 before it ends, task 0 30, task 3 25, task 2 40.
    # t=0: SM 0 takes task 1 (until 5), SM 1 takes task 0 (until 30).  t=5: task 2 is seen only at 15, so SM 0 takes task 3
    # (until 30).  t=30: SM 0 takes task 2.
    assert lists(s) == [[1, 3, 2], [0]]


def test_list_waits_for_the_hop_when_nothing_else_is_ready():
    b = GraphBuilder("hop", ["a", "b"])
    x = b.counter("x")
    b.task("a", tile=0, bytes=5, raises=[x])
    b.task("a", tile=1, bytes=12)
    b.task("b", tile=0, bytes=40, waits=[x])
    # SM 0 runs task 1 (12 ns, longer than 5 but on a shorter path than 5 + 10 + 40), SM 1 ... task 0 goes first, to SM 0.
    # SM 0 is free at 5, sees x at 15 and takes task 2 then: idle SMs are asked in the order in which they became free.
    assert lists(make_schedule(b.build(), 2, policy="list", machine=TOY)) == [[0, 2], [1]]


def test_list_gives_nothing_to_an_sm_before_it_is_ready():
    b = GraphBuilder("late", ["a", "b"])
    x, y = b.counter("x"), b.counter("y")
    b.task("a", tile=0, bytes=10, raises=[x])
    b.task("b", tile=0, bytes=20, waits=[x], raises=[y])
    b.task("b", tile=1, bytes=25, waits=[x])
    b.task("a", tile=1, bytes=30, waits=[y])
    # SM 0 runs task 0 until 10; at 20, when x is seen, SM 1, idle since 0, takes task 1 with the longest path (until 40) and
    # SM 0 task 2 (until 45, not 35 as if it had begun at 10).  So SM 1 is free first, and takes task 3.
    assert lists(make_schedule(b.build(), 2, policy="list", machine=TOY)) == [[0, 2], [1, 3]]


def ns_by_ns(graph, cost, hop, sms):
    """List scheduling with a clock that ticks: (SM of each task, tasks as they began)."""
    path = {}

    def behind(t):
        if t not in path:
            raised = set(graph.raises(t))
            after = [u for u in range(len(graph)) if raised & {c for c, _ in graph.waits(u)}]
            path[t] = cost[t] + max((hop + behind(u) for u in after), default=0)
        return path[t]

    arrivals, sm_of, begun = [[] for _ in graph.counters], {}, []
    since = dict.fromkeys(range(sms), 0)  # of idle SMs
    ends: dict[int, list] = {}
    now = 0
    while len(begun) < len(graph):
        for s, t in sorted(ends.pop(now, [])):
            since[s] = now
            for c in graph.raises(t):
                arrivals[c].append(now + hop)
        ready = [t for t in range(len(graph)) if t not in sm_of
                 and all(sorted(arrivals[c] + [1 << 60] * n)[n - 1] <= now for c, n in graph.waits(t))]  # fmt: skip
        for t in sorted(ready, key=lambda t: (-behind(t), t)):
            if not since:
                break
            s = min(since, key=lambda s: (since[s], s))
            del since[s]
            sm_of[t] = s
            begun.append(t)
            ends.setdefault(now + cost[t], []).append((s, t))
        now += 1
    return [sm_of[t] for t in range(len(graph))], begun


def test_list_is_what_a_clock_that_ticks_makes_of_it():
    """On graphs in which whoever waits for a counter waits for all of its arrivals."""
    graphs = [random_graph(seed, layers=3, width=4) for seed in range(60)]
    whole = [g for g in graphs if (g.wait_need == g.arrivals[g.wait_counter]).all()]
    for seed, graph in enumerate(whole):
        cost = np.random.default_rng(seed).integers(3, 40, len(graph))
        sm, placed = list_schedule(graph, topological_order(graph), cost, 7, 3)
        assert (sm.tolist(), placed.tolist()) == ns_by_ns(graph, cost.tolist(), 7, 3)
    assert len(whole) == 12


def test_layered_balances_each_layer_alone():
    s = make_schedule(independent([50, 10, 10, 10, 10, 10, 10, 10]), 2, policy="layered", machine=TOY)
    # Layer 0: 50 to SM 0, the three tens to SM 1.  Layer 1 starts on the SM after the last one used, SM 0, and is even.
    assert lists(s) == [[0, 4, 6], [1, 2, 3, 5, 7]]


def test_list_beats_round_robin_on_uneven_work():
    sizes = np.random.default_rng(3).integers(1, 1000, 200).tolist()
    g = independent(sizes)
    loads = {p: max(sum(sizes[t] for t in x) for x in lists(make_schedule(g, 8, policy=p))) for p in ("round_robin", "list")}
    assert loads["list"] < loads["round_robin"]
    assert loads["list"] <= sum(sizes) / 8 + max(sizes)  # Graham's bound


@pytest.mark.parametrize("policy", sorted(policies.POLICIES))
def test_policies_do_not_depend_on_chance(policy):
    g = random_graph(17)
    a, b = (make_schedule(g, 5, policy=policy) for _ in range(2))
    for field in ("order_ptr", "order", "queue", "load_order"):
        assert np.array_equal(getattr(a, field), getattr(b, field))


@pytest.mark.parametrize("policy", sorted(policies.POLICIES))
def test_more_sms_than_tasks_and_no_tasks(policy):
    assert make_schedule(independent([1]), 9, policy=policy).sms == 9
    assert make_schedule(independent([]), 3, policy=policy).sms == 3


def test_a_new_policy_is_one_function(monkeypatch):
    monkeypatch.setattr(policies, "POLICIES", dict(policies.POLICIES))

    @policies.policy("first_sm")
    def first_sm(graph, sms, *, reverse=False):
        order = topological_order(graph)
        return owned(order[::-1] if reverse else order, np.zeros(len(order), int), sms, "first_sm")

    b = GraphBuilder("pair", ["a", "b"])
    x = b.counter("x")
    b.task("a", raises=[x])
    b.task("b", waits=[x])
    g = b.build()
    assert lists(make_schedule(g, 2, policy="first_sm")) == [[0, 1], []]
    with pytest.raises(MkvizError, match="deadlock: SM 0 holds b"):
        make_schedule(g, 2, policy="first_sm", reverse=True)


def test_bad_input():
    g = independent([1])
    with pytest.raises(MkvizError, match="unknown policy 'best'; one of round_robin, layered, balanced, list, claimed"):
        make_schedule(g, 2, policy="best")
    with pytest.raises(MkvizError, match="0 SMs; a whole number, 1 or more"):
        make_schedule(g, 0)
    with pytest.raises(MkvizError, match="unknown option 'seed'"):
        make_schedule(g, 2, policy="claimed", seed=1)
    b = GraphBuilder("loop", ["a"])
    x = b.counter("x")
    b.task("a", waits=[x], raises=[x])
    with pytest.raises(MkvizError, match="cycle"):
        make_schedule(b.build(), 2)


def test_importing_the_schedule_side_does_not_load_numba():
    code = "import sys, mkviz.policies, mkviz.validate, mkviz.simulator; sys.exit('numba' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
