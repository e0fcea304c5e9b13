"""Records of the CPU interpreter, through rings and drain: each task once, stamps in order, skips and routes as they were."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from checkpoints import make_checkpoint
from rows import Rows, open_backend

from engine.builder import StepShape, build_graph
from engine.tiling import SPLIT
from mkviz.decode import RingReader
from mkviz.drain import Drain
from mkviz.policies import POLICIES
from mkviz.protocols import StepInfo
from mkviz.record import FLAG_COVERED, KIND_MASK, KIND_SKIPPED, KIND_TASK, NO_WAIT

MODELS = {
    "cohere": ("cohere2_moe", {"sliding_window": 40, "num_shared_experts": 1}),
    "qwen-moe": ("qwen3_moe", {"decoder_sparse_step": 2}),
    "llama": ("llama", {}),
}
STAMPS = ("claim", "ready", "begin", "end", "publish")


class Collect:
    """A sink that keeps everything."""

    def __init__(self):
        self.graphs, self.steps, self.lost_records, self.lost_steps = {}, [], 0, 0

    def graph(self, graph_id, graph, schedule):
        self.graphs[graph_id] = graph, schedule

    def step(self, info, events):
        self.steps.append((info, events))

    def lost(self, records, steps=0):
        self.lost_records += records
        self.lost_steps += steps


class Recording:
    """Ragged sequences, run with tracing: ``steps`` holds (StepPlan, StepGraph, Schedule, StepInfo, events) of each step.

    The steps have one to 64 rows, of one to three sequences, of prompt and decode, with up to two splits, some without logits.
    """

    def __init__(self, directory, name, **options):
        family, settings = MODELS[name]
        self.model = make_checkpoint(directory, family, max_position_embeddings=512, **settings)
        self.backend = backend = open_backend(directory, trace=True, **options)
        self.tokens = [np.random.default_rng(i).integers(0, 97, n).tolist() for i, n in enumerate((3, 70, 300))]
        drain, sink = Drain(backend.rings.link()), Collect()
        drain.add_sink(sink)
        rows = Rows(backend, self.tokens)
        several = ([1, 0, 40], [1, 7, 50], [0, 0, 64], [0, 1, 63], [1, 60, 0], [0, 1, 63], [0, 0, 13], [0, 1, 1])
        for counts in (*several, *[[0, 0, 1]] * 6):
            rows.step(counts, [n < 40 for n in counts])
            result = rows.results[-1]
            drain.graph(result.graph, *backend.graphs[result.graph])
            drain.step_meta(StepInfo(backend.serial - 1, result.graph, result.begin, result.end, routes=result.routes))
            drain.poll()
        assert rows.done == [3, 70, 300]
        self.stats, self.steps = drain.close(), []
        for plan, (info, events) in zip(rows.plans, sink.steps, strict=True):
            shape = StepShape.covering(len(plan), int(plan.position.max()) + 1)
            built = build_graph(backend.config, shape, backend.tiling, backend.weight_bytes)
            graph, schedule = sink.graphs[info.graph]
            assert graph.hash == built.graph.hash
            self.steps.append((plan, built, schedule, info, events))


@pytest.fixture(scope="module", params=[(name, policy) for name in MODELS for policy in POLICIES], ids="-".join)
def recording(request, tmp_path_factory):
    name, policy = request.param
    return Recording(tmp_path_factory.mktemp("model"), name, policy=policy, sms=7, workers=2)


def test_every_task_of_every_step_once(recording):
    assert [info.step for *_, info, _ in recording.steps] == list(range(14))
    for _, built, schedule, info, events in recording.steps:
        assert np.array_equal(np.sort(events["task"]), np.arange(len(built.graph)))
        assert set(events["step"].tolist()) == {info.step}
        assert info.lost == 0
        owner = schedule.sm_of(len(built.graph))[events["task"]]
        assert np.all((owner == events["sm"]) | (owner < 0))
    stats = recording.stats
    assert stats.delivered == stats.written == sum(len(events) for *_, events in recording.steps)
    assert (stats.lost, stats.torn, stats.withheld, stats.late) == (0, 0, 0, 0)


def test_stamps_are_in_order(recording):
    for _, _, schedule, _, events in recording.steps:
        for earlier, later in pairwise(STAMPS):
            assert np.all(events[earlier] <= events[later]), (earlier, later)
        for sm in range(schedule.sms):  # one task after the other, owned ones in the order of the list
            mine = events[events["sm"] == sm]
            assert np.all(mine["publish"][:-1] <= mine["claim"][1:])
            owned = schedule.tasks_of(sm)
            assert np.array_equal(mine["task"][: len(owned)], owned)
    for (*_, before), (*_, after) in pairwise(recording.steps):
        assert before["publish"].max() <= after["claim"].min()


def test_ready_is_never_before_the_last_producers_publish(recording):
    for _, built, _, _, events in recording.steps:
        graph = built.graph
        by_task = events[np.argsort(events["task"])]
        ptr, producer = graph.producers
        there = np.array([by_task["publish"][producer[a:b]].max() for a, b in pairwise(ptr)])
        waiting = np.repeat(np.arange(len(graph)), np.diff(graph.wait_ptr))
        assert np.all(there[graph.wait_counter] <= by_task["ready"][waiting])
        for t in range(len(graph)):  # and the wait that came last is the one of which it says so
            counters, last = [c for c, _ in graph.waits(t)], int(by_task["last_wait"][t])
            assert last == NO_WAIT if not counters else there[counters[last]] == there[counters].max()


def test_covered_is_what_raises_nothing(recording):
    for _, built, _, _, events in recording.steps:
        raises = np.diff(built.graph.raise_ptr)[events["task"]] > 0
        assert np.array_equal((events["flags"] & FLAG_COVERED) == 0, raises)


def without_work(plan, built, config, routes) -> np.ndarray:
    """bool[tasks]: tasks whose rows, slot, split or logits this step has no use for."""
    graph, out = built.graph, np.zeros(len(built.graph), bool)
    slots = {layer: sum(1 for at, *_ in routes if at == layer) for layer in range(len(config.layers))}
    for t in range(len(graph)):
        op, (first, end, _, split) = graph.ops[graph.op[t]], built.args[t].tolist()
        rows = slice(first, min(end, len(plan)))
        if op in ("embed", "merge"):
            out[t] = first >= len(plan)
        elif op == "attention":
            window = config.window if config.layers[graph.layer[t]].attention == "sliding" else 0
            last = plan.position[rows]
            oldest = np.maximum(0, last - window + 1) if window else np.zeros_like(last)
            out[t] = not np.any(last // SPLIT - oldest // SPLIT >= split)
        elif op == "expert_up":
            out[t] = graph.slot[t] >= slots[int(graph.layer[t])]
        elif op == "lm_head":
            out[t] = not plan.wants_logits.any()
        elif op == "pick":
            out[t] = not plan.wants_logits[rows].any()
    return out


def test_skipped_are_those_without_work(recording):
    seen = set()
    for plan, built, _, info, events in recording.steps:
        skipped = without_work(plan, built, recording.backend.config, info.routes)[events["task"]]
        kind = events["flags"] & KIND_MASK
        assert np.array_equal(kind, np.where(skipped, KIND_SKIPPED, KIND_TASK))
        seen |= {built.graph.ops[op] for op in built.graph.op[events["task"][skipped]]}
    assert seen >= {"embed", "attention", "merge", "lm_head", "pick"}


def test_routes_are_those_of_transformers(recording):
    """Slots hold the step's experts, ascending, with the number of rows that transformers' router sends to each."""
    chosen = {}  # layer -> expert ids of each row of each sequence
    hooks = [
        layer.mlp.gate.register_forward_hook(lambda *a, at=i: chosen[at].append(a[2][2].numpy()))
        for i, layer in enumerate(recording.model.model.layers)
        if hasattr(layer.mlp, "gate") and chosen.setdefault(i, []) == []
    ]
    for tokens in recording.tokens:
        with torch.no_grad():
            recording.model(torch.tensor([tokens]))
    for hook in hooks:
        hook.remove()
    moe = [i for i, spec in enumerate(recording.backend.config.layers) if spec.mlp == "moe"]
    assert list(chosen) == moe
    for plan, *_, info, _ in recording.steps:
        want = []
        for layer in moe:
            picks = np.concatenate(
                [chosen[layer][s][p] for s, p in zip(plan.sequence.tolist(), plan.position.tolist(), strict=True)]
            )
            experts, rows = np.unique(picks, return_counts=True)
            want += [(layer, slot, e, n) for slot, (e, n) in enumerate(zip(experts.tolist(), rows.tolist(), strict=True))]
        assert info.routes == want


@pytest.mark.parametrize("polls", [0, 3])
def test_rings_that_overflow_count_what_is_lost(tmp_path, polls):
    """Rings of 16 records, read seldom: what was received and what was lost are what was written."""
    make_checkpoint(tmp_path, "llama")
    backend = open_backend(tmp_path, trace=True, sms=3, ring_capacity=16)
    reader, rows, received = RingReader(backend.rings.link()), Rows(backend, [list(range(40))]), 0
    for step in range(40):
        rows.step([1])
        if polls and step % polls == 0:
            received += len(reader.read().events)
    received += len(reader.read().events)
    tasks = len(backend.graphs[0][0])
    assert reader.written.sum() == 40 * tasks
    assert received + reader.lost.sum() == 40 * tasks
    assert reader.received.sum() == received <= (40 // polls + 2 if polls else 1) * 3 * 16
    assert reader.lost.sum() > 0
    assert reader.torn.sum() == 0


def test_draining_while_it_runs(tmp_path):
    """A drain on its own thread beside the workers, with rings of three steps: whole steps or none, and an exact balance."""
    make_checkpoint(tmp_path, "cohere2_moe")
    backend = open_backend(tmp_path, trace=True, sms=4, ring_capacity=256)
    sink, drain = Collect(), Drain(backend.rings.link(), interval=0.001)
    drain.add_sink(sink)
    drain.start()
    rows = Rows(backend, [np.random.default_rng(1).integers(0, 97, 300).tolist()])
    for _ in range(250):
        rows.step([1])
        drain.graph(0, *backend.graphs[0])
        drain.step_meta(StepInfo(backend.serial - 1, 0, 0, 0))
    stats, tasks = drain.close(), len(backend.graphs[0][0])
    assert stats.written == 250 * tasks == stats.delivered + stats.lost + stats.withheld
    assert (stats.torn, stats.late, stats.waiting) == (0, 0, 0)
    assert drain.detached == []
    assert sink.steps
    for _, events in sink.steps:
        assert np.array_equal(np.sort(events["task"]), np.arange(tasks))
    assert len(sink.steps) == stats.steps == 250 - stats.steps_lost
    assert sink.lost_records == stats.lost + stats.withheld
