"""PackedWeights: the one copy of a model's weights on the device, in the order in which the kernel reads them."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from engine.checkpoint import Weights
from engine.config import ModelConfig
from engine.cuda.abi import FRAGMENT
from engine.cuda.pack_cache import PackCache
from engine.cuda.pack_pieces import pieces
from engine.progress import Progress
from mkviz.errors import MkvizError


def check_supported(config: ModelConfig) -> None:
    """Raises MkvizError naming the field that the kernel cannot honour; allocates nothing."""
    k = {"hidden_size": config.hidden, "heads * head_dim": config.heads * config.head_dim}
    k |= {f"layer {i} {s.mlp} width": s.width for i, s in enumerate(config.layers)}
    if config.shared_width:
        k["shared expert width"] = config.shared_width
    for name, value in k.items():
        if value % 16:
            raise MkvizError(f"{name}: {value}", "a multiple of 16 on the cuda backend")
    for name, ok, value, right in (
        ("head_dim", config.head_dim % 16 == 0 and config.head_dim <= 128, config.head_dim, "a multiple of 16, at most 128"),
        ("query heads per KV head", config.heads // config.kv_heads <= 8, config.heads // config.kv_heads, "at most 8"),
        ("num_experts", config.experts <= 256, config.experts, "at most 256"),
        ("num_experts_per_tok", config.top_k <= 16, config.top_k, "at most 16"),
    ):
        if not ok:
            raise MkvizError(f"{name}: {value}", f"{right}; the cpu backend takes this model")


class PackedWeights:
    """Packs a checkpoint piece by piece onto the device, or reads the pieces that a :class:`PackCache` has.

    ``matrices``: name -> u16 device array; experts of a layer lie in one array, ``stride`` bytes apart.  ``vectors``: f32
    device arrays.  ``nbytes`` of all.  ``xp`` is cupy; numpy serves the tests, which then look at the same arrays.
    """

    def __init__(self, config: ModelConfig, weights: Weights | None, xp: Any):
        self.config, self.xp = config, xp
        self.matrices: dict[str, Any] = {}
        self.vectors: dict[str, Any] = {}
        self._pack(weights)

    @staticmethod
    def bytes_needed(config: ModelConfig) -> int:
        """Bytes of the packed matrices (16-row blocks, bf16), without packing anything."""
        return sum(piece.nbytes for piece in pieces(config))

    @property
    def nbytes(self) -> int:
        return sum({id(a): a.nbytes for a in [*self.matrices.values(), *self.vectors.values()]}.values())  # head may be embed

    def _pack(self, weights: Weights) -> None:
        weights.require_bf16()  # before anything is allocated
        xp, cache = self.xp, PackCache.of_environment(self.config, weights)

        def bits(name: str):
            """The matrix as bf16 bits on the device (exact: other dtypes have passed ``require_bf16``)."""
            return xp.asarray(np.ascontiguousarray(weights.get(name).astype(ml_dtypes.bfloat16, copy=False)).view(np.uint16))

        progress = Progress("packing weights", self.bytes_needed(self.config))
        for piece in pieces(self.config):
            packed = cache.load(piece, xp) if cache else None
            if packed is None:
                packed = piece.pack(bits, xp)
                if cache:
                    cache.save(piece, packed)
            self.matrices[piece.name] = packed
            weights.release()
            progress.add(piece.nbytes)
        self.matrices.setdefault("embed", self.matrices["head"])
        self._vectors(weights)

    def _vectors(self, weights: Weights) -> None:
        def put(name: str, *parts: str) -> None:
            found = [np.asarray(weights.get(p), np.float32) for p in parts if p in weights]
            if found:
                self.vectors[name] = self.xp.asarray(np.concatenate(found))

        put("norm", "norm")
        for i in range(len(self.config.layers)):
            at = f"layers.{i}."
            put(at + "qkv_bias", at + "q_bias", at + "k_bias", at + "v_bias")
            put(at + "head_norm", at + "q_norm", at + "k_norm")
            for name in ("norm", "norm2", "o_bias", "gate_bias", "up_bias", "down_bias"):
                put(at + name, at + name)

    # -- binding --------------------------------------------------------------------------------------------------------

    def address(self, name: str) -> int:
        found = self.matrices.get(name, self.vectors.get(name))
        if found is None:
            return 0
        return int(found.data.ptr) if hasattr(found.data, "ptr") else int(found.ctypes.data)

    def bind(self, tasks: np.ndarray, op: str, layer: int) -> None:
        """Fill weight, stride, k16 and blocks of tasks (TASK[n]) of one op of one layer, whose args are set."""
        c, at = self.config, f"layers.{layer}."
        hidden = c.hidden // 16
        a, b, count = (tasks[name].astype(np.int64) for name in "abc")
        width = c.layers[layer].width if layer >= 0 else 0
        if op == "qkv":
            self._put(tasks, at + "qkv", (a * c.head_dim + 2 * b) // 16, hidden, 2 * (count - b))
        elif op == "o_proj":
            self._put(tasks, at + "o", a // 16, c.heads * c.head_dim // 16, b)
        elif op == "router":
            self._put(tasks, at + "router", a // 16, hidden, b)
        elif op in ("expert_up", "dense_up", "shared_up"):
            self._put(tasks, at + ("shared_up" if op == "shared_up" else "up"), a // 8, hidden, 2 * b)
            tasks["stride"] = 2 * width * hidden * FRAGMENT // 16
        elif op in ("expert_down", "dense_down"):
            self._put(tasks, at + "down", a // 16, width // 16, b)
            tasks["stride"] = c.hidden // 16 * (width // 16) * FRAGMENT
            if op == "expert_down" and c.shared_width:
                tasks["tail"] = c.shared_width // 16
                tasks["weight2"] = self.address(at + "shared_down") + a // 16 * (c.shared_width // 16) * FRAGMENT
        elif op == "lm_head":
            self._put(tasks, "head", a // 16, hidden, b)

    def _put(self, tasks: np.ndarray, name: str, block: np.ndarray, k16: int, rows: np.ndarray) -> None:
        tasks["weight"], tasks["k16"], tasks["blocks"] = self.address(name) + block * k16 * FRAGMENT, k16, -(-rows // 16)

    def bind_layer(self, layer: np.ndarray, index: int) -> None:
        for name in ("norm", "norm2", "head_norm", "qkv_bias", "o_bias", "gate_bias", "up_bias", "down_bias"):
            layer[name] = self.address(f"layers.{index}.{name}")
