"""Graphs of ablations: who waits for whom, against the order of the ops written down here."""

from contextlib import closing
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from engine.bench.ablations import ABLATIONS
from engine.builder import StepShape, build_graph
from engine.shapes import shape
from engine.tiling import Tiling
from mkviz.costs import Costs
from mkviz.costs_judge import judge
from mkviz.errors import MkvizError
from mkviz.machine import H200
from mkviz.policies import POLICIES, make_schedule
from mkviz.protocols import StepInfo
from mkviz.simulator import simulate
from mkviz.trace import TraceWriter

ABLATION = {a.name: a for a in ABLATIONS}
LAYER = {"dense": ["qkv", "attention", "merge", "dense_up", "o_proj", "dense_down"],
         "moe": ["router", "qkv", "attention", "merge", "expert_up", "o_proj", "expert_down"]}  # fmt: skip
SIZES = [(1, 32), (8, 2), (1, 1)]


def graph_of(name="north-mini-code", rows=1, splits=32, layers=3):
    config = shape(name, layers)
    return config, build_graph(config, StepShape(rows, splits), Tiling.for_tensor_cores(config, 132)).graph


def in_order(config, graph):
    """Tasks of each op of each layer, in the order of a kernel per op."""
    names = [("embed", -1)]
    for i, spec in enumerate(config.layers):
        names += [(op, i) for op in LAYER[spec.mlp]]
    groups = [[t for t in range(len(graph)) if (graph.ops[graph.op[t]], graph.layer[t]) == name]
              for name in [*names, ("lm_head", -1), ("pick", -1)]]  # fmt: skip
    return [group for group in groups if group]


def awaited(graph, task):
    """All tasks that one waits for, itself."""
    ptr, producer = graph.producers
    found = set()
    for counter, need in graph.waits(task):
        assert need == graph.arrivals[counter]  # the kernel knows no other waits
        found |= set(producer[ptr[counter] : ptr[counter + 1]].tolist())
    return found


def check_limits(graph, plain):
    assert np.diff(graph.wait_ptr).max() <= 2 and np.diff(graph.raise_ptr).max() <= 2
    for name in ("op", "layer", "slot", "tile", "bytes", "flops"):
        assert np.array_equal(getattr(graph, name), getattr(plain, name))
    for counter in (c for c in plain.counters if c.split(".")[0] in ("qkv", "router", "picked")):  # which the loader reads
        raising = [{t for t in range(len(g)) if g.counters.index(counter) in g.raises(t)} for g in (plain, graph)]
        assert raising[0] == raising[1]


@pytest.mark.parametrize(("rows", "splits"), SIZES)
def test_a_barrier_waits_for_all_of_the_op_before_and_for_nothing_else(rows, splits):
    config, plain = graph_of(rows=rows, splits=splits, layers=2)
    graph = ABLATION["barrier-per-op"].graph(plain)
    groups = in_order(config, plain)
    assert sum(map(len, groups)) == len(graph)
    assert not np.diff(graph.wait_ptr)[groups[0]].any()
    for before, group in pairwise(groups):
        counters = {tuple(graph.waits(t)) for t in group}
        assert len(counters) == 1 and awaited(graph, group[0]) == set(before)
    check_limits(graph, plain)


@pytest.mark.parametrize(("rows", "splits"), SIZES)
def test_what_runs_beside_attention_begins_when_it_is_done(rows, splits):
    """Of a routed layer the router and by way of it the experts; of a dense one the products up."""
    _, plain = graph_of(rows=rows, splits=splits, layers=2)
    graph = ABLATION["in-sequence"].graph(plain)
    tasks = {(graph.ops[op], layer): np.flatnonzero((graph.op == op) & (graph.layer == layer)).tolist()
             for op, layer in {*zip(graph.op.tolist(), graph.layer.tolist(), strict=True)}}  # fmt: skip
    for first, layer in (("dense_up", 0), ("router", 1)):
        o_proj = set(tasks["o_proj", layer])
        assert all(o_proj <= awaited(graph, t) for t in tasks[first, layer])
        assert not o_proj & awaited(plain, tasks[first, layer][0])
    for t in tasks["expert_up", 1]:
        assert awaited(graph, t) == set(tasks["router", 1])
    for op, layer in (("qkv", 1), ("attention", 1), ("o_proj", 1), ("expert_down", 1), ("lm_head", -1)):
        assert all(awaited(graph, t) == awaited(plain, t) for t in tasks[op, layer])
    check_limits(graph, plain)


def test_shared_experts_begin_when_attention_is_done():
    config, _ = graph_of()
    config = replace(config, shared_width=768)
    plain = build_graph(config, StepShape(1, 4), Tiling.for_tensor_cores(config, 132)).graph
    graph = ABLATION["in-sequence"].graph(plain)
    shared = np.flatnonzero((graph.op == graph.ops.index("shared_up")) & (graph.layer == 1)).tolist()
    o_proj = np.flatnonzero((graph.op == graph.ops.index("o_proj")) & (graph.layer == 1)).tolist()
    assert shared and all(set(o_proj) | awaited(plain, t) == awaited(graph, t) for t in shared)


def test_nothing_is_put_in_sequence_that_is_so_already():
    _, plain = graph_of("llama-3.2-1b", layers=2)
    with pytest.raises(MkvizError, match="nothing runs beside o_proj"):
        ABLATION["in-sequence"].graph(plain)


@pytest.mark.parametrize("policy", [p for p in POLICIES if p != "claimed"])
def test_changed_graphs_are_dealt_out_and_take_longer(policy):
    """Whatever deals them out: the validator finds no deadlock, and the model of an H200 does not find them faster."""
    _, plain = graph_of(layers=2)
    took = {"as it is": simulate(plain, make_schedule(plain, 132, policy)).makespan}
    for name in ("barrier-per-op", "in-sequence"):
        graph = ABLATION[name].graph(plain)
        took[name] = simulate(graph, make_schedule(graph, 132, policy)).makespan
    assert min(took, key=took.get) == "as it is"


def test_each_says_what_it_is():
    _, plain = graph_of(layers=2)
    graphs = [a.graph(plain) for a in ABLATIONS]
    assert len({g.name for g in graphs}) == len(graphs) == 6 and all(g.name.startswith(plain.name) for g in graphs)
    assert [g.meta["ablation"] for g in graphs] == list(ABLATION)
    assert [g.meta.get("prefetch", True) for g in graphs] == [name != "no-prefetch" for name in ABLATION]
    assert "ablation" not in plain.meta


# -- the cost model on them

STEP = 5


def recorded(folder, name, graph, prefetch=True):
    """A step as a machine leaves it whose costs nobody tells: tasks take 1.3 times as long as the model says and 300 ns."""
    schedule = make_schedule(graph, 132, "balanced")
    costs = Costs.of_machine(graph, H200)
    costs = replace(costs, math=(1.3 * costs.math + 300).astype(np.int64), overhead=np.full(len(graph), 200))
    step = simulate(graph, schedule, H200, prefetch=prefetch, costs=costs)
    events = step.events.copy()
    events["step"] = STEP
    with closing(TraceWriter(folder / f"{name}.mkt", kind="measured", device="H200")) as trace:
        trace.graph(0, graph, schedule)
        trace.step(StepInfo(STEP, 0, 0, step.makespan), events)
    return trace.path


def test_costs_fitted_to_the_kernel_as_it_is_predict_its_ablations(tmp_path):
    _, plain = graph_of(layers=3)
    of = recorded(tmp_path, "plain", plain)
    for name in ("barrier-per-op", "in-sequence", "no-prefetch"):
        graph = ABLATION[name].graph(plain)
        on = recorded(tmp_path, name, graph, prefetch=name != "no-prefetch")
        assert judge(of, on).worst < 0.05, name
    forgotten = replace(graph, meta=plain.meta)  # a trace that does not say that its kernel does not load ahead
    assert judge(of, recorded(tmp_path, "forgotten", forgotten, prefetch=False)).worst > 0.05
