"""The torch baseline: unpacking against the matrices that were packed, and its logits against transformers', in float32."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from checkpoints import ODD, make_checkpoint

from engine.bench import unpack
from engine.bench.baseline import TorchLaunch
from engine.bench.torch_decode import Ops, Recipe, TorchDecode, TorchWeights
from engine.bench.torch_ops import ATTENTION, EXPERTS
from engine.checkpoint import Weights
from engine.config import load_config
from engine.cuda.pack_pieces import pieces
from engine.cuda.weights import PackedWeights
from engine.tiling import PAGE
from mkviz.errors import MkvizError

CASES = ["cohere-sigmoid-renormalised", "cohere-softmax", "cohere-layernorm", "cohere-shared-sum", "cohere-bias-untied",
         "llama-yarn", "llama-biases", "qwen3-untied", "qwen3moe-renormalised"]  # fmt: skip
WAYS = [("sdpa", "gathered"), ("products", "grouped"), ("sdpa grouped", "matvec")]
TOKENS = 30  # beyond the window of 24


def opened(directory, name):
    """(transformers model, config, weights of the files) of an odd checkpoint, stored in bf16."""
    family, settings = ODD[name]
    model = make_checkpoint(directory, family, **(settings | {"storage": "bfloat16"}))
    config = load_config(directory)
    return model, config, Weights.open(directory, config)


def bits(weights, name) -> np.ndarray:
    return np.ascontiguousarray(weights.get(name)).view(np.uint16)


@pytest.mark.parametrize("name", ["cohere-shared-sum", "cohere-bias-untied", "llama-default"])
def test_what_is_unpacked_is_what_was_packed(tmp_path, name):
    _, c, weights = opened(tmp_path, name)
    packed = {piece.name: piece.pack(lambda n: bits(weights, n), np) for piece in pieces(c)}
    assert np.array_equal(unpack.matrix(packed["head"], c.hidden, np)[: c.vocab], bits(weights, "head"))
    for i, spec in enumerate(c.layers):
        at = f"layers.{i}."
        rows = np.concatenate([bits(weights, at + m) for m in "qkv"])
        assert np.array_equal(unpack.qkv(packed[at + "qkv"], c, np), rows)
        assert np.array_equal(unpack.matrix(packed[at + "o"], c.heads * c.head_dim, np), bits(weights, at + "o"))
        owners = [f"{at}experts.{e}." for e in range(c.experts)] if spec.mlp == "moe" else [at]
        gate_up = unpack.gate_over_up(packed[at + "up"], c.hidden, len(owners), np)
        down = unpack.matrix(packed[at + "down"], spec.width, np).reshape(len(owners), c.hidden, spec.width)
        for owner, both, last in zip(owners, gate_up, down, strict=True):
            assert np.array_equal(both, np.concatenate([bits(weights, owner + "gate"), bits(weights, owner + "up")]))
            assert np.array_equal(last, bits(weights, owner + "down"))


def test_pages_come_back_as_keys_and_values():
    """Where the kernel puts element (token, d): rows of a K page are keys, rows of a V page are elements (packed_index of
    cuda/block.cuh, held against the packing by test_cuda_build)."""
    c = SimpleNamespace(layers=(0, 0), kv_heads=2, head_dim=32)

    def packed_index(row, k, k16):
        r, inner = row & 15, k & 15
        fragment = ((row >> 4) * k16 + (k >> 4)) * 32 + (r & 7) * 4 + ((inner & 7) >> 1)
        return fragment * 8 + ((inner >> 3) * 2 + (r >> 3)) * 2 + (inner & 1)

    kv = np.zeros((3, 2, 2, 2, PAGE * 32), np.uint16)  # pages, layers, KV heads, K and V
    rng = np.random.default_rng(0)
    keys, values = rng.integers(1 << 16, size=(2, 2, 2 * PAGE, 32)).astype(np.uint16)
    ids = np.array([2, 0])
    for head in range(2):
        for token in range(2 * PAGE):
            page = kv[ids[token // PAGE], 1, head]
            for d in range(32):
                page[0, packed_index(token % PAGE, d, 2)] = keys[head, token, d]
                page[1, packed_index(d, token % PAGE, PAGE // 16)] = values[head, token, d]
    k, v = unpack.pages(kv.reshape(3, -1), c, 1, ids, np)
    assert np.array_equal(k, keys) and np.array_equal(v, values)


def decoded(model, config, weights, recipe, ops=Ops):
    """Logits of the baseline and of transformers, f32[rows, tokens, vocab], for two sequences fed token by token."""
    packed = PackedWeights(config, weights, np)
    for at in (f"layers.{i}." for i in range(len(config.layers) * config.qk_norm)):
        norms = [np.asarray(weights.get(at + name), np.float32) for name in ("q_norm", "k_norm")]
        packed.vectors[at + "head_norm"] = np.concatenate(norms)
    rng = np.random.default_rng(1)
    tokens = torch.from_numpy(rng.integers(3, config.vocab, (2, TOKENS)))
    decode = TorchDecode(config, TorchWeights(config, packed.matrices, packed.vectors, np, torch.float32),
                         {recipe.compiled: ops(config)}, 2, TOKENS)  # fmt: skip
    ours = []
    for position in range(TOKENS):
        decode.token.copy_(tokens[:, position])
        ours.append(decode.step(position, decode.angles(position), recipe))
        assert torch.equal(decode.token, ours[-1].argmax(-1))
    with torch.no_grad():
        theirs = model(tokens).logits
    return torch.stack(ours, 1), theirs


@pytest.mark.parametrize("name", CASES)
def test_logits_are_those_of_transformers(tmp_path, name):
    model, config, weights = opened(tmp_path, name)
    ours, theirs = decoded(model, config, weights, Recipe("sdpa grouped", "gathered"))
    assert torch.linalg.norm(ours - theirs) < 2e-5 * torch.linalg.norm(theirs)


def test_no_way_is_left_out():
    assert {name for name, _ in WAYS} == set(ATTENTION) - {"flex"}  # which is only there compiled
    assert {name for _, name in WAYS} == set(EXPERTS)


@pytest.mark.parametrize(("attention", "experts"), WAYS)
def test_every_way_computes_the_same(tmp_path, attention, experts):
    model, config, weights = opened(tmp_path, "cohere-shared-average")
    ours, theirs = decoded(model, config, weights, Recipe(attention, experts))
    assert torch.linalg.norm(ours - theirs) < 2e-5 * torch.linalg.norm(theirs)


@pytest.mark.parametrize("name", ["cohere-shared-average", "llama-biases"])
def test_the_parts_trace_whole(tmp_path, name):
    """What torch.compile is given has no break, and is traced once for all layers of a kind."""
    torch._dynamo.reset()
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    model, config, weights = opened(tmp_path, name)
    compiled = lambda config: Ops(config, lambda f: torch.compile(f, backend=backend, fullgraph=True, dynamic=False))  # noqa: E731
    ours, theirs = decoded(model, config, weights, Recipe("sdpa", "matvec", True), compiled)
    assert torch.linalg.norm(ours - theirs) < 2e-5 * torch.linalg.norm(theirs)
    kinds = {(spec.rope,) for spec in config.layers}, {spec.mlp for spec in config.layers}
    assert len(graphs) == len(kinds[0]) + len(kinds[1]) + 1  # before attention, after it, the head


def test_a_wrong_window_or_router_is_noticed(tmp_path):
    model, config, weights = opened(tmp_path, "cohere-sigmoid")
    for wrong in (replace(config, window=23), replace(config, renormalise=True), replace(config, rope_style="half")):
        ours, theirs = decoded(model, wrong, weights, Recipe("sdpa", "gathered"))
        assert torch.linalg.norm(ours - theirs) > 1e-3 * torch.linalg.norm(theirs)


def test_a_way_that_computes_something_else_is_not_chosen(monkeypatch):
    """However fast it is; it is told that it failed, and why."""
    launch = object.__new__(TorchLaunch)
    launch.recipe, launch.tried = Recipe(), []
    found = {"sdpa": (0.01, 3.0), "products": (1.4, 1.0), "sdpa grouped": (0.02, 2.0), "flex": (float("nan"), 0.5)}

    def opened(recipe):
        launch.distance, launch.ms = found[recipe.attention]

    monkeypatch.setattr(launch, "_open", opened)
    monkeypatch.setattr(launch, "launch", lambda steps: launch.ms)
    launch.choose(1, [[{"attention": name} for name in found]])
    assert launch.recipe.attention == "sdpa grouped"
    failed = {way["attention"]: way["failed"] for way in launch.tried if "failed" in way}
    assert failed == {"products": "ValueError: logits 1.4 apart from ours", "flex": "ValueError: logits nan apart from ours"}
    with pytest.raises(MkvizError, match=r"--baseline: no way of .*products.* ran; see ValueError: logits 1.4 apart"):
        launch.choose(1, [[{"attention": "products"}]])
