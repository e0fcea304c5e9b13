"""The plan of memory: told where it is large, refused where it does not fit; the KV cache that an engine takes unasked."""

import pytest
from checkpoints import make_checkpoint
from rows import demo_directory

from engine.checkpoint import Weights
from engine.config import load_config
from engine.cpu import backend as cpu
from engine.cpu.params import load_params, widened_bytes
from engine.engine import Engine
from engine.memory_plan import MemoryPlan, free_host_memory
from engine.progress import Progress
from mkviz.errors import MkvizError


def test_a_large_plan_is_told(capsys):
    MemoryPlan("host memory", {"KV pages": 2_500_000_000, "widened weights": 0}, 4_000_000_000, 60_968_607_744).enter("less")
    said = capsys.readouterr().err
    assert said == ("host memory: 2.50 GB needed (KV pages 2.50 GB), 4.00 GB free; weights 60.97 GB mapped from their files\n")
    MemoryPlan("host memory", {"KV pages": 999_000_000}, 4_000_000_000).enter("less")
    assert capsys.readouterr().err == ""


def test_a_plan_that_does_not_fit(monkeypatch, tmp_path):
    """4 layers x 2 x 2 KV heads x 64 tokens x 16 x 4 bytes are 65,536 bytes a page."""
    make_checkpoint(tmp_path, "llama")
    config = load_config(tmp_path)
    monkeypatch.setattr(cpu, "free_host_memory", lambda: 1_000_000_000)
    monkeypatch.setattr(cpu, "load_params", None)  # nothing is loaded
    with pytest.raises(MkvizError) as error:
        cpu.CpuBackend(config, Weights.open(tmp_path, config), pages=20_000, trace=False)
    assert str(error.value).startswith("host memory: 1.31 GB needed (KV pages 1.31 GB, activations 0.00 GB), 1.00 GB free")
    assert str(error.value).endswith("; a shorter --context, fewer --pages, or a smaller model")


def test_a_context_that_does_not_fit_is_told_how_to_shorten_it(monkeypatch, tmp_path):
    """Partial results of attention: rows x 4 heads x splits x (16 + 2) x 4 bytes, whatever the pages."""
    make_checkpoint(tmp_path, "llama", max_position_embeddings=1 << 32)
    config = load_config(tmp_path)
    weights = Weights.open(tmp_path, config)
    monkeypatch.setattr(cpu, "free_host_memory", lambda: 1_000_000_000)
    with pytest.raises(MkvizError, match=r"activations [1-9].*; a shorter --context, fewer --pages, or a smaller model"):
        cpu.CpuBackend(config, weights, pages=8, trace=False)
    cpu.CpuBackend(config.within(4096), weights, pages=8, trace=False).close()


@pytest.mark.parametrize("storage", ["bfloat16", "float16", "float32"])
def test_widened_bytes_are_those_that_loading_copies(tmp_path, storage):
    make_checkpoint(tmp_path, "qwen3_moe", storage=storage)
    config = load_config(tmp_path)
    weights = Weights.open(tmp_path, config)
    params = load_params(config, weights, "fp32")
    copied = {id(a): a.nbytes for name, a in params.matrices.items() if a is not weights.get(name) and a.flags.owndata}
    assert widened_bytes(config, weights) == params.widened_bytes == sum(copied.values())
    assert (params.widened_bytes > 0) == (storage == "float16")


def test_pages_taken_unasked_leave_half_of_the_memory(monkeypatch, tmp_path):
    """A context of 512 tokens is 8 pages of 65,536 bytes: 64 for eight requests, or as many as half of what is free holds."""
    make_checkpoint(tmp_path, "llama", vocab_size=8192)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((demo_directory() / name).read_bytes())
    for free, pages in ((10_000_000_000, 64), (5 * 2 * 65_536, 5)):
        monkeypatch.setattr("engine.backends.free_host_memory", lambda free=free: free)
        engine = Engine(str(tmp_path), sms=2, workers=1)
        assert engine.pool.total == pages
        engine.close()


def test_free_memory_is_a_plausible_number_of_bytes():
    assert 1e7 < free_host_memory() < 1e14


def test_progress_speaks_at_each_tenth(capsys):
    progress = Progress("packing weights", 60_000_000_000)
    for _ in range(60):
        progress.add(1_000_000_000)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "packing weights: 6.0 of 60.0 GB" and lines[-1] == "packing weights: 60.0 of 60.0 GB"
    assert len(lines) == 10
    Progress("packing weights", 999_999_999).add(999_999_999)
    assert capsys.readouterr().err == ""
