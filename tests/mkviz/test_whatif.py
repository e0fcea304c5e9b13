"""What if: every kind of change on graphs worked by hand, replays of the simulator's own output, and what is refused."""

import numpy as np
import pytest
from random_graphs import random_graph
from step_makers import SMALL
from test_simulated import PLAIN, chain
from test_simulator import JOIN_LISTS, TOY, join

from mkviz.errors import MkvizError
from mkviz.graph import GraphBuilder
from mkviz.policies import POLICIES, make_schedule
from mkviz.protocols import StepInfo
from mkviz.schedule import Schedule
from mkviz.simulator import simulate
from mkviz.store import LiveStore
from mkviz.whatif import whatif


def source(graph, schedule, machine, kind="simulated", **how):
    """A source of one simulated step, number 7."""
    result = simulate(graph, schedule, machine, **how)
    store = LiveStore(f"{kind} ({machine.name})", kind)
    store.graph(0, graph, schedule)
    store.step(StepInfo(7, 0, 1000, 1000 + result.makespan), moved(result.events, 7, 1000))
    return store


def moved(events, step, by):
    events = events.copy()
    events["step"] = step
    for name in ("claim", "ready", "begin", "end", "publish"):
        events[name] += by
    return events


def spans(of, machine, **change):
    """(ns before, ns after) of the one step."""
    (p,) = whatif(of, machine=machine, **change).predictions
    assert (p.step, p.fitted.error, p.before_ns) == (7, 0.0, p.fitted.step.makespan)
    return p.before_ns, p.after.makespan


def parts(*work, lists=((0, 2), (1, 3)), last=0):
    """Tasks ``part`` of that many ns each, then ``sum`` of 50 which waits for them all, on SM ``last``."""
    b = GraphBuilder("parts", ["part", "sum"])
    done = b.counter("done")
    for tile, ns in enumerate(work):
        b.task("part", layer=0, tile=tile, flops=ns, raises=[done])
    b.task("sum", layer=0, flops=50, waits=[done])
    lists = [list(some) for some in lists]
    lists[last].append(len(work))
    return b.build(), Schedule.from_lists(lists, policy="round_robin")


# From the end of the last part: published 5 ns later, seen 7 after that; sum takes 50 and is published 5 later.
AFTER = 5 + 7 + 50 + 5


def test_an_op_is_faster():
    of = source(*chain(), PLAIN)
    assert spans(of, PLAIN, faster={"up": 2}) == (100 + AFTER, 50 + AFTER)
    assert spans(of, PLAIN, faster={"up": 0.5, "down": 5}) == (100 + AFTER, 200 + 5 + 7 + 10 + 5)


def test_a_kernel_per_op():
    # up is published at 105; the next kernel starts 100 later, and down takes 50
    assert spans(source(*chain(), PLAIN), PLAIN, kernel_per_op=True) == (167, 105 + 100 + 50 + 5)


def test_without_prefetch_and_with_other_bandwidth():
    of = source(join(), JOIN_LISTS, TOY)
    assert spans(of, TOY, no_prefetch=True) == (130, 150)  # as worked out for the simulator
    # Half of it, 1 byte/ns each: the first chunks land at 60.  Task 1: 60 to 70.  Chunk 1 of task 0 comes alone, at 2 bytes/ns,
    # by 90; task 0: 60 to 90 and 90 to 120, published at 125, seen at 135; task 2, there since 120: 135 to 155, its store 160.
    assert spans(of, TOY, bandwidth=0.5) == (130, 160)


def test_other_sms_and_another_policy():
    of = source(*parts(100, 100, 100, 100), PLAIN)
    assert spans(of, PLAIN, sms=4) == (200 + AFTER, 100 + AFTER)
    assert spans(of, PLAIN, sms=1) == (200 + AFTER, 400 + AFTER)
    of = source(*parts(100, 10, 100, 10), PLAIN)
    assert spans(of, PLAIN, policy="list") == (200 + AFTER, 110 + AFTER)


def test_the_longest_task_in_two():
    of = source(*parts(300, 100, lists=((0,), (1,))), PLAIN)
    assert spans(of, PLAIN, split="longest") == (300 + AFTER, 100 + 150 + AFTER)  # its second half behind the other part
    # All of them: the half of 150 joins the 50 of SM 1, the half of 50 the 150 of SM 0.
    assert spans(of, PLAIN, split="part") == (300 + AFTER, 200 + AFTER)
    odd = source(*parts(301, 100, lists=((0,), (1,))), PLAIN)
    assert spans(odd, PLAIN, split="longest") == (301 + AFTER, 100 + 150 + AFTER)  # 151 and 150


def beside():
    """attention 100 → o_proj 50 on SM 0, experts 80 and 20 beside it on SM 1, sum of both on SM 0."""
    b = GraphBuilder("beside", ["attention", "o_proj", "expert", "sum"])
    a, o, e = b.counter("a"), b.counter("o"), b.counter("e")
    b.task("attention", layer=3, flops=100, raises=[a])
    b.task("expert", layer=3, tile=0, flops=80, raises=[e])
    b.task("expert", layer=3, tile=1, flops=20, raises=[e])
    b.task("o_proj", layer=3, flops=50, waits=[a], raises=[o])
    b.task("sum", layer=3, flops=10, waits=[o, e])
    return b.build(), Schedule.from_lists([[0, 3, 4], [1, 2]])


def test_ops_in_sequence():
    # attention 0 to 100, seen at 112, o_proj to 162, seen at 174, sum to 184, stored at 189; the experts were done at 100.
    # In sequence they begin at 174 and end at 274, are seen at 286, sum to 296.
    assert spans(source(*beside(), PLAIN), PLAIN, in_sequence="o_proj") == (189, 301)


def test_ops_in_sequence_though_one_sm_had_them_in_the_other_order():
    graph, _ = beside()
    of = source(graph, Schedule.from_lists([[0, 1, 2, 3, 4]]), PLAIN)
    # before: attention to 100, experts to 200, o_proj to 250, seen by sum at 262, to 272, 277
    # after: attention to 100, seen at 112; o_proj to 162, seen at 174; experts to 274, seen at 286; sum to 296, 301
    assert spans(of, PLAIN, in_sequence="o_proj") == (277, 301)


def test_changes_together():
    assert spans(source(*parts(100, 100, 100, 100), PLAIN), PLAIN, sms=4, faster={"part": 4, "sum": 2}) == (
        200 + AFTER, 25 + 5 + 7 + 25 + 5,
    )  # fmt: skip


def test_what_changed_is_told_by_cause_and_adds_up():
    found = whatif(source(*parts(100, 100, 100, 100), PLAIN), 7, PLAIN, sms=4)
    frame = found.frame().set_index("cause")
    assert frame.loc["compute", ["before", "after", "change"]].tolist() == [250, 150, -100]
    assert frame.loc["hop", ["before", "after"]].tolist() == [7, 7]
    assert frame.loc["publish", ["before", "after"]].tolist() == [10, 10]
    assert frame[["before", "after"]].sum().tolist() == [267, 167]
    kinds = found.frame("sm_time").set_index("kind")
    assert kinds.loc["compute", ["before", "after"]].tolist() == [450, 450]
    assert kinds[["before", "after"]].sum().tolist() == [2 * 267, 4 * 167]
    with pytest.raises(MkvizError, match="'waterfall'; blame or sm_time"):
        found.frame("waterfall")


def test_the_text_says_what_was_replayed_and_how_well():
    text = whatif(source(*chain(), PLAIN), 7, PLAIN, faster={"up": 2}).to_text()
    assert text.splitlines()[:3] == [
        "simulated (plain) · what if: up 2 times faster",
        "step 7: recorded 0.2 µs, replayed unchanged 0.2 µs, error +0.00%",
        "changed  0.1 µs, -29.9%",
    ]


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_the_simulators_own_output_replays_without_error(policy):
    for seed in range(40):
        graph = random_graph(seed, layers=4, width=6)
        sms = 1 + seed % 5
        schedule = make_schedule(graph, sms, policy)
        result = simulate(graph, schedule, SMALL)
        of = source(graph, schedule, SMALL)
        if len(graph.wait_counter):
            (p,) = whatif(of, machine=SMALL, faster={graph.ops[graph.op[0]]: 1.5}).predictions
            assert p.fitted.error == 0 and p.before_ns == result.makespan, seed
            ours = p.fitted.case.replay.events
            assert all(np.array_equal(ours[name], result.events[name]) for name in ours.dtype.names), seed


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({}, "nothing is to change"),
        ({"slower": 2}, "unknown change 'slower'; any of faster, split"),
        ({"faster": {"up": 0}}, "up times 0"),
        ({"bandwidth": float("nan")}, "bandwidth times nan"),
        ({"faster": {"side": 2}}, "op 'side' is not in graph chain; one of up, down"),
        ({"split": "side"}, "op 'side'"),
        ({"in_sequence": "up"}, "nothing runs beside up"),
        ({"sms": 0, "policy": "list"}, "0 SMs"),
        ({"policy": "best"}, "unknown policy 'best'"),
        ({"sms": 3}, "policy 'lists', which deals nothing out"),
        ({"rows": 8}, "no graph for 8 rows"),
    ],
)
def test_changes_that_cannot_be_made_are_refused_by_name(change, what):
    with pytest.raises(MkvizError, match=what):
        whatif(source(*chain(), PLAIN), machine=PLAIN, **change)


def test_a_task_of_which_only_some_arrivals_count_is_not_split():
    b = GraphBuilder("some", ["part", "sum"])
    done = b.counter("done")
    for _ in range(2):
        b.task("part", flops=100, raises=[done])
    b.task("sum", flops=50, waits=[(done, 1)])
    of = source(b.build(), Schedule.from_lists([[0], [1, 2]]), PLAIN)
    with pytest.raises(MkvizError, match="sum waits for 1 of 2 arrivals at counter done"):
        whatif(of, machine=PLAIN, split="part")
