"""Shapes: the sizes of published models, for graphs, simulations and timings that need no weights."""

from __future__ import annotations

from dataclasses import replace

from engine.config import LayerSpec, ModelConfig
from mkviz.errors import MkvizError


def _north_mini_code() -> ModelConfig:
    """North Mini Code 1.0: 49 layers, layer 0 dense, full attention at 0, 4, …, 48, 128 experts top-8."""
    layers = tuple(
        LayerSpec(
            "full" if i % 4 == 0 else "sliding", i == 0 or i % 4 != 0, "dense" if i == 0 else "moe", 3072 if i == 0 else 768
        )
        for i in range(49)
    )
    return ModelConfig(
        family="cohere2_moe", vocab=262144, hidden=2048, heads=32, kv_heads=4, head_dim=128, layers=layers, window=4096,
        parallel=True, norm="rms", eps=1e-6, rope_style="interleaved", rope_theta=50000.0, rope_scaling=None,
        attention_bias=False, mlp_bias=False, qk_norm=False, experts=128, top_k=8, router="sigmoid", renormalise=False,
        shared_width=0, shared_combine="average", logit_scale=1.0, tied=True, max_positions=262144, eos=(255001,), bos=2, pad=0,
        dtype="bfloat16",
    )  # fmt: skip


def _llama(vocab: int, hidden: int, heads: int, kv_heads: int, head_dim: int, layers: int, width: int, theta: float,
           positions: int) -> ModelConfig:  # fmt: skip
    return ModelConfig(
        family="llama", vocab=vocab, hidden=hidden, heads=heads, kv_heads=kv_heads, head_dim=head_dim,
        layers=(LayerSpec("full", True, "dense", width),) * layers, window=0, parallel=False, norm="rms", eps=1e-5,
        rope_style="half", rope_theta=theta, rope_scaling=None, attention_bias=False, mlp_bias=False, qk_norm=False, experts=0,
        top_k=0, router="", renormalise=False, shared_width=0, shared_combine="sum", logit_scale=1.0, tied=True,
        max_positions=positions, eos=(0,), bos=1, pad=None, dtype="bfloat16",
    )  # fmt: skip


SHAPES = {
    "north-mini-code": _north_mini_code,
    "llama-3.2-1b": lambda: _llama(128256, 2048, 32, 8, 64, 16, 8192, 500000.0, 131072),
    "smollm2-135m": lambda: _llama(49152, 576, 9, 3, 64, 30, 1536, 100000.0, 8192),
}


def shape(name: str, layers: int | None = None, max_positions: int | None = None) -> ModelConfig:
    """The config of a published shape, cut to its first ``layers`` layers and to a context of ``max_positions``."""
    if name not in SHAPES:
        raise MkvizError(f"shape {name!r}", f"one of {', '.join(SHAPES)}")
    config = SHAPES[name]()
    if layers is not None:
        if not 1 <= layers <= len(config.layers):
            raise MkvizError(f"layers: {layers}", f"1 to {len(config.layers)} of {name}")
        config = replace(config, layers=config.layers[:layers])
    return config if max_positions is None else replace(config, max_positions=max_positions)
