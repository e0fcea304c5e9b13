"""A checkpoint with all names and shapes of North Mini Code opens: what it is, what it costs to open, what is told first."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from sparse import write_north_mini

import engine
from engine.chat import render_chat
from engine.checkpoint import Weights
from engine.config import LayerSpec, load_config
from engine.cuda.weights import PackedWeights
from engine.engine import Engine
from engine.model_get import describe
from engine.pick import pick
from engine.sampling import SamplingParams
from engine.tokenizer import Tokenizer

PARAMETERS = 30_484_303_872  # embedding 262,144 · 2048, 50 norms of 2048, 49 attentions of 2 · 2048 · (4096 + 512), a dense
# FFN of 3 · 2048 · 3072, 48 routers of 128 · 2048 and experts of 128 · 3 · 2048 · 768


ROOT = Path(engine.__file__).parents[1]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    directory = tmp_path_factory.mktemp("north-mini")
    return directory, write_north_mini(directory)


def test_the_release_layout_opens(model):
    directory, shapes = model
    on_disk = sum(file.stat().st_blocks * 512 for file in directory.iterdir())
    assert on_disk < 20e6 < 60e9 < sum(file.stat().st_size for file in directory.iterdir())
    config = load_config(directory)
    assert config.layers[0] == LayerSpec("full", True, "dense", 3072)
    assert config.layers[1] == LayerSpec("sliding", True, "moe", 768)
    assert config.layers[48] == LayerSpec("full", False, "moe", 768)
    assert sum(layer.attention == "full" for layer in config.layers) == 13
    assert (config.norm, config.router, config.renormalise, config.tied) == ("rms", "sigmoid", False, True)
    assert (config.eos, config.max_positions, config.experts, config.top_k) == ((255_001,), 500_000, 128, 8)
    weights = Weights.open(directory, config)
    assert len(shapes) == 1 + 1 + 49 * 5 + 3 + 48 * (1 + 128 * 3)
    assert weights.parameters == PARAMETERS
    assert weights.get("layers.48.experts.127.up").shape == (768, 2048)
    assert PackedWeights.bytes_needed(config) == 2 * (PARAMETERS - 50 * 2048)  # all but the norms, and no padding
    tokenizer = Tokenizer.open(directory, config.vocab)
    assert render_chat(tokenizer, [{"role": "user", "content": "Hi"}]) == "<|user|>Hi<|bot|>"


def test_model_info(model, capsys):
    describe(model[0])
    said = capsys.readouterr().out
    assert "30,484,303,872, 3,305,213,952 for one token" in said and "60,968,607,744 bytes, bfloat16" in said


MEASURE = """
import sys
from engine.checkpoint import Weights
from engine.config import load_config
{imports}
def peak():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM:"))
before = peak()
config = load_config(sys.argv[1])
{work}
print((peak() - before) * 1024)
"""
OPEN = MEASURE.format(
    imports="from engine.cpu.backend import CpuBackend",
    work="backend = CpuBackend(config, Weights.open(sys.argv[1], config), pages=8, trace=False)",
)
PACK = """
import {xp} as xp
from engine.cuda.weights import PackedWeights
xp.zeros(1)
class Elsewhere(PackedWeights):
    "With numpy as the device: what is packed leaves the host's memory, as it does with a real one."
    matrices = property(lambda self: self.gone, lambda self, value: setattr(self, "gone", Gone()))
class Gone(dict):
    def __setitem__(self, name, packed):
        super().__setitem__(name, packed[:0].copy())
"""
linux = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the peak of resident memory is read from /proc")


def pack(xp: str, kind: str) -> str:
    return MEASURE.format(imports=PACK.format(xp=xp), work=f"{kind}(config, Weights.open(sys.argv[1], config), xp)")


def measure(script, directory) -> tuple[int, list[str]]:
    """(bytes of resident memory that a process took at most beyond its imports, its lines on stderr)."""
    command = [sys.executable, "-c", script, str(directory)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=500)
    assert done.returncode == 0, done.stderr
    print(f"peak {int(done.stdout) / 1e6:.0f} MB")
    return int(done.stdout), done.stderr.strip().splitlines()


@linux
def test_opening_takes_little_memory_and_says_what_it_will_take(model):
    """61 GB of weights: mapped, not read.  KV pages of 49 layers x 2 x 4 heads x 64 tokens x 128 x 4 bytes, 8 of them."""
    peak, said = measure(OPEN, model[0])
    assert peak < 200e6
    plan = said[-1]
    assert plan.startswith("host memory: ") and plan.endswith("; weights 60.97 GB mapped from their files")
    assert "KV pages 0.10 GB, activations " in plan


@linux
def test_packing_holds_one_piece_at_a_time(tmp_path):
    """The same 18,000 tensors with narrow widths: a gigabyte in all, at most 13 MB a piece."""
    narrow = {97: 16_384, 20: 256, 64: 1024, 8: 128, 6: 96, 24: 384, 128: 128}
    write_north_mini(tmp_path, narrow)
    total = PackedWeights.bytes_needed(load_config(tmp_path))
    peak, said = measure(pack("numpy", "Elsewhere"), tmp_path)
    assert peak < 120e6 < 900e6 < total
    assert len(said) == (10 if total >= 1e9 else 0)


@pytest.mark.gpu
@pytest.mark.timeout(600)
@linux
def test_packing_61_gb_onto_a_gpu(model):
    """Host memory holds a piece of at most 1.1 GB and what it is made of; each tenth is told."""
    pytest.importorskip("cupy")
    peak, said = measure(pack("cupy", "PackedWeights"), model[0])
    assert peak < 4e9
    assert said[-10].startswith("packing weights: 6.") and said[-1] == "packing weights: 61.0 of 61.0 GB"


def tokens_of_zeros(engine) -> list[list[int]]:
    """What a greedy request and one that is drawn get, after prompts of a hundred tokens."""
    asks = [SamplingParams(max_tokens=4, ignore_eos=True, temperature=t, seed=5) for t in (0.0, 1.0)]
    sequences = [engine.submit(list(range(10, 110)), ask) for ask in asks]
    tokens = [[piece.token for piece in engine.stream(s)] for s in sequences]
    zeros = np.zeros(engine.config.vocab, np.float32)  # holes are zero weights: every token is as likely as any other
    assert tokens == [[pick(zeros, ask, 99 + i) for i in range(4)] for ask in asks]
    return tokens


@pytest.mark.gpu
@pytest.mark.timeout(600)
@linux
def test_the_engine_runs_it_on_a_gpu(model, capfd):
    """The whole model from its directory: as many pages as fit beside 61 GB, prompts in wide steps, tokens from the kernel."""
    pytest.importorskip("cupy")
    engine = Engine(str(model[0]), backend="cuda", trace=False)
    plan = next(line for line in capfd.readouterr().err.splitlines() if line.startswith("memory of "))
    print(plan)
    assert "weights 60.97 GB" in plan and "margin" in plan and f"{engine.pool.total:,} KV pages" in plan
    greedy, drawn = tokens_of_zeros(engine)
    assert greedy == [0] * 4 and len(set(drawn)) == 4
    assert engine.stats().steps <= 4 + 4  # 200 tokens of prompts in steps of 64 rows
    engine.close()
