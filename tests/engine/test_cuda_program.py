"""Programs: the tables that the kernel walks, against the graph and the schedule that they are made of."""

from dataclasses import replace

import numpy as np
import pytest
from packed import MODELS, SMS, packed_model

from engine.builder import StepShape, build_graph
from engine.cuda.abi import STORERS
from engine.cuda.program import make_program
from engine.tiling import Tiling
from mkviz.errors import MkvizError
from mkviz.policies import make_schedule
from mkviz.schedule import Schedule


@pytest.fixture(scope="module", params=MODELS)
def model(request, tmp_path_factory):
    return packed_model(request.param, tmp_path_factory.mktemp(request.param))


def test_program_follows_the_schedule(model):
    _, _, _, built, schedule, program = model
    g = built.graph
    for sm in range(SMS):
        mine = program.tasks[program.task_ptr[sm] : program.task_ptr[sm + 1]]
        assert mine["id"].tolist() == schedule.tasks_of(sm).tolist()
        assert mine["order"].tolist() == list(range(len(mine)))
    assert sorted(program.tasks["id"].tolist()) == list(range(len(g)))


def test_program_waits_and_raises(model):
    _, _, _, built, _, program = model
    g = built.graph
    raised = np.zeros(len(g.counters), int)
    for t in range(len(g)):
        for c in g.raises(t):
            raised[c] += 1
    for task in program.tasks:
        t, n, m = int(task["id"]), int(task["waits"]), int(task["raises"])
        assert list(zip(task["wait"][:n].tolist(), task["need"][:n].tolist(), strict=True)) == g.waits(t)
        assert task["wait_arrivals"][:n].tolist() == [raised[c] for c in task["wait"][:n]]
        assert task["raise"][:m].tolist() == g.raises(t)
        assert (int(task["op"]), int(task["tile"])) == (int(g.op[t]), int(g.tile[t]))
        assert [int(np.int32(task[x])) for x in ("layer", "slot")] == [int(g.layer[t]), int(g.slot[t])]
        assert [int(task[x]) for x in "abcd"] == built.args[t].tolist()


def test_layers_name_the_counters_that_the_loader_awaits(model):
    config, _, _, built, _, program = model
    g, op = built.graph, built.graph.ops.index
    raised_by = {name: [t for t in range(len(g)) if c in g.raises(t)] for c, name in enumerate(g.counters)}
    for i, layer in enumerate(program.layers):
        for head in range(config.kv_heads):
            name = g.counters[layer["qkv_counter"] + head * layer["qkv_step"]]
            producers = raised_by[name]
            assert layer["qkv_arrivals"] == len(producers)
            units = {int(built.args[t, 0]) for t in producers}
            group = config.heads // config.kv_heads
            want = {head * group + j for j in range(group)} | {config.heads + head, config.heads + config.kv_heads + head}
            assert units == want and all(g.op[t] == op("qkv") and g.layer[t] == i for t in producers)
        if layer["routed"]:
            producers = raised_by[g.counters[layer["router_counter"]]]
            assert layer["router_arrivals"] == len(producers) == -(-config.experts // 16)
            assert all(g.op[t] == op("router") and g.layer[t] == i for t in producers)
    assert g.counters[program.picked_counter] == "picked"
    assert program.head_tiles == np.count_nonzero(g.op == op("lm_head"))


def test_a_claiming_schedule_is_refused(model):
    config, _, packed, built, *_ = model
    with pytest.raises(MkvizError, match="policy 'claimed' on the cuda backend; one that owns every task"):
        make_program(config, built, make_schedule(built.graph, SMS, "claimed"), packed)


def test_more_waits_than_a_task_has_room_for_are_refused(model):
    config, _, packed, built, schedule, _ = model
    g = built.graph
    last = len(g) - 1
    ptr = g.wait_ptr.copy()
    ptr[-1] = ptr[last] + 3
    graph = replace(
        g, wait_ptr=ptr, wait_counter=np.append(g.wait_counter[: ptr[last]], [0, 1, 2]).astype(np.int32),
        wait_need=np.append(g.wait_need[: ptr[last]], g.arrivals[:3]).astype(np.uint32),
    )  # fmt: skip
    with pytest.raises(MkvizError, match=rf"task {last} \(pick · tile 3\): 3 waits; at most 2"):
        make_program(config, replace(built, graph=graph), schedule, packed)


def test_a_wait_for_a_part_of_the_arrivals_is_refused(model):
    config, _, packed, built, schedule, _ = model
    need = built.graph.wait_need.copy()
    need[-1] -= 1  # the last wait is for the logits
    said = rf"a wait for {need[-1]} arrivals at logits; all {need[-1] + 1} on the cuda backend"
    with pytest.raises(MkvizError, match=said):
        make_program(config, replace(built, graph=replace(built.graph, wait_need=need)), schedule, packed)


def test_the_order_of_the_list_decides_the_storer(model):
    """A schedule of its own order: SM 0 backwards in blocks, all others empty."""
    config, _, packed, built, *_ = model
    tasks = list(range(len(built.graph)))
    program = make_program(config, built, Schedule.from_lists([tasks, []]), packed)
    assert program.tasks["order"].tolist() == tasks and program.task_ptr.tolist() == [0, len(tasks), len(tasks)]


def test_samples_are_dealt_to_all_storers(model):
    """The last storer first; and each storer's chain has all tasks that are its own, none with products behind a sample."""
    config, _, packed, *_ = model
    built = build_graph(config, StepShape(8, 4), Tiling.for_tensor_cores(config, SMS, sampling=True))
    program = make_program(config, built, make_schedule(built.graph, SMS, "balanced"), packed)
    op, sample = built.graph.ops.index, built.graph.ops.index("sample")
    for sm in range(SMS):
        mine = program.tasks[program.task_ptr[sm] : program.task_ptr[sm + 1]]
        dealt = mine["storer"][mine["op"] == sample].tolist()
        assert len(dealt) > 2 * STORERS and dealt == [STORERS - 1 - i % STORERS for i in range(len(dealt))]
        assert set(mine["storer"][np.isin(mine["op"], [op("embed"), op("merge"), op("pick")])].tolist()) <= {STORERS - 1}
        for storer in range(STORERS):
            at, chain = int(program.storer_first[sm, storer]), []
            while at < len(mine):
                chain.append(at)
                at = int(mine["next"][at])
            assert chain == np.flatnonzero(mine["storer"] == storer).tolist()
            ops = mine["op"][chain]
            first = int(np.argmax(ops == sample))
            assert ops[first] == sample and not np.isin(ops[first:], [sample, op("pick")], invert=True).any()
