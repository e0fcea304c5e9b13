"""Random tiny checkpoints of all four families, written by transformers, with settings that no released model combines.

Weights are scaled so that activations stay near 1, norms and biases are far from their neutral values, and routers have
opinions: a consumer that leaves one of them out gets other logits.
"""

import copy
import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers.models.cohere2_moe import Cohere2MoeConfig, Cohere2MoeForCausalLM
from transformers.models.llama import LlamaConfig, LlamaForCausalLM
from transformers.models.qwen3 import Qwen3Config, Qwen3ForCausalLM
from transformers.models.qwen3_moe import Qwen3MoeConfig, Qwen3MoeForCausalLM

torch.set_num_threads(1)  # products this small only lose by threads, and by much where the cores are busy

_CLASSES = {
    "cohere2_moe": (Cohere2MoeConfig, Cohere2MoeForCausalLM),
    "llama": (LlamaConfig, LlamaForCausalLM),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
    "qwen3_moe": (Qwen3MoeConfig, Qwen3MoeForCausalLM),
}
_BASE = {
    "vocab_size": 97, "hidden_size": 64, "intermediate_size": 48, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 512, "bos_token_id": 1, "eos_token_id": 2,
    "pad_token_id": 0, "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
}  # fmt: skip
_MOE = {"num_experts": 8, "num_experts_per_tok": 3}
_COHERE = _MOE | {
    "layer_types": ["full_attention", "sliding_attention", "sliding_attention", "full_attention"],
    "mlp_layer_types": ["dense", "sparse", "sparse", "sparse"], "prefix_dense_intermediate_size": 112,
    "rms_norm_eps": 1e-6, "sliding_window": 24, "logit_scale": 0.5, "expert_selection_fn": "sigmoid", "norm_topk_prob": False,
}  # fmt: skip
_FAMILY = {
    "cohere2_moe": _COHERE,
    "llama": {},
    "qwen3": {},
    "qwen3_moe": _MOE | {"moe_intermediate_size": 32},
}


def _rope(kind, theta=10000.0, **more):
    return {"rope_parameters": {"rope_type": kind, "rope_theta": theta, **more}}


# name -> (family, settings).  "storage", "sharded" and "fused" say how the file is written; the rest is transformers' config.
ODD = {
    "cohere-sigmoid": ("cohere2_moe", {}),
    "cohere-sigmoid-renormalised": ("cohere2_moe", {"norm_topk_prob": True, "sharded": True}),
    "cohere-softmax": ("cohere2_moe", {"expert_selection_fn": "softmax", "norm_topk_prob": False, "fused": True}),
    "cohere-softmax-renormalised": ("cohere2_moe", {"expert_selection_fn": "softmax", "norm_topk_prob": True}),
    "cohere-layernorm": ("cohere2_moe", {"rms_norm_eps": None, "layer_norm_eps": 1e-3, "storage": "bfloat16"}),
    "cohere-shared-sum": ("cohere2_moe", {"num_shared_experts": 2, "shared_expert_combination_strategy": "sum"}),
    "cohere-shared-average": (
        "cohere2_moe",
        {"num_shared_experts": 1, "shared_expert_combination_strategy": "average", "fused": True, "sharded": True},
    ),
    "cohere-bias-untied": ("cohere2_moe", {"attention_bias": True, "tie_word_embeddings": False, "logit_scale": 1.0}),
    "cohere-wide-heads": ("cohere2_moe", {"num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 24}),
    "cohere-window-5": ("cohere2_moe", {"sliding_window": 5, "storage": "float16"}),
    "cohere-window-1": ("cohere2_moe", {"sliding_window": 1}),
    "cohere-prefix-without-rope": ("cohere2_moe", {"prefix_dense_sliding_window_pattern": 2}),
    "cohere-default-lists": (
        "cohere2_moe",
        {
            "layer_types": None, "mlp_layer_types": None, "first_k_dense_replace": 2, "num_hidden_layers": 7,
            "prefix_dense_sliding_window_pattern": 2, "sliding_window_pattern": 3, "prefix_dense_intermediate_size": None,
        },
    ),
    "cohere-yarn": ("cohere2_moe", _rope("yarn", 5e4, factor=8.0, original_max_position_embeddings=16)),
    "cohere-all-sparse": ("cohere2_moe", {"mlp_layer_types": ["sparse"] * 4, "num_experts_per_tok": 8}),
    "cohere-all-dense": ("cohere2_moe", {"mlp_layer_types": ["dense"] * 4}),
    "cohere-odd-sizes": (
        "cohere2_moe",
        {
            "hidden_size": 52, "intermediate_size": 20, "head_dim": 10, "num_experts": 5, "num_experts_per_tok": 1,
            "vocab_size": 101,
        },
    ),
    "llama-default": ("llama", {"tie_word_embeddings": True}),
    "llama-linear": ("llama", _rope("linear", factor=2.5)),
    "llama-llama3": (
        "llama",
        _rope("llama3", 5e5, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=64),
    ),
    "llama-yarn": ("llama", _rope("yarn", factor=4.0, original_max_position_embeddings=32)),
    "llama-biases": ("llama", {"attention_bias": True, "mlp_bias": True, "storage": "bfloat16", "sharded": True}),
    "llama-one-kv-head": ("llama", {"num_key_value_heads": 1, "head_dim": 24, "storage": "float16"}),
    "llama-odd-sizes": ("llama", {"hidden_size": 52, "intermediate_size": 39, "head_dim": 6, "vocab_size": 101}),
    "llama-yarn-mscale": (
        "llama",
        _rope("yarn", 5e5, factor=6.0, original_max_position_embeddings=64, mscale=0.8, mscale_all_dim=0.4, beta_fast=16.0,
              beta_slow=2.0, truncate=False),
    ),
    "llama-attention-bias-untied": ("llama", {"attention_bias": True, "num_key_value_heads": 1, "head_dim": 40}),
    "llama-mlp-bias-tied": ("llama", {"mlp_bias": True, "tie_word_embeddings": True, "num_key_value_heads": 4}),
    "qwen3-tied": ("qwen3", {"tie_word_embeddings": True}),
    "qwen3-untied": ("qwen3", {"head_dim": 32, "attention_bias": True, "storage": "bfloat16"}),
    "qwen3-yarn": ("qwen3", _rope("yarn", 1e6, factor=4.0, original_max_position_embeddings=128, attention_factor=0.9)),
    "qwen3-window": ("qwen3", {"use_sliding_window": True, "sliding_window": 7, "max_window_layers": 2}),
    "qwen3-window-list": (
        "qwen3",
        {
            "use_sliding_window": True, "sliding_window": 9, "num_key_value_heads": 1,
            "layer_types": ["sliding_attention", "full_attention", "full_attention", "sliding_attention"],
        },
    ),
    "qwen3-odd-sizes": (
        "qwen3",
        {
            "hidden_size": 52, "intermediate_size": 39, "num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": 22,
            "attention_bias": True, "vocab_size": 101, "tie_word_embeddings": True,
        } | _rope("linear", factor=3.0),
    ),
    "qwen3moe-raw": ("qwen3_moe", {"norm_topk_prob": False}),
    "qwen3moe-renormalised": ("qwen3_moe", {"norm_topk_prob": True, "fused": True, "storage": "bfloat16"}),
    "qwen3moe-only-layers": ("qwen3_moe", {"mlp_only_layers": [1], "tie_word_embeddings": True, "sharded": True}),
    "qwen3moe-sparse-step": ("qwen3_moe", {"decoder_sparse_step": 2, "fused": True, "sharded": True, "head_dim": 24}),
    "qwen3moe-odd-sizes": (
        "qwen3_moe",
        {
            "hidden_size": 52, "moe_intermediate_size": 20, "intermediate_size": 39, "num_attention_heads": 3,
            "num_key_value_heads": 1, "head_dim": 22, "attention_bias": True, "num_experts": 5, "num_experts_per_tok": 1,
            "norm_topk_prob": True, "mlp_only_layers": [0, 2], "vocab_size": 101,
        } | _rope("llama3", 5e5, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=64),
    ),
    "qwen3moe-all-chosen": ("qwen3_moe", {"num_experts_per_tok": 8, "norm_topk_prob": True, "num_key_value_heads": 1}),
    "qwen3moe-yarn": ("qwen3_moe", _rope("yarn", 1e6, factor=4.0, original_max_position_embeddings=128)),
    "qwen3moe-window": ("qwen3_moe", {"use_sliding_window": True, "sliding_window": 6}),
}  # fmt: skip


def make_odd(directory, name):
    """Write the odd configuration ``name`` of :data:`ODD` and return its transformers model in float32."""
    family, settings = ODD[name]
    return make_checkpoint(directory, family, **settings)


def build_model(family, **settings):
    """The transformers model (eager, eval) of the family's tiny base config with ``settings`` over it."""
    config_class, model_class = _CLASSES[family]
    config = config_class(**(_BASE | _FAMILY[family] | settings))
    config._attn_implementation = "eager"
    return model_class(config).eval()


def make_checkpoint(directory, family, *, storage="float32", sharded=False, fused=False, seed=0, spread=0.0, sharp=1.0,
                    **settings):  # fmt: skip
    """Write a random checkpoint into ``directory`` and return the transformers model (float32, eager, eval) of those weights.

    ``settings`` go over a tiny base config of the family.  ``storage``: dtype of the file, and the returned model holds the
    rounded weights.  ``sharded``: several files with an index.  ``fused``: experts as gate_up_proj and down_proj tensors.
    ``spread``: rows of embedding and head are scaled by exp(spread · normal), so that few tokens compete to be the greedy one.
    ``sharp``: the deviation of attention's scores: of keys as many as n · exp(-sharp²) of n weigh something.
    """
    model = build_model(family, **settings)
    generator = torch.Generator().manual_seed(seed)
    dtype = getattr(torch, storage)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            values = torch.randn(parameter.shape, generator=generator)
            if "norm" in name:
                values = 1 + 0.3 * values
            elif name.endswith("bias"):
                values = 0.3 * values
            elif "embed_tokens" not in name:
                values = values * (1.5 if name.endswith("mlp.gate.weight") else 1.0) / parameter.shape[-1] ** 0.5
            if "q_proj" in name:
                values = sharp * values
            if spread and ("embed_tokens" in name or "lm_head" in name):
                values = values * torch.exp(spread * torch.randn(len(values), 1, generator=generator))
            parameter.copy_(values.to(dtype).float())
    directory = Path(directory)
    size = "40KB" if sharded else "1GB"
    # a copy: the cast would round the frequencies of the returned model's RoPE as well, which loading never does
    copy.deepcopy(model).to(dtype).save_pretrained(directory, max_shard_size=size)
    if fused:
        _store_fused(directory, model, dtype, sharded)
    return model


def _store_fused(directory, model, dtype, sharded):
    """save_pretrained splits the experts; write transformers' own in-memory tensors instead."""
    for old in directory.glob("model*"):
        old.unlink()
    tensors = {name: value.to(dtype).contiguous() for name, value in model.state_dict().items()}
    if model.config.tie_word_embeddings:
        tensors.pop("lm_head.weight", None)
    if not sharded:
        save_file(tensors, directory / "model.safetensors", {"format": "pt"})
        return
    names = sorted(tensors)
    weight_map = {}
    for i in range(3):
        file = f"model-{i + 1:05d}-of-00003.safetensors"
        save_file({name: tensors[name] for name in names[i::3]}, directory / file, {"format": "pt"})
        weight_map |= dict.fromkeys(names[i::3], file)
    index = {"metadata": {}, "weight_map": weight_map}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
