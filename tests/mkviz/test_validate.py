"""The validator against injected faults, and against a brute-force executor on random graphs and schedules."""

from dataclasses import replace

import numpy as np
import pytest
from random_graphs import random_graph, random_schedule

from mkviz.errors import MkvizError
from mkviz.graph import GraphBuilder
from mkviz.policies import POLICIES, make_schedule
from mkviz.schedule import Schedule
from mkviz.validate import check, problems


def execute(graph, schedule, seed=0):
    """Run a schedule step by step, SMs in random order; True if every task ran."""
    rng = np.random.default_rng(seed)
    value = [0] * len(graph.counters)
    todo = [schedule.tasks_of(s).tolist() for s in range(schedule.sms)]
    queue, held, ran = schedule.queue.tolist(), [None] * schedule.sms, 0
    moved = True
    while moved:
        moved = False
        for s in rng.permutation(schedule.sms).tolist():
            if held[s] is None and (todo[s] or queue):
                held[s] = todo[s].pop(0) if todo[s] else queue.pop(0)
            if held[s] is not None and all(value[c] >= need for c, need in graph.waits(held[s])):
                for c in graph.raises(held[s]):
                    value[c] += 1
                held[s], moved, ran = None, True, ran + 1
    return ran == len(graph)


def diamond():
    """embed → two halves → join, one counter per edge set."""
    b = GraphBuilder("diamond", ["embed", "half", "join"])
    x, y = b.counter("x"), b.counter("y")
    b.task("embed", raises=[x])
    b.task("half", tile=0, waits=[x], raises=[y])
    b.task("half", tile=1, waits=[x], raises=[y])
    b.task("join", waits=[y])
    return b.build()


def test_sound_graph_and_schedule_have_no_problems():
    g = diamond()
    assert problems(g) == []
    assert problems(g, Schedule.from_lists([[0, 1], [2, 3]])) == []
    assert problems(g, Schedule.from_lists([[0], []], [1, 2, 3])) == []
    check(g, Schedule.from_lists([[], []], [0, 1, 2, 3]))


def refused(graph, schedule, *names):
    """Every name appears in one and the same problem, and check() raises as well."""
    found = problems(graph, schedule)
    assert any(all(name in line for name in names) for line in found), found
    with pytest.raises(MkvizError):
        check(graph, schedule)


def test_producer_removed():
    g = diamond()
    gone = replace(g, raise_ptr=np.array([0, 1, 2, 2, 2]), raise_counter=g.raise_counter[:2])  # half 1 no longer raises y
    refused(gone, None, "join", "2 arrivals", "counter y", "has 1")
    nobody = replace(g, raise_ptr=np.array([0, 0, 1, 2, 2]), raise_counter=g.raise_counter[1:])
    refused(nobody, None, "half · tile 0", "counter x", "nobody raises")


def test_need_zero():
    g = diamond()
    refused(replace(g, wait_need=np.array([1, 0, 2], np.uint32)), None, "half · tile 1", "0 arrivals", "counter x")


def test_cycle_is_told_task_by_task():
    b = GraphBuilder("ring", ["a", "b", "c", "after"])
    x, y, z, w = (b.counter(n) for n in "xyzw")
    b.task("after", waits=[w])  # stuck, but not part of the cycle
    b.task("a", waits=[z], raises=[x])
    b.task("b", waits=[x], raises=[y, w])
    b.task("c", waits=[y], raises=[z])
    (line,) = problems(b.build())
    told = ["b (waits for x)", "a (waits for z)", "c (waits for y)", "b"]
    assert " → ".join(told) in line
    assert "after" not in line


def test_a_task_that_waits_for_itself_is_a_cycle():
    b = GraphBuilder("self", ["a"])
    x = b.counter("x")
    b.task("a", waits=[x], raises=[x])
    assert "a (waits for x) → a" in problems(b.build())[0]


def test_ordered_chain_on_one_counter_is_no_cycle():
    b = GraphBuilder("chain", ["part"])
    x = b.counter("x")
    for i in range(4):
        b.task("part", tile=i, waits=[(x, i)] if i else [], raises=[x])
    g = b.build()
    assert problems(g, Schedule.from_lists([[0, 2], [1, 3]])) == []
    refused(g, Schedule.from_lists([[2, 0], [1, 3]]), "SM 0", "part · tile 2", "part · tile 0")


def test_task_missing_or_twice():
    g = diamond()
    refused(g, Schedule.from_lists([[0, 1], [3]]), "half · tile 1 (task 2)", "not scheduled")
    refused(g, Schedule.from_lists([[0, 1, 2], [2, 3]]), "half · tile 1 (task 2)", "twice", "SM 0", "SM 1")
    refused(g, Schedule.from_lists([[0, 1, 2], []], [3, 2]), "half · tile 1 (task 2)", "twice", "SM 0", "ticket 1")


def test_many_culprits_are_counted():
    b = GraphBuilder("many", ["a"])
    for i in range(20):
        b.task("a", tile=i)
    lines = problems(b.build(), Schedule.from_lists([[]]))
    assert len(lines) == 6
    assert "15 more tasks are not scheduled" in lines[-1]


def test_ring_order_swapped():
    g = diamond()
    s = Schedule.from_lists([[0], [1, 2, 3]])
    swapped = replace(s, load_order=np.array([0, 2, 1, 3], np.int32))
    refused(g, swapped, "SM 1 loads half · tile 1 (task 2)", "runs half · tile 0 (task 1)")


def test_lists_that_deadlock():
    g = diamond()
    refused(g, Schedule.from_lists([[3, 1], [0, 2]]), "deadlock", "SM 0 holds join", "half · tile 0", "comes later on SM 0")
    b = GraphBuilder("cross", ["a", "b"])
    x, y = b.counter("x"), b.counter("y")
    b.task("a", tile=0, raises=[x])
    b.task("a", tile=1, raises=[y])
    b.task("b", tile=0, waits=[x])
    b.task("b", tile=1, waits=[y])
    crossed = Schedule.from_lists([[2, 1], [3, 0]])  # each SM waits for what the other has behind its own wait
    refused(b.build(), crossed, "SM 0 holds b · tile 0", "a · tile 0", "SM 1 holds b · tile 1", "a · tile 1")


def test_queue_order():
    g = diamond()
    refused(g, Schedule.from_lists([[]], [3, 0, 1, 2]), "deadlock", "SM 0 holds join", "half · tile 0, queued")
    # the join blocks one of two SMs, the other can still run everything before it
    assert problems(g, Schedule.from_lists([[], []], [3, 0, 1, 2])) == []
    # but not where that other SM owns a task that waits for the queue
    refused(g, Schedule.from_lists([[3], []], [1, 0, 2]), "deadlock", "embed, queued on SM 1")


def test_malformed_arrays():
    g, s = diamond(), Schedule.from_lists([[0, 1], [2, 3]])
    refused(replace(g, wait_ptr=np.array([0, 0, 2, 1, 3])), None, "wait_ptr falls from 2 to 1", "half · tile 1")
    refused(replace(g, wait_ptr=np.array([0, 0, 1, 3])), None, "wait_ptr has 4 entries", "5 entries")
    refused(replace(g, raise_ptr=np.array([0, 1, 2, 3, 9])), None, "raise_ptr", "0 to 9")
    refused(replace(g, wait_counter=np.array([0, 2, 1])), None, "wait_counter[1]", "half · tile 1", "counter 2")
    refused(replace(g, raise_counter=np.array([0, 1, -1])), None, "raise_counter[2]", "half · tile 1", "counter -1")
    refused(replace(g, wait_need=np.array([1])), None, "1 needs for 3 waits")
    refused(replace(g, bytes=np.array([0, 0, -5, 0])), None, "half · tile 1", "-5 bytes")
    refused(replace(g, flops=g.flops[:3]), None, "flops has 3 entries")
    refused(replace(g, op=np.array([0, 1, 7, 2], np.uint8)), None, "task 2", "op 7")
    refused(g, replace(s, order=np.array([0, 1, 2, 4])), "order[3]", "SM 1", "task 4")
    refused(g, replace(s, load_order=np.array([0, 1, -2, 3])), "load_order[2]", "SM 1", "task -2")
    refused(g, replace(s, load_order=s.order[:2]), "load_order has 2 tasks")
    refused(g, replace(s, queue=np.array([77])), "queue[0]", "ticket 0", "task 77")
    refused(g, replace(s, order_ptr=np.array([0, 3, 2])), "order_ptr", "0 to 2")
    refused(g, replace(s, sms=3, order_ptr=np.array([0, 3, 2, 4])), "order_ptr falls from 3 to 2", "SM 1")
    refused(g, replace(s, sms=0), "0 SMs")


@pytest.mark.parametrize("block", range(10))
def test_agrees_with_brute_force_execution(block):
    """Random lists and queues, from sound to hopeless: refused exactly when an execution stops, whatever its timing."""
    ran = 0
    for seed in range(block * 50, block * 50 + 50):
        g = random_graph(seed, shuffle=False)
        s = random_schedule(g, seed, 1 + seed % 4, disorder=(seed % 5) * 0.03, queued=(seed % 3) * 0.4)
        expected = execute(g, s, seed)
        assert [execute(g, s, seed + k) for k in (1, 2)] == [expected, expected]
        assert (problems(g, s) == []) == expected, seed
        ran += expected
    assert 5 < ran < 45  # the seeds hold both kinds


def test_deadlock_messages_name_only_stuck_tasks():
    """What a deadlock message calls held is held in the brute-force execution too (its SM and task), on random schedules."""
    seen = 0
    for seed in range(200):
        g = random_graph(seed, shuffle=False)
        s = random_schedule(g, seed, 1 + seed % 4, disorder=0.2, queued=0.0)
        for line in problems(g, s):
            seen += 1
            for part in line.split(": ", 1)[1].split(" → ")[:-1]:
                if not part.startswith("SM"):
                    continue
                sm = int(part.split()[1])
                label = part.split(" holds ")[1].split(", which")[0]
                assert any(g.label(t) == label for t in s.tasks_of(sm).tolist()), line
    assert seen > 50


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_policies_on_random_graphs_pass_and_execute(policy):
    for seed in range(150):
        g = random_graph(seed)
        s = make_schedule(g, 1 + seed % 7, policy=policy)
        assert problems(g, s) == []
        assert execute(g, s, seed)
