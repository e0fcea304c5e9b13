"""Families: which fields of config.json each kind of model knows, and what they mean (docs/adding-a-family.md)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from engine.fields import Fields
from engine.layers import LayerSpec


def words(text: str) -> frozenset[str]:
    return frozenset(text.split())


@dataclass(frozen=True)
class Family:
    """``fields``: those of config.json that ``build`` reads, besides the ones that all families share.

    ``build``: what :class:`engine.config.ModelConfig` is told beyond the common: at least ``layers``, and whatever is not as in
    a Llama (RMSNorm, sequential blocks, RoPE in halves, no biases but ``attention_bias``, no head norms, no experts).
    ``defaults``: values of fields that a file of this family may leave out.  ``fixed``: fields with one honoured value.
    ``inert``: fields that change nothing in this family.
    """

    architecture: str
    fields: frozenset[str]
    build: Callable[[Fields], dict[str, Any]]
    defaults: dict[str, Any] = field(default_factory=dict)
    fixed: dict[str, Any] = field(default_factory=dict)
    inert: frozenset[str] = frozenset()


_ATTENTION = {"full_attention": "full", "sliding_attention": "sliding"}


def _experts(f: Fields) -> dict[str, int]:
    """Their number under either name, and how many a token takes."""
    if f.given("num_local_experts") and f.given("num_experts") and f.values["num_local_experts"] != f.values["num_experts"]:
        f.refuse("num_local_experts", f"the same as num_experts, {f.values['num_experts']!r}")
    name = "num_local_experts" if f.given("num_local_experts") else "num_experts"
    experts, top_k = f.integer(name), f.integer("num_experts_per_tok")
    if top_k > experts:
        f.refuse("num_experts_per_tok", f"at most {name} {experts}")
    return {"experts": experts, "top_k": top_k}


def _routed(layers: tuple[LayerSpec, ...]) -> bool:
    return any(layer.mlp == "moe" for layer in layers)


def _layers_cohere2_moe(f: Fields) -> tuple[LayerSpec, ...]:
    count, prefix = f.integer("num_hidden_layers"), f.integer("first_k_dense_replace", 0, least=0)
    prefix_pattern, pattern = f.integer("prefix_dense_sliding_window_pattern", 1), f.integer("sliding_window_pattern", 4)
    if f.given("layer_types"):
        attention = f.per_layer("layer_types", count, tuple(_ATTENTION))
    else:  # the dense prefix has a pattern of its own, and the rest starts counting anew
        periods = [(i, prefix_pattern) for i in range(prefix)] + [(i, pattern) for i in range(count - prefix)]
        attention = ["sliding_attention" if (i + 1) % period else "full_attention" for i, period in periods[:count]]
    if f.given("mlp_layer_types"):
        mlp = f.per_layer("mlp_layer_types", count, ("dense", "sparse"))
    else:
        mlp = ["dense" if i < prefix else "sparse" for i in range(count)]
    width = f.integer("intermediate_size")
    dense_width = f.integer("prefix_dense_intermediate_size", width)
    return tuple(
        LayerSpec(
            attention=_ATTENTION[a],
            rope=a == "sliding_attention" or (m == "dense" and prefix_pattern == 1),
            mlp="dense" if m == "dense" else "moe",
            width=dense_width if m == "dense" else width,
        )
        for a, m in zip(attention, mlp, strict=True)
    )


def _cohere2_moe(f: Fields) -> dict[str, Any]:
    layers = _layers_cohere2_moe(f)
    out = {"layers": layers, "parallel": True, "rope_style": "interleaved"}
    if not f.given("rms_norm_eps"):
        out |= {"norm": "layer", "eps": f.number("layer_norm_eps", 1e-5)}
    out["shared_combine"] = f.choice("shared_expert_combination_strategy", ("sum", "average"), "average")
    if _routed(layers):
        sigmoid = f.choice("expert_selection_fn", ("softmax", "sigmoid"), "softmax") == "sigmoid"
        out |= _experts(f) | {
            "router": "sigmoid" if sigmoid else "softmax_chosen",
            # A softmax over the chosen sums to one already; norm_topk_prob only concerns the sigmoid.
            "renormalise": sigmoid and f.flag("norm_topk_prob", True),
            "shared_width": f.integer("num_shared_experts", 0, least=0) * f.integer("intermediate_size"),
        }
    return out


def _llama(f: Fields) -> dict[str, Any]:
    layer = LayerSpec("full", True, "dense", f.integer("intermediate_size"))
    return {"layers": (layer,) * f.integer("num_hidden_layers"), "mlp_bias": f.flag("mlp_bias", False)}


def _qwen3(f: Fields) -> dict[str, Any]:
    f.integer("num_key_value_heads")  # its default is no model's
    count, width = f.integer("num_hidden_layers"), f.integer("intermediate_size")
    slides, first = f.flag("use_sliding_window", False), f.integer("max_window_layers", 28, least=0)
    if f.given("layer_types"):
        attention = f.per_layer("layer_types", count, tuple(_ATTENTION))
        if "sliding_attention" in attention and not slides:
            f.refuse("layer_types", "sliding_attention needs use_sliding_window true")
    else:
        attention = ["sliding_attention" if slides and i >= first else "full_attention" for i in range(count)]
    return {"layers": tuple(LayerSpec(_ATTENTION[a], True, "dense", width) for a in attention), "qk_norm": True}


def _qwen3_moe(f: Fields) -> dict[str, Any]:
    f.integer("num_key_value_heads")
    attention = "sliding" if f.flag("use_sliding_window", False) else "full"
    step, dense = f.integer("decoder_sparse_step", 1), f.values.get("mlp_only_layers") or []
    if not isinstance(dense, list):
        f.refuse("mlp_only_layers", "a list of layer numbers")
    experts = f.values.get("num_local_experts") or f.values.get("num_experts")
    layers = tuple(
        LayerSpec(attention, True, "moe", f.integer("moe_intermediate_size"))
        if i not in dense and experts and (i + 1) % step == 0
        else LayerSpec(attention, True, "dense", f.integer("intermediate_size"))
        for i in range(f.integer("num_hidden_layers"))
    )
    out = {"layers": layers, "qk_norm": True}
    if _routed(layers):
        out |= _experts(f) | {"router": "softmax_all", "renormalise": f.flag("norm_topk_prob", False)}
    return out


FAMILIES = {
    "cohere2_moe": Family(
        "Cohere2MoeForCausalLM",
        words(
            """layer_norm_eps rms_norm_eps logit_scale num_experts num_experts_per_tok num_shared_experts
            shared_expert_combination_strategy expert_selection_fn norm_topk_prob sliding_window sliding_window_pattern
            layer_types mlp_layer_types prefix_dense_intermediate_size prefix_dense_sliding_window_pattern
            first_k_dense_replace"""
        ),
        _cohere2_moe,
        defaults={"head_dim": 128, "logit_scale": 0.0625, "tie_word_embeddings": True},
        fixed={
            "rope_scaling": None,  # the reference ignores it for this family and reads rope_parameters alone
            "use_qk_norm": False,
            "use_parallel_block": True,
            "use_gated_activation": True,
            "layer_norm_bias": False,
            "position_embedding_type": "rope_gptj",
            "rotary_pct": 1.0,
        },
    ),
    "llama": Family(
        "LlamaForCausalLM", words("rms_norm_eps mlp_bias"), _llama, fixed={"is_llama_config": True, "rope_interleaved": False}
    ),
    "qwen3": Family(
        "Qwen3ForCausalLM",
        words("rms_norm_eps use_sliding_window sliding_window max_window_layers layer_types"),
        _qwen3,
        defaults={"head_dim": 128},
    ),
    "qwen3_moe": Family(
        "Qwen3MoeForCausalLM",
        words(
            """rms_norm_eps moe_intermediate_size num_experts num_local_experts num_experts_per_tok norm_topk_prob
            decoder_sparse_step mlp_only_layers use_sliding_window sliding_window"""
        ),
        _qwen3_moe,
        inert=words("max_window_layers"),  # with a window, every layer of this family slides
    ),
}
