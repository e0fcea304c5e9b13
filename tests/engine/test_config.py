"""ModelConfig against transformers' own modules, against hand-read facts of released configs, and its refusals."""

import json
from dataclasses import FrozenInstanceError, replace
from pathlib import Path

import numpy as np
import pytest
from checkpoints import ODD, build_model

import engine
from engine.config import LayerSpec, load_config
from mkviz.errors import MkvizError

LLAMA = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 97, "hidden_size": 64,
    "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu",
}  # fmt: skip
COHERE = {
    "model_type": "cohere2_moe", "vocab_size": 97, "hidden_size": 64, "intermediate_size": 48, "num_hidden_layers": 5,
    "num_attention_heads": 4, "max_position_embeddings": 512, "num_experts": 8, "num_experts_per_tok": 2,
    "sliding_window": 16,
}  # fmt: skip
QWEN = LLAMA | {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "num_key_value_heads": 2}
QWEN_MOE = QWEN | {
    "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "moe_intermediate_size": 32, "num_experts": 8,
    "num_experts_per_tok": 2,
}  # fmt: skip


def load(tmp_path, values, generation=None):
    (tmp_path / "config.json").write_text(json.dumps(values))
    if generation is not None:
        (tmp_path / "generation_config.json").write_text(json.dumps(generation))
    return load_config(tmp_path)


@pytest.mark.parametrize("name", ODD)
def test_agrees_with_the_modules_of_transformers(tmp_path, name):
    family, settings = ODD[name]
    settings = {k: v for k, v in settings.items() if k not in ("storage", "sharded", "fused")}
    model = build_model(family, **settings)
    model.config.save_pretrained(tmp_path)
    c = load_config(tmp_path)
    rotary, layers = model.model.rotary_emb, model.model.layers

    # float32 powers of two libraries may differ in the last place
    np.testing.assert_allclose(c.inv_freq(), rotary.inv_freq.numpy(), rtol=5e-7)
    assert c.inv_freq().dtype == np.float32
    assert c.rope_scale == pytest.approx(rotary.attention_scaling, rel=1e-12)
    assert c.rope_style == ("interleaved" if family == "cohere2_moe" else "half")
    assert (c.vocab, c.hidden) == tuple(model.model.embed_tokens.weight.shape)
    assert c.tied == model.config.tie_word_embeddings
    assert c.logit_scale == getattr(model, "logit_scale", 1.0)
    assert (c.eos, c.bos, c.pad) == ((2,), 1, 0)
    norm = model.model.norm
    assert c.eps == norm.variance_epsilon
    assert c.norm == ("layer" if type(norm).__name__.endswith("LayerNorm") else "rms")
    assert c.parallel == (not hasattr(layers[0], "post_attention_layernorm"))

    windows = set()
    for spec, layer in zip(c.layers, layers, strict=True):
        attention, mlp = layer.self_attn, layer.mlp
        window = getattr(attention, "sliding_window", None)
        assert spec.attention == ("full" if window is None else "sliding")
        windows.add(window or 0)
        assert spec.rope == (window is not None or attention.force_rope if family == "cohere2_moe" else True)
        assert spec.mlp == ("moe" if hasattr(mlp, "experts") else "dense")
        assert c.heads * c.head_dim == attention.q_proj.out_features
        assert c.kv_heads * c.head_dim == attention.k_proj.out_features
        assert attention.scaling == c.head_dim**-0.5
        assert c.attention_bias == (attention.o_proj.bias is not None)
        assert c.qk_norm == hasattr(attention, "q_norm")
        if spec.mlp == "dense":
            assert spec.width == mlp.gate_proj.out_features
            assert c.mlp_bias == (mlp.down_proj.bias is not None)
            continue
        assert spec.width == mlp.experts.down_proj.shape[-1]
        assert (c.experts, c.top_k) == (mlp.experts.num_experts, mlp.gate.top_k)
        if family == "qwen3_moe":
            assert (c.router, c.renormalise) == ("softmax_all", mlp.gate.norm_topk_prob)
        else:
            sigmoid = mlp.gate.expert_selection_fn == "sigmoid"
            assert c.router == ("sigmoid" if sigmoid else "softmax_chosen")
            assert c.renormalise == (sigmoid and mlp.gate.norm_topk_prob)
        shared = getattr(mlp, "shared_experts", None)
        assert c.shared_width == (shared.gate_proj.out_features if shared else 0)
        if shared:
            assert c.shared_combine == mlp.shared_expert_combination_strategy
    assert c.window == max(windows)
    if not any(spec.mlp == "moe" for spec in c.layers):
        assert (c.experts, c.top_k, c.router, c.shared_width) == (0, 0, "", 0)


def test_demo_model():
    c = load_config(Path(engine.__file__).parent / "demo_model")
    assert [s.attention for s in c.layers] == ["full" if i in (0, 4, 8) else "sliding" for i in range(9)]
    assert [s.rope for s in c.layers] == [i not in (4, 8) for i in range(9)]
    assert c.layers[0] == LayerSpec("full", True, "dense", 768)
    assert c.layers[1] == LayerSpec("sliding", True, "moe", 64)
    assert (c.experts, c.top_k, c.router, c.renormalise, c.window) == (16, 4, "sigmoid", False, 256)
    assert (c.rope_theta, c.logit_scale, c.eos, c.dtype) == (50000.0, 1.0, (6, 9), "bfloat16")
    with pytest.raises(FrozenInstanceError):
        c.hidden = 1


def test_released_smollm2_form(tmp_path):
    """The fields of SmolLM2's config.json as it is published."""
    c = load(
        tmp_path,
        {
            "architectures": ["LlamaForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 1,
            "eos_token_id": 2, "hidden_act": "silu", "hidden_size": 576, "initializer_range": 0.041666666666666664,
            "intermediate_size": 1536, "is_llama_config": True, "max_position_embeddings": 8192, "mlp_bias": False,
            "model_type": "llama", "num_attention_heads": 9, "num_hidden_layers": 30, "num_key_value_heads": 3,
            "pad_token_id": 2, "pretraining_tp": 1, "rms_norm_eps": 1e-05, "rope_interleaved": False, "rope_scaling": None,
            "rope_theta": 100000, "tie_word_embeddings": True, "torch_dtype": "bfloat16",
            "transformers.js_config": {"kv_cache_dtype": {"q4f16": "float16"}}, "transformers_version": "4.42.3",
            "use_cache": True, "vocab_size": 49152,
        },
    )  # fmt: skip
    assert (c.head_dim, c.kv_heads, c.rope_theta, c.dtype, c.tied) == (64, 3, 100000.0, "bfloat16", True)
    assert c.rope_scaling is None and c.window == 0 and c.layers == (LayerSpec("full", True, "dense", 1536),) * 30


def test_older_rope_form(tmp_path):
    c = load(tmp_path, LLAMA | {"rope_scaling": {"type": "linear", "factor": 2}, "rope_theta": 5e5})
    assert (c.rope_theta, c.rope_scaling) == (5e5, {"rope_type": "linear", "factor": 2})
    plain = load(tmp_path, LLAMA | {"rope_theta": 5e5})
    np.testing.assert_array_equal(c.inv_freq(), plain.inv_freq() / np.float32(2))


def test_older_qwen_form(tmp_path):
    c = load(tmp_path, QWEN_MOE | {"max_window_layers": 48, "use_sliding_window": False, "sliding_window": None})
    assert (c.experts, c.window, c.head_dim) == (8, 0, 16)


def test_cohere_patterns_without_lists(tmp_path):
    c = load(tmp_path, COHERE | {"first_k_dense_replace": 1, "rope_theta": 5e4})
    assert [s.attention for s in c.layers] == ["full", "sliding", "sliding", "sliding", "full"]
    assert [s.mlp for s in c.layers] == ["dense", "moe", "moe", "moe", "moe"]
    assert [s.rope for s in c.layers] == [True, True, True, True, False]
    assert (c.norm, c.eps, c.logit_scale, c.tied, c.router) == ("layer", 1e-5, 0.0625, True, "softmax_chosen")


def test_theta_inside_rope_parameters_wins(tmp_path):
    c = load(tmp_path, COHERE | {"rope_theta": 1e4, "rope_parameters": {"rope_type": "default", "rope_theta": 5e4}})
    assert c.rope_theta == 5e4


def test_generation_config_has_the_word_on_end_tokens(tmp_path):
    assert load(tmp_path, LLAMA | {"eos_token_id": 2}).eos == (2,)
    assert load(tmp_path, LLAMA | {"eos_token_id": 2}, {"eos_token_id": [5, 3, 5]}).eos == (5, 3)
    assert load(tmp_path, LLAMA | {"eos_token_id": 2}, {"temperature": 0.6}).eos == (2,)
    assert load(tmp_path, LLAMA, {}).eos == ()


def test_inert_fields_change_nothing(tmp_path):
    base = load(tmp_path, LLAMA)
    assert load(tmp_path, LLAMA | {"attention_dropout": 0.3, "use_cache": False, "initializer_range": 9}) == base
    assert load(tmp_path, LLAMA | {"dtype": "float16"}) == replace(base, dtype="float16")


REFUSED = {
    "no model type": ({"model_type": None}, ["model_type", "None", "cohere2_moe"]),
    "unknown architecture": ({"model_type": "mamba"}, ["model_type 'mamba'", "llama"]),
    "not a language model": ({"architectures": ["LlamaForSequenceClassification"]}, ["architectures", "LlamaForCausalLM"]),
    "unknown field": ({"attention_sinks": 4}, ["attention_sinks 4", "llama"]),
    "field of another family": ({"num_experts": 4}, ["num_experts 4"]),
    "activation": ({"hidden_act": "gelu"}, ["hidden_act 'gelu'", "silu"]),
    "quantised": ({"quantization_config": {"bits": 4}}, ["quantization_config", "dequantise"]),
    "missing": ({"hidden_size": None}, ["hidden_size", "1 or more"]),
    "zero": ({"num_hidden_layers": 0}, ["num_hidden_layers 0"]),
    "more layers than there can be": ({"num_hidden_layers": 10**7}, ["num_hidden_layers 10000000", "at most 4096"]),
    "text for a number": ({"vocab_size": "97"}, ["vocab_size '97'"]),
    "true for a number": ({"vocab_size": True}, ["vocab_size True"]),
    "text for a flag": ({"attention_bias": "no"}, ["attention_bias 'no'", "true or false"]),
    "heads": ({"num_key_value_heads": 3}, ["num_key_value_heads 3", "num_attention_heads 4"]),
    "odd head": ({"head_dim": 15}, ["head_dim 15", "even"]),
    "heads without room": ({"num_attention_heads": 128}, ["num_attention_heads 128", "hidden_size 64"]),
    "eps": ({"rms_norm_eps": 0}, ["rms_norm_eps 0"]),
    "dtype": ({"torch_dtype": "float8_e4m3fn"}, ["torch_dtype 'float8_e4m3fn'", "bfloat16"]),
    "two dtypes": ({"dtype": "bfloat16", "torch_dtype": "float16"}, ["torch_dtype 'float16'", "dtype 'bfloat16'"]),
    "token": ({"eos_token_id": 97}, ["eos_token_id 97", "vocab_size 97"]),
    "interleaved": ({"rope_interleaved": True}, ["rope_interleaved True", "false"]),
    "dynamic rope": ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, ["rope_scaling.rope_type 'dynamic'", "yarn"]),
    "longrope": ({"rope_parameters": {"rope_type": "longrope"}}, ["rope_parameters.rope_type 'longrope'"]),
    "rope key": ({"rope_parameters": {"rope_type": "default", "mrope_section": [1]}}, ["rope_parameters.mrope_section"]),
    "rope factor": ({"rope_parameters": {"rope_type": "linear"}}, ["rope_parameters.factor None"]),
    "rope zero": ({"rope_parameters": {"rope_type": "yarn", "factor": 0}}, ["rope_parameters.factor 0"]),
    "rope theta": ({"rope_parameters": {"rope_theta": "big"}}, ["rope_parameters.rope_theta 'big'"]),
    "rope theta 1": ({"rope_theta": 1.0}, ["rope_theta 1.0", "above 1"]),
    "partial": ({"rope_parameters": {"partial_rotary_factor": 0.5}}, ["partial_rotary_factor 0.5"]),
    "partial outside": ({"partial_rotary_factor": 0.5}, ["partial_rotary_factor 0.5"]),
    "rope twice": (
        {"rope_parameters": {"rope_type": "default"}, "rope_scaling": {"type": "linear", "factor": 2.0}}, ["not both"],
    ),
    "rope per layer type": ({"rope_parameters": {"full_attention": {"rope_type": "default"}}}, ["full_attention"]),
    "rope is a list": ({"rope_parameters": [1]}, ["rope_parameters [1]"]),
}  # fmt: skip
REFUSED_ELSEWHERE = {
    "cohere rope_scaling": (COHERE, {"rope_scaling": {"type": "linear", "factor": 2.0}}, ["rope_scaling", "null"]),
    "cohere qk norm": (COHERE, {"use_qk_norm": True}, ["use_qk_norm True", "false"]),
    "cohere sequential": (COHERE, {"use_parallel_block": False}, ["use_parallel_block False", "true"]),
    "cohere top-k": (COHERE, {"num_experts_per_tok": 9}, ["num_experts_per_tok 9", "num_experts 8"]),
    "cohere window": (COHERE, {"sliding_window": None}, ["sliding_window None"]),
    "cohere selection": (COHERE, {"expert_selection_fn": "relu"}, ["expert_selection_fn 'relu'", "softmax, sigmoid"]),
    "cohere combination": (COHERE, {"shared_expert_combination_strategy": "max"}, ["'max'", "sum, average"]),
    "cohere list too short": (COHERE, {"layer_types": ["full_attention"]}, ["layer_types", "num_hidden_layers 5"]),
    "cohere list of others": (COHERE, {"mlp_layer_types": ["mamba"] * 5}, ["mlp_layer_types", "dense, sparse"]),
    "qwen slides unasked": (QWEN, {"layer_types": ["sliding_attention", "full_attention"]}, ["use_sliding_window"]),
    "qwen without kv heads": (QWEN, {"num_key_value_heads": None}, ["num_key_value_heads"]),
    "qwen experts twice": (QWEN_MOE, {"num_local_experts": 9}, ["num_local_experts 9", "num_experts, 8"]),
    "qwen dense layers": (QWEN_MOE, {"mlp_only_layers": 3}, ["mlp_only_layers 3"]),
}


@pytest.mark.parametrize("case", [*REFUSED, *REFUSED_ELSEWHERE])
def test_refuses(tmp_path, case):
    base, change, words = (LLAMA, *REFUSED[case]) if case in REFUSED else REFUSED_ELSEWHERE[case]
    load(tmp_path, base)  # the base itself is fine
    with pytest.raises(MkvizError) as caught:
        load(tmp_path, base | change)
    message = str(caught.value)
    assert "\n" not in message and message.startswith("config.json")
    for word in words:
        assert word in message, message


def test_refuses_end_token_of_generation_config(tmp_path):
    with pytest.raises(MkvizError, match=r"generation_config\.json: eos_token_id \[1000\]"):
        load(tmp_path, LLAMA, {"eos_token_id": [1000]})


@pytest.mark.parametrize("text", [None, "{", "[]", b"\xff\xfe"])
def test_refuses_unreadable_files(tmp_path, text):
    if text is not None:
        (tmp_path / "config.json").write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(MkvizError, match=r"config\.json") as caught:
        load_config(tmp_path)
    assert str(tmp_path) in str(caught.value)


def test_refuses_missing_directory(tmp_path):
    with pytest.raises(MkvizError, match="no such directory"):
        load_config(tmp_path / "nowhere")
