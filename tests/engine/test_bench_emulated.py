"""``mkviz bench decode --backend cuda`` with the kernel on a CPU: what is launched, traced and handed to the baseline."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from checkpoints import ODD, make_checkpoint
from emulated import Array, Cupy, EmulatedBackend

import engine.cuda.backend
from engine.bench import baseline, stream
from engine.bench.runners import CudaRunner, decode_plan
from engine.checkpoint import Weights
from engine.config import load_config
from mkviz.cli import main


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
