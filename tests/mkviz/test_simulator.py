"""The simulator: worked examples, exact agreement with a brute-force simulator, and what no machine can do."""

from dataclasses import replace

import numpy as np
import pytest
from brute_simulator import brute_force
from random_graphs import random_graph, random_schedule

from mkviz.costs import Costs
from mkviz.errors import MkvizError
from mkviz.graph import GraphBuilder
from mkviz.machine import H200, Machine
from mkviz.policies import POLICIES, make_schedule
from mkviz.record import EVENT, FLAG_BYTES_LAST, FLAG_COVERED, NO_WAIT
from mkviz.schedule import Schedule
from mkviz.simulator import simulate
from mkviz.validate import problems

# 4 bytes/ns for all, 3 at most for one SM; math does 1 flop/ns and reads for nothing; a ring of two chunks of 60 bytes.
TOY = Machine(
    name="toy",
    sms=2,
    bandwidth=4e9,
    sm_bandwidth=3e9,
    sm_flops=1e9,
    sm_math_bandwidth=1e18,
    ring_bytes=120,
    chunk_bytes=60,
    latency_ns=0,
    publish_ns=5,
    hop_ns=10,
    feed_ns=0,
    task_overhead_ns=0,
    claim_ns=4,
    launch_ns=100,
)


def join():
    """Tasks 0 and 1 feed task 2: 120 bytes and 60 ns of math, 60 and 10, 60 and 20."""
    b = GraphBuilder("join", ["part", "sum"])
    x = b.counter("x")
    b.task("part", tile=0, bytes=120, flops=60, raises=[x])
    b.task("part", tile=1, bytes=60, flops=10, raises=[x])
    b.task("sum", bytes=60, flops=20, waits=[x])
    return b.build()


JOIN_LISTS = Schedule.from_lists([[0, 2], [1]])


def by_task(result):
    e = result.events[np.argsort(result.events["task"])]
    return {name: e[name].tolist() for name in e.dtype.names}


def test_math_as_measured_instead_of_flops():
    # As in the worked example, but task 1 takes 75 ns: 30 to 105, publishes at 110, seen at 120; task 2 then takes 5.
    costs = replace(Costs.of_machine(join(), TOY), math=np.array([60, 75, 5]))
    r = by_task(simulate(join(), JOIN_LISTS, TOY, costs=costs))
    assert (r["begin"], r["end"]) == ([30, 30, 120], [90, 105, 125])
    with pytest.raises(MkvizError, match=r"math of task 2 is 0; 1 ns or more"):
        replace(costs, math=np.array([60, 75, 0]))
    with pytest.raises(MkvizError, match=r"math has 2 entries; one for each of the 3 tasks"):
        replace(costs, math=np.array([60, 75]))
    with pytest.raises(MkvizError, match=r"costs of 2 tasks; of each of the 3"):
        simulate(join(), JOIN_LISTS, TOY, costs=Costs(*np.ones((5, 2), np.int64)))
    with pytest.raises(MkvizError, match=r"hop of task 1 is -1; 0 ns or more"):
        replace(costs, hop=np.array([0, -1, 0]))


def test_costs_task_by_task():
    # Task 0 as in the worked example: 30 to 90, but publishes at 90 + 1; task 1: 30 to 40, publishes at 40 + 70 = 110.  The
    # counter's second arrival is at 110, whoever ended last; task 2 sees it 2 later, is fed 3 after that and begins 4 later.
    costs = Costs(np.array([60, 10, 20]), np.array([1, 70, 5]), np.array([9, 9, 2]), np.array([9, 9, 3]), np.array([0, 0, 4]))
    r = by_task(simulate(join(), JOIN_LISTS, TOY, costs=costs))
    assert (r["end"][:2], r["publish"][:2]) == ([90, 40], [91, 110])
    assert (r["ready"][2], r["begin"][2], r["end"][2], r["publish"][2]) == (112, 119, 139, 144)


def test_a_wait_for_some_arrivals_is_met_by_the_publishes_not_the_ends():
    # Task 2 waits for one arrival of two.  Task 1 ends first but publishes last: task 0's publish at 91 meets it.
    b = GraphBuilder("either", ["part", "sum"])
    x = b.counter("x")
    b.task("part", tile=0, bytes=120, flops=60, raises=[x])
    b.task("part", tile=1, bytes=60, flops=10, raises=[x])
    b.task("sum", bytes=60, flops=20, waits=[(x, 1)])
    costs = Costs(np.array([60, 10, 20]), np.array([1, 70, 5]), *np.zeros((3, 3), np.int64))
    assert by_task(simulate(b.build(), JOIN_LISTS, TOY, costs=costs))["ready"][2] == 91


def test_worked_example():
    # t=0: both SMs load, 2 bytes/ns each: the first chunks land at 30.  From then on SM 0 loads alone, 3 bytes/ns.
    # Task 1: 30 to 40, publishes at 45.  Task 0: chunk 0 30 to 60; chunk 1 landed at 50, so 60 to 90; publishes at 95.
    # At 50 the loader of SM 0 takes up task 2; its ring is full until 60, so those 60 bytes land at 80.
    # x has both arrivals at 95, seen at 105: task 2 runs 105 to 125.  Nobody waits for it, but its last store takes until 130.
    r = simulate(join(), JOIN_LISTS, TOY)
    e = by_task(r)
    assert r.events.dtype == EVENT
    assert e["sm"] == [0, 1, 0]
    assert e["claim"] == [0, 0, 50]
    assert e["ready"] == [0, 0, 105]
    assert e["begin"] == [30, 30, 105]
    assert e["end"] == [90, 40, 125]
    assert e["publish"] == [95, 45, 130]
    assert e["last_wait"] == [NO_WAIT, NO_WAIT, 0]
    assert e["fill"] == [8, 8, 8]  # one landed chunk of two
    assert e["flags"] == [FLAG_BYTES_LAST, FLAG_BYTES_LAST, FLAG_COVERED]
    assert (r.makespan, r.bytes, r.kernels) == (130, 240, 1)
    assert r.gbps == 240 / 130
    assert r.label == "simulated (toy)"
    assert r.events["task"].tolist() == [0, 2, 1]  # SM by SM


def test_math_reads_its_bytes_no_faster_than_shared_memory_gives_them():
    # As above, but math reads 1 byte/ns: task 0 takes its 120 ns instead of 60, 30 to 150, seen at 165; task 1, whose 60 bytes
    # take longer than its 10 flops, 30 to 90.  Task 2 reads its 60 bytes 165 to 225.
    r = by_task(simulate(join(), JOIN_LISTS, replace(TOY, sm_math_bandwidth=1e9)))
    assert (r["begin"], r["end"]) == ([30, 30, 165], [150, 90, 225])
    # At 4 bytes/ns task 1 alone is held up, 15 ns instead of 10, and nobody waits for that.
    r = by_task(simulate(join(), JOIN_LISTS, replace(TOY, sm_math_bandwidth=4e9)))
    assert (r["begin"], r["end"]) == ([30, 30, 105], [90, 45, 125])


def test_worked_example_without_prefetch():
    # Until 90 as before.  Only then task 2 is taken up, its wait is met at 105, its 60 bytes land 20 later.
    r = simulate(join(), JOIN_LISTS, TOY, prefetch=False)
    e = by_task(r)
    assert (e["claim"][2], e["ready"][2], e["begin"][2], e["end"][2]) == (90, 105, 125, 145)
    assert e["flags"][2] == FLAG_BYTES_LAST | FLAG_COVERED
    assert r.makespan == 150


def test_worked_example_with_a_late_address():
    # As with prefetch, but the bytes of task 2 are asked for at 105.
    for g, late in ((join(), np.array([False, False, True])), (replace(join(), meta={"late_ops": ["sum"]}), None)):
        e = by_task(simulate(g, JOIN_LISTS, TOY, late=late))
        assert (e["claim"][2], e["ready"][2], e["begin"][2], e["end"][2]) == (50, 105, 125, 145)


def test_worked_example_with_a_kernel_per_op():
    # The first kernel has published at 95; the second starts 100 later and loads its 60 bytes in 20.
    r = simulate(join(), JOIN_LISTS, TOY, barrier_per_op=True)
    e = by_task(r)
    assert (e["claim"][2], e["ready"][2], e["begin"][2], e["end"][2]) == (195, 195, 215, 235)
    assert (r.makespan, r.kernels) == (240, 2)


def test_worked_example_with_a_queue():
    # Tickets cost 4: both SMs load from 4 on, 2 bytes/ns each, to 34.  Task 1 34 to 44, publishes at 49; SM 1 takes the last
    # ticket at 44 and loads from 48 on.  Chunk 1 of task 0 has got 3 * 14 bytes by then, the other 18 take 9 ns, to 57; the
    # chunk of task 2 has 18 by then, the other 42 take 14, to 71.  Task 0 34 to 94, seen at 109; task 2 109 to 129.
    r = simulate(join(), Schedule.from_lists([[], []], [0, 1, 2]), TOY)
    e = by_task(r)
    assert e["sm"] == [0, 1, 1]
    assert e["claim"] == [0, 0, 44]
    assert e["begin"] == [34, 34, 109]
    assert e["end"] == [94, 44, 129]


def test_feeding_activations_overlaps_with_math_and_bytes():
    # x is seen at 105 as before; task 2 begins once its activations are prepared, at 145.  Task 0, without waits, is not fed.
    r = simulate(join(), JOIN_LISTS, replace(TOY, feed_ns=40))
    e = by_task(r)
    assert (e["ready"][2], e["begin"], e["end"][2]) == (105, [30, 30, 145], 165)
    assert e["flags"][2] == FLAG_COVERED
    # Without prefetch its bytes are asked for only then, and land at 165.
    assert by_task(simulate(join(), JOIN_LISTS, replace(TOY, feed_ns=40), prefetch=False))["begin"][2] == 165


def test_latency_overhead_and_other_sm_counts():
    # One SM: task 1 (bytes at 20, lands at 27, begins 2 later), then task 0, then task 2.
    # Chunks sent: 0-20 (task 1), 20-40 (0), then the ring is full until task 1 ends.  Task 1: 29 to 39.  Chunk 1 of task 0
    # is sent 40 to 60.  Task 0: free at 39, chunk 0 landed at 47, begins 49; chunk 0 until 79, chunk 1 until 109.
    # Task 2: sent 79 to 99, landed 106.  x seen at 109 + 5 + 10 = 124; begins 126, ends 146.
    m = replace(TOY, latency_ns=7, task_overhead_ns=2)
    e = by_task(simulate(join(), Schedule.from_lists([[1, 0, 2]]), m))
    assert e["begin"] == [49, 29, 126]
    assert e["end"] == [109, 39, 146]
    assert e["claim"] == [20, 0, 60]


def test_a_task_stalls_inside_when_its_bytes_are_slower_than_its_math():
    b = GraphBuilder("stream", ["head"])
    b.task("head", bytes=600, flops=10)
    e = by_task(simulate(b.build(), Schedule.from_lists([[0]]), TOY))
    # ten chunks of 20 ns each, 1 ns of math each: begins with the first, ends 1 after the last landed
    assert (e["begin"], e["end"]) == ([20], [201])


MODES = {"megakernel": {}, "no prefetch": {"prefetch": False}, "kernel per op": {"barrier_per_op": True}}


def random_machine(rng):
    chunk = int(rng.integers(20, 100))
    return Machine(
        name="random",
        sms=4,
        bandwidth=float(rng.integers(1_000_000_000, 12_000_000_000)),
        sm_bandwidth=float(rng.integers(1_000_000_000, 8_000_000_000)),
        sm_flops=1e9,
        sm_math_bandwidth=float(rng.integers(1_000_000_000, 20_000_000_000)),
        ring_bytes=chunk * int(rng.integers(1, 5)) + 5,
        chunk_bytes=chunk,
        **{f"{x}_ns": int(rng.integers(0, 2) * rng.integers(0, 30))
           for x in ("latency", "publish", "hop", "feed", "task_overhead", "claim", "launch")},
    )  # fmt: skip


def kernels_by_hand(graph):
    """(op, layer) groups, each once all producers of its waits lie in groups before it; of those, the one of the first task."""
    group = [(int(layer), int(op)) for layer, op in zip(graph.layer, graph.op, strict=True)]
    producers = {c: {group[t] for t in range(len(graph)) if c in graph.raises(t)} for c in range(len(graph.counters))}
    needs = {g: set() for g in group}
    for t, g in enumerate(group):
        for c, _ in graph.waits(t):
            needs[g] |= producers[c] - {g}
    order = []
    while len(order) < len(needs):
        order.append(next(g for g in group if g not in order and needs[g] <= set(order)))
    return [[t for t in range(len(graph)) if group[t] == g] for g in order]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("block", range(5))
def test_agrees_with_brute_force_to_the_ns(mode, block):
    compared = 0
    for seed in range(block * 30, block * 30 + 30):
        rng = np.random.default_rng(seed)
        g = random_graph(seed, layers=3, width=4, max_bytes=500, max_flops=120)
        sms, m = 1 + seed % 4, random_machine(rng)
        late = rng.random(len(g)) < 0.2
        s = random_schedule(g, seed, sms, disorder=0.01, queued=(0, 0.3, 1)[seed % 3])
        if problems(g, s):
            s = make_schedule(g, sms, policy=sorted(POLICIES)[seed % len(POLICIES)])
        got = simulate(g, s, m, late=late, **MODES[mode])
        if mode == "no prefetch":
            late = np.ones(len(g), bool)
        record, end = {}, 0
        if mode == "kernel per op":
            arrivals = {}
            for k, kernel in enumerate(kernels_by_hand(g)):
                lists = [[t for t in s.tasks_of(i).tolist() if t in kernel] for i in range(sms)]
                queue = [t for t in s.queue.tolist() if t in kernel]
                start = end + m.launch_ns if k else 0
                _, end = brute_force(g, lists, queue, m, late, True, start, arrivals, record)
        else:
            lists = [s.tasks_of(i).tolist() for i in range(sms)]
            record, end = brute_force(g, lists, s.queue.tolist(), m, late, mode != "no prefetch")
        assert got.makespan == end, seed
        e = by_task(got)
        for name in ("sm", "claim", "ready", "begin", "end", "last_wait", "fill"):
            assert e[name] == [record[t][name] for t in range(len(g))], (seed, name)
        assert [bool(f & FLAG_BYTES_LAST) for f in e["flags"]] == [record[t]["bytes_last"] for t in range(len(g))], seed
        compared += len(g)
    assert compared > 300


@pytest.mark.parametrize("policy", sorted(POLICIES))
@pytest.mark.parametrize("mode", MODES)
def test_nothing_happens_that_cannot(policy, mode):
    for seed in range(25):
        g = random_graph(seed, layers=8, width=40)
        m = replace(H200, sms=16, bandwidth=5e11, task_overhead_ns=100, publish_ns=50)
        s = make_schedule(g, 16, policy=policy)
        r = simulate(g, s, m, **MODES[mode])
        e = r.events[np.argsort(r.events["task"])]
        assert sorted(r.events["task"].tolist()) == list(range(len(g)))  # each once
        owner = s.sm_of(len(g))
        assert np.array_equal(e["sm"][owner >= 0], owner[owner >= 0])
        for a, b in (("claim", "ready"), ("ready", "begin"), ("begin", "end"), ("end", "publish")):
            assert (e[a] <= e[b]).all()
        assert (e["begin"] < e["end"]).all()
        math = np.maximum(1, np.ceil(np.maximum(g.flops * 1e9 / m.sm_flops, g.bytes * 1e9 / m.sm_math_bandwidth)))
        assert (e["end"] - e["begin"] >= math).all()
        for sm in range(16):  # math does one task at a time, in the order of the list
            lane = r.events[r.events["sm"] == sm]
            assert (lane["begin"][1:] >= lane["end"][:-1] + m.task_overhead_ns).all()
            if mode != "kernel per op" and policy != "claimed":
                assert lane["task"].tolist() == s.tasks_of(sm).tolist()
        ptr, producer = g.producers
        hop = 0 if mode == "kernel per op" else m.hop_ns  # across kernels, the launch takes the place of the hop
        for t in range(len(g)):
            for c, need in g.waits(t):
                published = np.sort(e["publish"][producer[ptr[c] : ptr[c + 1]]])[need - 1]
                assert e["ready"][t] >= published + hop
        assert r.makespan == e["publish"].max()
        assert r.bytes == g.bytes.sum()
        assert r.makespan >= r.bytes / m.bandwidth * 1e9
        for sm in range(16):
            assert r.makespan >= g.bytes[e["task"][e["sm"] == sm]].sum() / m.sm_bandwidth * 1e9
        assert r.makespan >= critical_path(g, math + m.task_overhead_ns, m.hand_over_ns if hop else m.publish_ns + m.feed_ns)
        assert e["fill"].max() <= 15


def critical_path(g, ns, edge):
    """Longest chain of math, counting only waits that need every arrival."""
    longest, arrivals = {}, g.arrivals
    ptr, producer = g.producers

    def ends(t):
        if t not in longest:
            before = [p for c, need in g.waits(t) if need == arrivals[c] for p in producer[ptr[c] : ptr[c + 1]].tolist()]
            longest[t] = ns[t] + max((ends(p) + edge for p in before), default=0)
        return longest[t]

    return max(ends(t) for t in range(len(g)))


def test_streaming_reaches_the_ceiling():
    b = GraphBuilder("stream", ["head"])
    for i in range(132 * 20):
        b.task("head", tile=i, bytes=65536, flops=65536)
    g = b.build()
    r = simulate(g, make_schedule(g, 132, policy="round_robin"))
    stream = r.bytes / H200.bandwidth * 1e9
    chunks = 20 * 4  # per SM, up to 1 ns lost by each; after the last one landed, its math: a quarter of 65536 bytes
    ending = H200.latency_ns + 65536 / 4 / (H200.sm_math_bandwidth / 1e9) + H200.publish_ns
    assert stream < r.makespan <= stream + chunks + ending + 2


def test_a_deeper_ring_never_loads_later_on_one_sm():
    g = random_graph(5, layers=6, width=20)
    s = make_schedule(g, 1)
    spans = [simulate(g, s, replace(H200, ring_bytes=n * H200.chunk_bytes)).makespan for n in (1, 2, 4, 8, 16)]
    assert spans == sorted(spans, reverse=True)
    assert spans[-1] < spans[0]


def test_empty_graph():
    r = simulate(GraphBuilder("empty", ["a"]).build(), Schedule.from_lists([[], []]), TOY)
    assert (r.makespan, r.bytes, r.gbps, len(r.events)) == (0, 0, 0.0, 0)
    r = simulate(GraphBuilder("empty", ["a"]).build(), Schedule.from_lists([[]]), TOY, barrier_per_op=True)
    assert (r.makespan, r.kernels) == (0, 0)


def test_bad_input():
    g = join()
    with pytest.raises(MkvizError, match="deadlock"):
        simulate(g, Schedule.from_lists([[2, 0], [1]]), TOY)
    with pytest.raises(MkvizError, match="schedule over 3 SMs, toy has 2"):
        simulate(g, Schedule.from_lists([[0, 1, 2], [], []]), TOY)
    with pytest.raises(MkvizError, match="late has 2 entries; one for each of the 3 tasks"):
        simulate(g, JOIN_LISTS, TOY, late=np.zeros(2, bool))
    with pytest.raises(MkvizError, match="late_ops names 'expert'; ops among part, sum"):
        simulate(replace(g, meta={"late_ops": ["expert"]}), JOIN_LISTS, TOY)
    with pytest.raises(MkvizError, match=r"toy: 1000\.0 bytes/s for 2 SMs"):
        simulate(g, JOIN_LISTS, replace(TOY, bandwidth=1e3))
    for field, value in (
        ("hop_ns", -1),
        ("hop_ns", 0.5),
        ("bandwidth", 0),
        ("sm_flops", float("nan")),
        ("sm_math_bandwidth", 0),
        ("ring_bytes", 59),
    ):
        with pytest.raises(MkvizError, match=f"machine toy: .*{value}"):
            replace(TOY, **{field: value})


def test_ops_that_need_each_other_cannot_be_kernels():
    b = GraphBuilder("zigzag", ["a", "b"])
    x, y = b.counter("x"), b.counter("y")
    b.task("a", tile=0, raises=[x])
    b.task("b", tile=0, waits=[x], raises=[y])
    b.task("a", tile=1, waits=[y])
    g = b.build()
    s = Schedule.from_lists([[0, 1, 2]])
    assert simulate(g, s, TOY).kernels == 1
    with pytest.raises(MkvizError, match="zigzag: a of layer -1, b of layer -1 wait for each other"):
        simulate(g, s, TOY, barrier_per_op=True)
