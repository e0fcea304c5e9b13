"""``mkviz bench decode --backend cuda`` with the kernel on a CPU: what is launched, traced and handed to the baseline."""

import copy
import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from checkpoints import ODD, make_checkpoint
from emulated import Array, Cupy, EmulatedBackend

import engine.cuda.backend
from engine.bench import baseline, stream
from engine.bench.ablations import ABLATIONS, Ablated
from engine.bench.runners import CudaRunner, decode_plan
from engine.bench.traces import record
from engine.builder import StepShape
from engine.checkpoint import Weights
from engine.config import load_config
from engine.cuda.stuck import StuckStep
from mkviz.cli import main
from mkviz.record import KIND_MASK, KIND_TASK
from mkviz.schedule import Schedule
from mkviz.trace import Trace


class _Generator:
    def __init__(self, bits):
        self._generator = np.random.default_rng(bits)

    def standard_normal(self, n, dtype):
        return self._generator.standard_normal(n, dtype=dtype).view(Array)


def _rates(weights, own):
    return [stream.Rate("weights", own, (100.0, 101.0, 99.0))]


@pytest.fixture
def emulated(monkeypatch):
    """Opening a CudaBackend opens an emulated one; its times are 1 ms a launch, and its read stream is made up."""
    monkeypatch.setattr(Cupy, "random", SimpleNamespace(Generator=_Generator, XORWOW=lambda seed: seed), raising=False)
    monkeypatch.setattr(Cupy.cuda, "Device", lambda: SimpleNamespace(synchronize=lambda: None), raising=False)
    monkeypatch.setattr(Cupy.cuda, "get_elapsed_time", lambda begin, end: 1.0)
    monkeypatch.setattr(engine.cuda.backend, "CudaBackend", EmulatedBackend)
    monkeypatch.setattr(stream, "ReadStream", lambda device: SimpleNamespace(rates=_rates))
    opened = baseline.Baseline
    monkeypatch.setattr(baseline, "Baseline", lambda config, weights, xp, kv: opened(config, weights, np))
    torch.set_num_threads(1)


def checkpoint(directory, name):
    family, settings = ODD[name]
    make_checkpoint(directory, family, **(settings | {"storage": "bfloat16"}))
    return directory


@pytest.mark.parametrize("name", ["cohere-shared-average", "llama-biases"])
def test_kernel_and_baseline_compute_the_same_of_the_same_weights_and_pages(emulated, tmp_path, name):
    path = tmp_path / "bench.json"
    command = ["bench", "decode", "--model", str(checkpoint(tmp_path / "model", name)), "--backend", "cuda", "--batch", "2",
               "--context", "70", "--steps", "2", "--runs", "2", "--baseline", "--json", str(path)]  # fmt: skip
    assert main(command) == 0
    told = json.loads(path.read_text(encoding="utf-8"))
    (point,) = told["points"]
    assert point["ms_step"] == 0.5 and point["tok_s"] == 4000  # a launch of two steps took 1 ms
    assert point["share"] == pytest.approx(point["bytes_step"]["total"] / 0.5e-3 / 100e9)
    assert all(way["logits_distance"] < 0.02 for way in point["baseline"]["tried"])  # bf16 against float32
    assert told["ceiling"]["gb_s"] == 100


def test_the_traced_twin_tells_routes_and_shares_all_else(emulated, tmp_path):
    """Its steps give the tokens that the launch gives, and three experts a row."""
    directory = checkpoint(tmp_path / "model", "cohere-sigmoid")
    config = load_config(directory)
    runner = CudaRunner(config, Weights.open(directory, config), pages=4, steps=3, rows=2, policy="round_robin")
    plan = decode_plan(2, 70, 3, config.vocab)
    touched = runner.experts(plan, 3)
    chain, tokens = plan, []
    for _ in range(3):
        _, chain = runner._step(chain)
        tokens.append(chain.token.tolist())
    runner.launch(plan, 3)
    assert runner.backend.greedy_steps.tolist() == tokens
    assert touched.shape == (3, 3) and touched.min() >= 3 and touched.max() <= 6
    assert runner._traced._arrays is runner.backend._arrays and runner._traced.weights is runner.backend.weights
    assert len(runner.backend.graphs) == 1


# -- ablations

SEEN = StepShape.covering(2, 303)  # two splits


def ablated_runner(tmp_path, name="cohere-shared-average", traced=False, **options):
    directory = checkpoint(tmp_path / "model", name)
    config = load_config(directory)
    runner = CudaRunner(config, Weights.open(directory, config), pages=16, steps=3, rows=2, policy="balanced", **options)
    return runner, Ablated(runner, traced), decode_plan(2, 300, 3, config.vocab)


def test_no_ablation_changes_a_bit(emulated, tmp_path):
    runner, ablated, plan = ablated_runner(tmp_path)
    wanting = copy.copy(plan)
    wanting.wants_logits = np.ones(2, bool)
    expected = runner.logits(plan)
    assert np.abs(expected).max() > 0
    for ablation in ABLATIONS:
        backend = ablated.backend(ablation, SEEN)
        for _ in range(2):  # its counters go on from the step before
            assert np.array_equal(backend.step(wanting).logits, expected), ablation.name
    assert (
        len({id(ablated.backend(a, SEEN)._launch) for a in ABLATIONS}) == 4
    )  # those that change the graph run the same kernel


@pytest.mark.parametrize("name", ["cohere-shared-average", pytest.param("llama-biases", marks=pytest.mark.slow)])
def test_the_table_of_ablations(emulated, tmp_path, capsys, name):
    path = tmp_path / "bench.json"
    command = ["bench", "decode", "--model", str(checkpoint(tmp_path / "model", name)), "--backend", "cuda", "--batch", "1",
               "--context", "20", "--steps", "1", "--runs", "1", "--ablate", "--json", str(path)]  # fmt: skip
    assert main(command) == 0
    (point,) = json.loads(path.read_text(encoding="utf-8"))["points"]
    entries = {entry["name"]: entry for entry in point["ablations"]}
    assert next(iter(entries)) == "as-it-is" and set(entries) == {"as-it-is", *(a.name for a in ABLATIONS)}
    said = capsys.readouterr().out
    if name == "llama-biases":
        assert "nothing runs beside o_proj" in entries.pop("in-sequence")["left_out"]
    for entry in entries.values():
        assert entry["same_tokens"] and entry["ms_each"] == [1.0] and entry["ratio"]["mean"] == 1
        assert f"{entry['words']} " in said
    assert entries["as-it-is"]["hops"] == point["hops"] == entries["drained"]["hops"] <= entries["barrier-per-op"]["hops"]


def groups_of(graph):
    """(layer, op) by task, as numbers in the order of a kernel per op."""
    order = [
        "router",
        "top_k",
        "qkv",
        "attention",
        "merge",
        "expert_up",
        "dense_up",
        "shared_up",
        "o_proj",
        "expert_down",
        "dense_down",
    ]
    place = {("embed", -1): -1, ("lm_head", -1): 10_000, ("pick", -1): 10_001}
    return np.array([
        place.get((graph.ops[op], layer), 100 * layer + order.index(graph.ops[op]) if layer >= 0 else None)
        for op, layer in zip(graph.op.tolist(), graph.layer.tolist(), strict=True)
    ])  # fmt: skip


def test_no_task_of_a_recorded_barrier_is_ready_before_all_of_the_op_before_have_published(emulated, tmp_path):
    """Nor, in sequence, any of the router's before those of O-proj; both are not so in the kernel as it is."""
    runner, ablated, plan = ablated_runner(tmp_path)
    kinds = {"as it is": runner._traced}
    for ablation in [a for a in ABLATIONS if a.name in ("barrier-per-op", "in-sequence")]:
        made = ablated.backend(ablation, SEEN)
        made.trace, made._launch = 1, runner._traced._launch
        kinds[ablation.name] = made
    early = {}
    for name, backend in kinds.items():
        trace = Trace.open(record(runner, backend, plan, tmp_path / f"{name}.mkt.zip", name))
        assert [(len(info.rows), info.lost) for info in trace.infos()] == [(2, 0), (2, 0)]
        assert trace.infos()[0].routes and [row.position for row in trace.infos()[1].rows] == [301, 301]
        graph, _ = trace.graphs[trace.infos()[0].graph]
        assert ("ablation" in graph.meta) == (name != "as it is")
        group, layer = groups_of(graph), graph.layer
        early[name] = np.zeros(2, int)  # ready too early for a barrier; a router for what is in sequence
        for info in trace.infos():
            events = trace.events(steps=[info.step])
            assert sorted(events["task"].tolist()) == list(range(len(graph)))
            of, worked = group[events["task"]], (events["flags"] & KIND_MASK) == KIND_TASK
            for i in np.flatnonzero(worked):
                before = of < of[i]
                early[name][0] += before.any() and events["ready"][i] < events["publish"][before].max()
                if graph.ops[graph.op[events["task"][i]]] == "router":
                    o_proj = graph.op[events["task"]] == graph.ops.index("o_proj")
                    o_proj &= layer[events["task"]] == layer[events["task"][i]]
                    early[name][1] += events["ready"][i] < events["publish"][o_proj].max()
    assert early["as it is"].min() > 0
    assert early["barrier-per-op"][0] == 0
    assert early["in-sequence"][1] == 0 < early["in-sequence"][0]


@pytest.mark.slow
def test_where_loaders_stand_when_nothing_is_ever_ready(emulated, tmp_path):
    """The embedding is never computed: an undisturbed loader goes on until it must know experts or the ring is full, one that
    drains loads a task and awaits that, one that does not prefetch loads none."""
    _, ablated, plan = ablated_runner(tmp_path, traced=True)
    stood = {}
    for ablation in [a for a in ABLATIONS if a.ablate]:
        backend = ablated.backend(ablation, SEEN, trace=1)
        built, (_, plan_of) = backend.graph_of(SEEN), backend.graphs[backend.program(SEEN)[0]]
        lists = [plan_of.tasks_of(s) for s in range(plan_of.sms)]
        lists = [[t for t in tasks.tolist() if built.graph.ops[built.graph.op[t]] != "embed"] for tasks in lists]
        backend.bind(built, Schedule.from_lists(lists, policy="faulty"), validate=False)
        backend.poll_budget = 3000
        with pytest.raises(StuckStep):
            backend.run(plan, 1)
        loads = [[t for t in tasks if built.graph.bytes[t]] for tasks in lists]
        at = backend._arrays["states"].reshape(backend.sms, -1, 4)[:, 0, 0].tolist()
        stood[ablation.name] = [tasks.index(task) for tasks, task in zip(loads, at, strict=True)]
    assert stood["drained"] == [1, 1] and stood["no-prefetch"] == [0, 0] and min(stood["ticket"]) > 3


@pytest.mark.slow
def test_traces_of_all_ablations(emulated, tmp_path):
    (tmp_path / "traces").mkdir()
    command = ["bench", "decode", "--model", str(checkpoint(tmp_path / "model", "cohere-sigmoid")), "--backend", "cuda",
               "--batch", "1", "2", "--context", "300", "--steps", "2", "--runs", "1", "--ablate"]  # fmt: skip
    assert main([*command, "--traces", str(tmp_path / "traces")]) == 0
    for name in ("as-it-is", *(a.name for a in ABLATIONS)):
        for rows in (1, 2):
            trace = Trace.open(tmp_path / "traces" / f"{name}-{rows}x300.mkt.zip")
            (graph, _) = trace.graphs[trace.infos()[0].graph]
            assert graph.meta.get("ablation", "as-it-is") == name and graph.meta["rows"] == rows
            assert f"batch {rows}, context 300" in trace.label and len(trace.events()) == 2 * len(graph)
