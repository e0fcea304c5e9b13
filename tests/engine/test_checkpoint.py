"""Weights against the tensors that transformers holds, and every way in which files can be wrong."""

import json
import shutil
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from checkpoints import ODD, make_checkpoint, make_odd

from engine.checkpoint import Weights
from engine.config import load_config
from mkviz.errors import MkvizError

NAMES = {
    "norm": "input_layernorm.weight", "norm2": "post_attention_layernorm.weight", "router": "mlp.gate.weight",
    "q_norm": "self_attn.q_norm.weight", "k_norm": "self_attn.k_norm.weight",
}  # fmt: skip


def open_weights(directory):
    return Weights.open(directory, load_config(directory))


def reference(model):
    """Canonical name -> float32 array, from the modules of a transformers model (where experts are always fused)."""
    state = {k: v.float().numpy() for k, v in model.state_dict().items()}
    out = {"embed": state["model.embed_tokens.weight"], "norm": state["model.norm.weight"], "head": state["lm_head.weight"]}
    for i in range(model.config.num_hidden_layers):
        here = {k.removeprefix(f"model.layers.{i}."): v for k, v in state.items() if k.startswith(f"model.layers.{i}.")}
        for short, source in NAMES.items():
            if source in here:
                out[f"layers.{i}.{short}"] = here[source]
        for source, value in here.items():
            parts = source.split(".")
            if parts[-2].endswith("_proj"):
                prefix = "shared." if "shared_experts" in source else ""
                suffix = "_bias" if parts[-1] == "bias" else ""
                out[f"layers.{i}.{prefix}{parts[-2].removesuffix('_proj')}{suffix}"] = value
        if "mlp.experts.gate_up_proj" in here:
            for e, (both, down) in enumerate(zip(here["mlp.experts.gate_up_proj"], here["mlp.experts.down_proj"], strict=True)):
                gate, up = np.split(both, 2)
                out |= {f"layers.{i}.experts.{e}.{n}": v for n, v in (("gate", gate), ("up", up), ("down", down))}
    return out


@pytest.mark.parametrize("name", ODD)
def test_every_tensor_equals_the_reference(tmp_path, name):
    expected = reference(make_odd(tmp_path, name))
    weights = open_weights(tmp_path)
    assert set(weights) == set(expected)
    for key, value in expected.items():
        got = weights.get(key)
        assert got.dtype.name == ODD[name][1].get("storage", "float32")
        assert got.flags.c_contiguous and got.flags.aligned and not got.flags.writeable
        np.testing.assert_array_equal(got.astype(np.float32), value, err_msg=key)


def test_nothing_is_copied(tmp_path):
    make_checkpoint(tmp_path, "qwen3_moe", fused=True)
    weights = open_weights(tmp_path)
    gate, up, down = (weights.get(f"layers.0.experts.3.{n}") for n in ("gate", "up", "down"))
    row = 64 * 4  # bytes of one row of hidden_size 64 in float32
    assert up.ctypes.data - gate.ctypes.data == 32 * row  # up follows its expert's gate in the fused tensor
    assert weights.get("layers.0.experts.4.gate").ctypes.data - gate.ctypes.data == 2 * 32 * row
    assert not down.flags.owndata
    assert weights.source_bytes == sum(weights.get(n).nbytes for n in weights)  # untied: nothing is counted twice


def test_source_bytes_counts_the_tied_embedding_once(tmp_path):
    model = make_checkpoint(tmp_path, "llama", tie_word_embeddings=True, storage="bfloat16")
    weights = open_weights(tmp_path)
    assert weights.parameters == sum(p.numel() for p in model.parameters())
    assert weights.source_bytes == 2 * weights.parameters
    assert weights.get("head") is weights.get("embed")
    assert weights.dtypes == ("bfloat16",)


@pytest.fixture(scope="module")
def single(tmp_path_factory):
    directory = tmp_path_factory.mktemp("single")
    make_checkpoint(directory, "llama", num_hidden_layers=1, tie_word_embeddings=True)
    return directory


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    directory = tmp_path_factory.mktemp("shards")
    make_checkpoint(directory, "llama", num_hidden_layers=2, sharded=True)
    return directory


@pytest.fixture
def copy(single, tmp_path):
    return Path(shutil.copytree(single, tmp_path / "model"))


@pytest.fixture
def copy_shards(shards, tmp_path):
    return Path(shutil.copytree(shards, tmp_path / "model"))


def header_of(file):
    data = file.read_bytes()
    (n,) = struct.unpack("<Q", data[:8])
    return json.loads(data[8 : 8 + n]), data[8 + n :]


def write(file, header, body):
    text = json.dumps(header).encode()
    file.write_bytes(struct.pack("<Q", len(text)) + text + body)


def refused(directory, *words):
    with pytest.raises(MkvizError) as caught:
        open_weights(directory)
    message = str(caught.value)
    assert "\n" not in message
    for word in words:
        assert word in message, message


def test_no_weights(copy):
    (copy / "model.safetensors").unlink()
    refused(copy, str(copy), "no weights", "model.safetensors")


@pytest.mark.parametrize("keep", [0, 4, 8, 100, -1, -5000])
def test_cut_short(copy, keep):
    file = copy / "model.safetensors"
    data = file.read_bytes()
    file.write_bytes(data[:keep])
    refused(copy, str(file), "cut short")


def test_bytes_after_the_end(copy):
    file = copy / "model.safetensors"
    file.write_bytes(file.read_bytes() + b"\0" * 12)
    refused(copy, str(file), "12 bytes follow")


def test_header_is_noise(copy):
    file = copy / "model.safetensors"
    data = bytearray(file.read_bytes())
    data[8:40] = bytes(range(200, 232))
    file.write_bytes(data)
    refused(copy, str(file), "not JSON")


def test_header_length_beyond_reason(copy):
    file = copy / "model.safetensors"
    file.write_bytes(struct.pack("<Q", 1 << 60) + file.read_bytes()[8:])
    refused(copy, str(file), "not a safetensors file")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"shape": [64, -1]}, ["malformed"]),
        ({"shape": "64"}, ["malformed"]),
        ({"data_offsets": [0]}, ["malformed"]),
        ({"dtype": 7}, ["malformed"]),
        ({"data_offsets": [4, 1]}, ["bytes for shape"]),
        ({"shape": [64, 65]}, ["bytes for shape"]),
        ({"dtype": "F16"}, ["bytes for shape"]),
    ],
)
def test_header_entry_is_wrong(copy, change, words):
    file = copy / "model.safetensors"
    header, body = header_of(file)
    header["model.layers.0.self_attn.q_proj.weight"] |= change
    write(file, header, body)
    refused(copy, str(file), "model.layers.0.self_attn.q_proj.weight", *words)


def test_ranges_overlap(copy):
    file = copy / "model.safetensors"
    header, body = header_of(file)
    q, o = (header[f"model.layers.0.self_attn.{n}_proj.weight"] for n in "qo")
    o["data_offsets"] = q["data_offsets"]
    write(file, header, body)
    refused(copy, str(file), "begins at byte")


def test_dtype_is_not_a_weight_dtype(copy):
    file = copy / "model.safetensors"
    header, body = header_of(file)
    header["model.norm.weight"]["dtype"] = "I32"
    write(file, header, body)
    refused(copy, str(file), "model.norm.weight", "I32", "BF16")


def test_shape_disagrees_with_config(copy):
    file = copy / "model.safetensors"
    header, body = header_of(file)
    header["model.layers.0.mlp.up_proj.weight"]["shape"] = [64, 48]
    write(file, header, body)
    refused(copy, str(file), "model.layers.0.mlp.up_proj.weight", "(64, 48)", "(48, 64)")


def test_tensor_is_missing(copy):
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps(config | {"attention_bias": True}))
    refused(copy, "model.safetensors", "model.layers.0.self_attn.q_proj.bias", "missing")


def test_tensor_has_no_place(copy):
    file = copy / "model.safetensors"
    header, body = header_of(file)
    header["model.layers.0.self_attn.sinks"] = {"dtype": "F32", "shape": [4], "data_offsets": [len(body), len(body) + 16]}
    write(file, header, body + b"\0" * 16)
    refused(copy, str(file), "model.layers.0.self_attn.sinks", "no place")


def test_rotary_buffers_are_ignored(copy):
    file = copy / "model.safetensors"
    header, body = header_of(file)
    header["model.layers.0.self_attn.rotary_emb.inv_freq"] = {
        "dtype": "F32", "shape": [8], "data_offsets": [len(body), len(body) + 32]
    }  # fmt: skip
    write(file, header, body + b"\0" * 32)
    assert "embed" in open_weights(copy)


@pytest.mark.parametrize("same", [True, False])
def test_stored_head_of_a_tied_model(copy, same):
    file = copy / "model.safetensors"
    header, body = header_of(file)
    begin, end = header["model.embed_tokens.weight"]["data_offsets"]
    head = bytearray(body[begin:end])
    if not same:
        head[100] ^= 1
    header["lm_head.weight"] = header["model.embed_tokens.weight"] | {"data_offsets": [len(body), len(body) + len(head)]}
    write(file, header, body + head)
    if same:
        assert open_weights(copy).get("head").shape == (97, 64)
    else:
        refused(copy, str(file), "lm_head.weight", "tie_word_embeddings")


def test_unaligned_file_still_gives_aligned_tensors(copy):
    file = copy / "model.safetensors"
    before = {name: np.array(open_weights(copy).get(name)) for name in open_weights(copy)}
    header, body = header_of(file)
    text = json.dumps(header).encode()
    text += b" " * ((1 - len(text)) % 4)  # header length of 1 modulo 4
    file.write_bytes(struct.pack("<Q", len(text)) + text + body)
    weights = open_weights(copy)
    assert all(weights.get(n).flags.aligned for n in weights)
    for name, value in before.items():
        np.testing.assert_array_equal(weights.get(name), value)


def shard_index(directory):
    file = directory / "model.safetensors.index.json"
    return file, json.loads(file.read_text())


def test_shard_is_missing(copy_shards):
    file, index = shard_index(copy_shards)
    shard = sorted(set(index["weight_map"].values()))[1]
    (copy_shards / shard).unlink()
    refused(copy_shards, str(copy_shards / shard), "no such file", file.name)


def test_shard_is_cut_short(copy_shards):
    _, index = shard_index(copy_shards)
    shard = copy_shards / sorted(set(index["weight_map"].values()))[-1]
    shard.write_bytes(shard.read_bytes()[:-7])
    refused(copy_shards, str(shard), "cut short")


@pytest.mark.parametrize("name", ["../other.safetensors", "/etc/passwd"])
def test_index_points_outside(copy_shards, name):
    file, index = shard_index(copy_shards)
    index["weight_map"]["model.norm.weight"] = name
    file.write_text(json.dumps(index))
    refused(copy_shards, str(file), name)


def test_index_lacks_an_entry(copy_shards):
    file, index = shard_index(copy_shards)
    del index["weight_map"]["model.norm.weight"]
    file.write_text(json.dumps(index))
    refused(copy_shards, "model.norm.weight", file.name)


def test_index_names_a_tensor_that_is_not_there(copy_shards):
    file, index = shard_index(copy_shards)
    index["weight_map"]["model.extra.weight"] = index["weight_map"]["model.norm.weight"]
    file.write_text(json.dumps(index))
    refused(copy_shards, "model.extra.weight", "missing")


@pytest.mark.parametrize("text", ["{", "[]", '{"weight_map": 3}', '{"weight_map": {"a": 1}}'])
def test_index_is_malformed(copy_shards, text):
    file, _ = shard_index(copy_shards)
    file.write_text(text)
    refused(copy_shards, str(file))


def test_stored_values_are_the_rounded_ones(tmp_path):
    """The helper itself: what it returns is what it wrote, bit for bit."""
    model = make_checkpoint(tmp_path, "qwen3_moe", storage="bfloat16")
    again = type(model).from_pretrained(tmp_path, dtype=torch.float32)
    for (name, a), (_, b) in zip(model.named_parameters(), again.named_parameters(), strict=True):
        assert torch.equal(a, b), name
