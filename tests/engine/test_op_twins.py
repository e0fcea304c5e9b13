"""Every op of the interpreter by itself against the module of transformers that it stands for, in models of one layer.

One layer, so that what each op left is still there after the step.
"""

import sys

import numpy as np
import pytest
import torch
from checkpoints import make_checkpoint
from rows import Rows, open_backend

ROWS = 21
NOISE = 4e-6  # of the largest value: f32 sums in another order
_LAYER = {"num_hidden_layers": 1, "head_dim": 24, "num_key_value_heads": 1}
_COHERE = _LAYER | {"layer_types": ["sliding_attention"], "mlp_layer_types": ["sparse"], "sliding_window": 9}
MODELS = {
    "llama": ("llama", _LAYER | {"attention_bias": True, "mlp_bias": True}),
    "llama-linear": ("llama", _LAYER | {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 3.0}}),
    "qwen3": ("qwen3", _LAYER | {"attention_bias": True}),
    "qwen3-window": ("qwen3", _LAYER | {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 0}),
    "qwen3moe": ("qwen3_moe", _LAYER | {"norm_topk_prob": False}),
    "qwen3moe-renormalised": ("qwen3_moe", _LAYER | {"norm_topk_prob": True, "attention_bias": True}),
    "cohere-sigmoid": ("cohere2_moe", _COHERE | {"expert_selection_fn": "sigmoid", "norm_topk_prob": False}),
    "cohere-softmax-shared": ("cohere2_moe", _COHERE | {"expert_selection_fn": "softmax", "num_shared_experts": 2}),
    "cohere-dense": ("cohere2_moe", _COHERE | {"mlp_layer_types": ["dense"], "prefix_dense_sliding_window_pattern": 1}),
}


def listen(model, monkeypatch, tokens) -> dict[str, np.ndarray]:
    """What each module of the layer takes or gives, by the name of the op that makes it; [rows, …]."""
    heard = {}

    def keep(name, pick=lambda inputs, output: output):
        return lambda module, inputs, output: heard.update({name: pick(inputs, output)})

    def eager(module, query, key, value, *args, **kwargs):
        heard.update(q=query.transpose(1, 2), k=key.transpose(1, 2), v=value.transpose(1, 2))
        return original(module, query, key, value, *args, **kwargs)

    home = sys.modules[type(model).__module__]
    original = home.eager_attention_forward
    monkeypatch.setattr(home, "eager_attention_forward", eager)
    layer = model.model.layers[0]
    model.model.embed_tokens.register_forward_hook(keep("embed"))
    layer.self_attn.o_proj.register_forward_hook(keep("attention", lambda inputs, output: inputs[0]))
    layer.mlp.register_forward_hook(keep("down"))
    model.model.norm.register_forward_hook(keep("x", lambda inputs, output: inputs[0]))
    if hasattr(layer, "post_attention_layernorm"):
        layer.post_attention_layernorm.register_forward_hook(keep("o_proj", lambda inputs, output: inputs[0]))
    else:
        layer.self_attn.o_proj.register_forward_hook(keep("o_proj"))
    if hasattr(layer.mlp, "gate"):
        gate = layer.mlp.gate
        gate.register_forward_hook(keep("router", lambda inputs, output: torch.nn.functional.linear(inputs[0], gate.weight)))
        layer.mlp.experts.register_forward_hook(keep("chosen", lambda inputs, output: inputs[1]))
        layer.mlp.experts.register_forward_hook(keep("weight", lambda inputs, output: inputs[2]))
        if hasattr(layer.mlp, "shared_experts"):
            layer.mlp.shared_experts.down_proj.register_forward_hook(keep("shared_up", lambda inputs, output: inputs[0]))
    else:
        layer.mlp.down_proj.register_forward_hook(keep("dense_up", lambda inputs, output: inputs[0]))
    with torch.no_grad():
        heard["lm_head"] = model(torch.tensor([tokens])).logits
    return {name: value.reshape(ROWS, -1).numpy() for name, value in heard.items()}


def run(directory, tokens) -> dict[str, np.ndarray]:
    """The same from the interpreter's memory after one step of all rows."""
    backend = open_backend(directory, workers=1)
    rows = Rows(backend, [tokens])
    rows.step([ROWS])
    a, c = backend._arrays, backend.config
    scratch = backend._scratch[0][1]
    kv = a["kv"][rows._pages[0][0], 0, :, :, :ROWS]  # [K or V, head, row, …]
    out = {name: a[array][:ROWS] for name, array in (("q", "q"), ("attention", "attention"), ("o_proj", "mid"))}
    out |= {"embed": a["x"][0, :ROWS], "x": a["x"][1, :ROWS], "k": kv[0].swapaxes(0, 1), "v": kv[1].swapaxes(0, 1)}
    before = out["o_proj"] + out["embed"] if c.parallel else out["o_proj"]
    out |= {"down": out["x"] - before, "lm_head": rows.logits[0]}
    if c.experts:
        out |= {"router": a["router"][:ROWS], "chosen": scratch["chosen"][:ROWS], "weight": scratch["weight"][:ROWS]}
        if c.shared_width:
            out["shared_up"] = a["shared_hidden"][:ROWS]
    else:
        out["dense_up"] = a["dense_hidden"][:ROWS]
    assert np.array_equal(rows.results[0].greedy, rows.logits[0].argmax(1))  # pick
    return {name: value.reshape(ROWS, -1) for name, value in out.items()}


@pytest.mark.parametrize("name", MODELS)
def test_each_op(tmp_path, monkeypatch, name):
    family, settings = MODELS[name]
    model = make_checkpoint(tmp_path, family, **settings)
    tokens = np.random.default_rng(4).integers(0, model.config.vocab_size, ROWS).tolist()
    theirs, ours = listen(model, monkeypatch, tokens), run(tmp_path, tokens)
    assert theirs.keys() == ours.keys()
    if "chosen" in theirs:  # ascending ids here, descending weights there
        order = np.argsort(theirs["chosen"], 1)
        theirs |= {k: np.take_along_axis(theirs[k], order, 1) for k in ("chosen", "weight")}
    for op, value in theirs.items():
        noise = np.abs(ours[op] - value).max() / np.abs(value).max()
        assert noise <= NOISE, f"{op}: {noise:.1e} of the largest value"
