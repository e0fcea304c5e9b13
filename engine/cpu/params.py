"""Params: binds a checkpoint to the CPU backend: addresses of its memory-mapped matrices, f32 copies of its vectors."""

from __future__ import annotations

from dataclasses import dataclass

import ml_dtypes
import numpy as np

from engine.checkpoint import Weights
from engine.config import ModelConfig
from engine.cpu.math import BF16, F32
from engine.cpu.routing import ROUTERS

_PARTS = ("gate", "up", "down")
_BF16 = np.dtype(ml_dtypes.bfloat16)


@dataclass
class Params:
    """``sizes`` and ``arrays`` for the binding; ``matrices`` keeps alive what the addresses in them point to.

    ``widened_bytes``: copies made because the kernels cannot read the checkpoint in place (f16, mixed or misaligned weights).
    """

    sizes: dict[str, int]
    arrays: dict[str, np.ndarray]
    matrices: dict[str, np.ndarray]
    widened_bytes: int


def load_params(config: ModelConfig, weights: Weights, mode: str) -> Params:
    if mode == "bf16":
        weights.require_bf16()
    matrices = {name: weights.get(name) for name in _matrix_names(config)}
    stored = _stored(matrices)
    for name in _unreadable(matrices, stored):
        matrices[name] = np.array(matrices[name], stored, order="C")
    kind = BF16 if stored == _BF16 else F32
    sizes = binding_sizes(config, mode) | {
        "kind": kind,
        "embed": _address(matrices, "embed"),
        "head": _address(matrices, "head"),
    }
    arrays = _vectors(config, weights, sizes["ffn_width"]) | _tables(config, matrices)
    return Params(sizes, arrays, matrices, widened_bytes(config, weights))


def widened_bytes(config: ModelConfig, weights: Weights) -> int:
    """Bytes that :func:`load_params` will copy, without copying any."""
    matrices = {name: weights.get(name) for name in _matrix_names(config)}
    stored = _stored(matrices)
    return sum(matrices[name].size * stored.itemsize for name in _unreadable(matrices, stored))


def _stored(matrices: dict[str, np.ndarray]) -> np.dtype:
    """bf16 where all matrices are, else f32: the kernels read one dtype."""
    return _BF16 if {a.dtype for a in matrices.values()} == {_BF16} else np.dtype(np.float32)


def _unreadable(matrices: dict[str, np.ndarray], stored: np.dtype) -> list[str]:
    """Names of the matrices that cannot be read in place."""
    return [n for n, a in matrices.items() if a.dtype != stored or not a.flags.c_contiguous or a.ctypes.data % a.itemsize]


def _address(matrices: dict[str, np.ndarray], name: str) -> int:
    return matrices[name].ctypes.data if name in matrices else 0


def binding_sizes(config: ModelConfig, mode: str) -> dict[str, int]:
    """Sizes and switches of the binding that follow from the config."""
    widths = {kind: {s.width for s in config.layers if s.mlp == kind} for kind in ("moe", "dense")}
    assert all(len(w) <= 1 for w in widths.values()), "the families have one width per kind of FFN"
    expert_width, dense_width = (max(widths[kind], default=1) for kind in ("moe", "dense"))
    return {
        "hidden": config.hidden, "heads": config.heads, "kv_heads": config.kv_heads, "head_dim": config.head_dim,
        "experts": max(1, config.experts), "top_k": max(1, config.top_k), "vocab": config.vocab, "layers": len(config.layers),
        "ffn_width": max(expert_width, dense_width, config.shared_width), "expert_width": expert_width,
        "dense_width": dense_width, "shared_width": config.shared_width, "centre": config.norm == "layer",
        "parallel": config.parallel, "interleaved": config.rope_style == "interleaved", "qk_norm": config.qk_norm,
        "router_kind": ROUTERS.index(config.router) if config.router else 0, "renormalise": config.renormalise,
        "shared_average": config.shared_combine == "average", "bf16": mode == "bf16",
    }  # fmt: skip


def _vectors(config: ModelConfig, weights: Weights, ffn_width: int) -> dict[str, np.ndarray]:
    layers, d, h = len(config.layers), config.head_dim, config.hidden

    def vector(name: str, size: int, default: float) -> np.ndarray:
        out = np.full(size, default, np.float32)
        if name in weights:
            value = weights.get(name)
            out[: len(value)] = value
        return out

    def per_layer(part: str, size: int, default: float = 0.0) -> np.ndarray:
        return np.stack([vector(f"layers.{i}.{part}", size, default) for i in range(layers)])

    qkv = [
        per_layer("q_bias", config.heads * d),
        per_layer("k_bias", config.kv_heads * d),
        per_layer("v_bias", config.kv_heads * d),
    ]
    info = [(s.rope, config.window if s.attention == "sliding" else 0, s.width) for s in config.layers]
    return {
        "scalars": np.array([config.eps, config.logit_scale], np.float32),
        "norm": np.concatenate([per_layer("norm", h), vector("norm", h, 1.0)[None]]), "norm2": per_layer("norm2", h, 1.0),
        "qkv_bias": np.ascontiguousarray(np.concatenate(qkv, 1)), "o_bias": per_layer("o_bias", h),
        "gate_bias": per_layer("gate_bias", ffn_width), "up_bias": per_layer("up_bias", ffn_width),
        "down_bias": per_layer("down_bias", h),
        "head_norm": np.ascontiguousarray(np.stack([per_layer("q_norm", d, 1.0), per_layer("k_norm", d, 1.0)], 1)),
        "layer_info": np.array(info, np.int32),
    }  # fmt: skip


def _tables(config: ModelConfig, matrices: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    def of(names) -> list[int]:
        return [_address(matrices, name) for name in names]

    layers = range(len(config.layers))
    return {
        "matrix": np.array([of(f"layers.{i}.{m}" for m in ("q", "k", "v", "o", "router", *_PARTS)) for i in layers], np.int64),
        "expert": np.array([[of(f"layers.{i}.experts.{e}.{m}" for m in _PARTS) for e in range(max(1, config.experts))]
                            for i in layers], np.int64),
        "shared": np.array([of(f"layers.{i}.shared.{m}" for m in _PARTS) for i in layers], np.int64),
    }  # fmt: skip


def _matrix_names(config: ModelConfig) -> list[str]:
    names = ["embed", "head"]
    for i, spec in enumerate(config.layers):
        names += [f"layers.{i}.{m}" for m in ("q", "k", "v", "o")]
        if spec.mlp == "dense":
            names += [f"layers.{i}.{m}" for m in _PARTS]
            continue
        names.append(f"layers.{i}.router")
        names += [f"layers.{i}.experts.{e}.{m}" for e in range(config.experts) for m in _PARTS]
        if config.shared_width:
            names += [f"layers.{i}.shared.{m}" for m in _PARTS]
    return names
