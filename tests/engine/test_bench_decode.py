"""``mkviz bench decode``: the demo model's figures against those of its sizes, what a launch runs, what is refused."""

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from engine.bench import decode
from engine.bench.paired import in_turn, ratio
from engine.bench.runners import CpuRunner, decode_plan, longest_chain
from engine.builder import StepShape, build_graph
from engine.plan import StepResult
from engine.shapes import shape
from engine.tiling import Tiling
from mkviz.cli import main
from mkviz.graph import GraphBuilder

ROOT = Path(__file__).parents[2]
# The demo model: hidden 256, 8 heads and 2 KV heads of 64, 9 layers of which 3 see all and 6 a window of 256, layer 0 dense of
# 768, then 16 experts of 64, 4 a row; vocabulary 8192; bf16.  The interpreter keeps K and V in f32.
ALWAYS = 2 * (9 * ((8 + 4) * 64 * 256 + 512 * 256) + 8 * 16 * 256 + 3 * 768 * 256 + 8192 * 256)  # 11,337,728
EXPERT = 2 * 3 * 64 * 256
KEY = 2 * 2 * 64 * 4  # bytes of one key and its value in one layer


def bench(path, *arguments):
    command = ["bench", "decode", "--backend", "cpu", "--runs", "5", *arguments, "--json", str(path)]
    with pytest.MonkeyPatch.context() as patch:  # what started the tests is not the command
        patch.setattr("sys.argv", ["mkviz", *command])
        assert main(command) == 0
    return json.loads(path.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    path = tmp_path_factory.mktemp("bench") / "decode.json"
    return bench(path, "--batch", "1", "2", "--context", "300", "30", "--steps", "3")


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    """With a baseline, of two rows beyond the window."""
    torch.set_num_threads(1)
    path = tmp_path_factory.mktemp("bench") / "compared.json"
    (point,) = bench(path, "--batch", "2", "--context", "300", "--steps", "1", "--baseline")["points"]
    return point


def test_bytes_and_experts_are_those_of_the_demo_models_sizes(measured):
    points = {(p["batch"], p["context"]): p for p in measured["points"]}
    assert list(points) == [(1, 300), (2, 300), (1, 30), (2, 30)]
    for (rows, context), p in points.items():
        keys = context + 2  # of the middle step of three; the first sees its own key, too
        seen = 3 * keys + 6 * (256 if context == 300 else keys)
        assert p["bytes_step"]["kv"] == rows * seen * KEY
        assert p["bytes_step"]["embedding"] == rows * 512
        touched = p["experts"]["mean"]
        assert p["bytes_step"]["weights"] == pytest.approx(ALWAYS + 8 * touched * EXPERT)
        assert p["bytes_step"]["total"] == pytest.approx(sum(p["bytes_step"][k] for k in ("weights", "kv", "embedding")))
        assert (p["experts"]["min"], p["experts"]["max"]) == (4, 4) if rows == 1 else 4 <= touched <= 8
        # qkv, attention, o_proj, down in each of nine layers, with a merge where there are two splits; embed, lm_head, pick
        assert p["hops"] == 9 * 4 + 3 + (9 if context == 300 else 0)


def test_times_are_of_the_launches_that_are_told(measured, compared):
    for times in [*measured["points"], compared, compared["baseline"]]:
        each = sorted(times["ms_each"])
        assert len(each) == 5 and each[0] > 0
        assert times["ms_step"] == pytest.approx(each[2], abs=1e-5)
        assert times["ms_quartiles"] == pytest.approx([each[1], each[3]], abs=1e-5)
        assert times["ms_fastest"] == pytest.approx(each[0], abs=1e-5)
    for p in measured["points"]:
        assert p["tok_s"] == pytest.approx(p["batch"] * 1e3 / p["ms_step"])
        assert p["share"] is None and p["exposed_us_per_hop"] is None  # no ceiling of a CPU


def test_the_baseline_computes_the_same_of_the_same_keys_and_values(compared):
    baseline = compared["baseline"]
    assert 0 < baseline["logits_distance"] < 1e-5
    assert len(baseline["tried"]) == 5
    assert all(0 < way["logits_distance"] < 1e-5 and way["ms_step"] > 0 for way in baseline["tried"])
    assert baseline["ratio"]["pairs"] == 5


def test_the_json_says_what_it_is_of(measured):
    command = "mkviz bench decode --backend cpu --runs 5 --batch 1 2 --context 300 30 --steps 3 --json "
    assert measured["command"].startswith(command)
    assert (measured["model"], measured["layers"], measured["backend"]) == ("demo", 9, "cpu")
    assert (measured["tracing"], measured["ceiling"]) == ("off", None)
    assert measured["memory_bytes"]["weights"] == ALWAYS + 8 * 16 * EXPERT + 2 * 256 * (2 * 9 - 8 - 8 + 8)  # and the norms


def test_every_launch_runs_the_same_positions_and_goes_on_from_its_tokens():
    ran = []

    def step(plan):
        ran.append((plan.position.tolist(), plan.token.tolist(), plan.pages.tolist()))
        return StepResult(None, plan.token + 1, [(1, 0, 5, 1), (1, 1, 7, 2), (3, 0, 2, 2)], 0, 0, 0)

    layers = [SimpleNamespace(mlp=mlp) for mlp in ("dense", "moe", "moe", "moe")]
    runner = object.__new__(CpuRunner)
    runner.config, runner.backend = SimpleNamespace(layers=layers), SimpleNamespace(step=step)
    plan = decode_plan(2, 127, 2, 90)
    for _ in range(2):
        runner.launch(plan, 2)
    pages = [[0, 1, 2], [3, 4, 5]]  # 129 tokens each
    assert ran == [([127, 127], [30, 60], pages), ([128, 128], [31, 61], pages)] * 2
    assert runner.experts(plan, 2).tolist() == [[2, 0, 1], [2, 0, 1]]


def test_share_and_exposed_time_by_hand():
    """7.13 GB at 4,600 GB/s are 1.55 ms; of 2 ms that is 77.5 %, and 0.45 ms over 250 hops are 1.8 µs each."""
    point = {"bytes_step": {"total": 7.13e9}, "ms_step": 2.0, "hops": 250, "baseline": {"ms_step": 4.0}}
    told = decode.shares(point, 4600.0)
    assert told["share"] == pytest.approx(0.775) and told["exposed_us_per_hop"] == pytest.approx(1.8)
    assert point["baseline"]["share"] == pytest.approx(0.3875)


def test_launches_in_turn_and_their_ratio():
    order, clock = [], iter(range(1, 100))

    def timed(name, factor):
        return lambda: order.append(name) or factor * next(clock)

    ours, theirs = in_turn([timed("ours", 1), timed("theirs", 3)], 3)
    assert order == ["theirs", "ours", "ours", "theirs", "theirs", "ours"]
    assert (ours.tolist(), theirs.tolist()) == ([2, 3, 6], [3, 12, 15])
    order.clear()
    in_turn([timed(name, 1) for name in "abc"], 3)
    assert "".join(order) == "bca" + "cab" + "abc"
    told = ratio(np.array([1.0, 2.0, 1.0, 2.0]), np.array([2.0, 4.0, 3.0, 6.0]))
    assert told["mean"] == 2.5 and told["pairs"] == 4
    assert told["interval_95"] == [2.0, 3.0]  # of four ratios 2, 2, 3, 3: all alike by chance 1 in 16
    assert ratio(np.ones(9), np.full(9, 1.25))["interval_95"] == [1.25, 1.25]


def test_the_longest_chain_by_hand():
    """0 -> 1 -> 3 by way of counter b, which task 2, that waits for nobody, raises after 1; and 0 -> 3."""
    g = GraphBuilder("chain", ("op",))
    a, b = g.counter("a"), g.counter("b")
    g.task("op", raises=[a])
    g.task("op", waits=[a], raises=[b])
    g.task("op", raises=[b])
    g.task("op", waits=[a, b])
    assert longest_chain(g.build()) == 3


@pytest.mark.parametrize(("keys", "layer"), [(128, 5), (300, 6)])
def test_the_longest_chain_of_a_llama(keys, layer):
    """qkv, attention, (merge,) o_proj, dense_up, dense_down a layer; embed, lm_head and pick."""
    config = shape("smollm2-135m", 4)
    built = build_graph(config, StepShape.covering(1, keys), Tiling.for_tensor_cores(config, 132))
    assert longest_chain(built.graph) == 4 * layer + 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--batch", "0"], "--batch: 0; 1 or more rows"),
        (["--batch", "65"], "--batch: 65 rows; at most 64 on the cpu backend"),
        (["--batch", "1", "999", "--shape", "llama-3.2-1b"], "--batch: 999 rows; at most 256 on the cuda"),
        (["--context", "0"], "--context: 0; 1 or more tokens"),
        (["--context", "2040"], "--context: 2040 and 16 steps; at most the 2048 positions of demo"),
        (["--shape", "smollm2-135m", "--context", "9000"], "--context: 9000 and 16 steps; at most the 8192 positions"),
        (["--steps", "257"], "--steps: 257; 1 to 256"),
        (["--runs", "0"], "--runs: 0; 1 or more"),
        (["--shape", "smollm2-135m", "--backend", "cpu"], "--shape smollm2-135m --backend cpu; --backend cuda"),
        (["--shape", "smollm2-135m", "--layers", "31"], "layers: 31; 1 to 30 of smollm2-135m"),
        (["--layers", "2"], "--layers: 2 of a model; a --shape"),
        (["--shape", "smollm2-135m", "--model", "demo"], "not allowed with argument"),
        (["--shape", "gpt-5"], "invalid choice: 'gpt-5'"),
        (["--policy", "best"], "--policy: 'best'; one of round_robin"),
        (["--policy", "claimed", "--backend", "cuda"], "--policy: claimed on the cuda backend; one that owns every task"),
        (["--json", "/nowhere/at/all.json"], "--json: /nowhere/at is no directory"),
    ],
)
def test_bad_input_is_refused_by_name(capsys, arguments, message):
    assert main(["bench", "decode", *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error and error.startswith("error: ") and error.count("\n") == 1


HIDDEN = ("panel", "bokeh", "holoviews", "polars", "fastapi", "uvicorn", "httpx", "llguidance", "pydantic", "torch",
          "tokenizers", "transformers", "nvtx")  # fmt: skip


def test_it_needs_nothing_of_the_dashboard_and_the_server():
    program = f"""
import sys
for name in {HIDDEN}: sys.modules[name] = None
from mkviz.cli import main
sys.exit(main(["bench", "decode", "--steps", "1", "--runs", "1", "--context", "20"]))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("batch 1, context 20: ")


def test_a_baseline_without_torch_is_refused(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "torch", None)
    assert main(["bench", "decode", "--baseline"]) == 2
    assert 'error: --baseline needs torch; pip install "mkviz[torch]"' in capsys.readouterr().err
