"""TorchDecode: a decode step of any family as torch runs it, an op or a few at a time, from the same packed weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from engine.bench import unpack
from engine.bench.torch_ops import ATTENTION, EXPERTS, chosen_experts, gated, rotated
from engine.config import ModelConfig


@dataclass(frozen=True)
class Recipe:
    """How the step is run: a name of ATTENTION, one of EXPERTS, and whether all but attention goes through torch.compile."""

    attention: str = "sdpa"
    experts: str = "grouped"
    compiled: bool = False


class TorchWeights:
    """Plain matrices of a model's packed ones, unpacked where these lie.  ``layers``: of each its tensors by name (missing ones
    are None)."""

    def __init__(self, config: ModelConfig, matrices: dict[str, Any], vectors: dict[str, Any], xp: Any, dtype: torch.dtype):
        c = config

        def plain(name: str, k: int, owners: int = 0):
            """[rows, k], of several owners [owners, rows, k]."""
            w = unpack.matrix(matrices[name], k, xp)
            return as_torch(w.reshape(owners, -1, k) if owners else w, xp, dtype)

        def vector(*names: str):
            found = [vectors[name] for name in names if name in vectors]
            return as_torch(xp.concatenate(found), xp, dtype) if found else None

        def gate_up(name: str, owners: int = 1):
            w = as_torch(unpack.gate_over_up(matrices[name], c.hidden, owners, xp), xp, dtype)
            return w if owners > 1 else w[0]

        self.head = plain("head", c.hidden)[: c.vocab]
        tied = matrices["embed"] is matrices["head"]
        self.embed = self.head if tied else plain("embed", c.hidden)[: c.vocab]
        self.norm = vector("norm")
        self.layers = []
        for i, spec in enumerate(c.layers):
            at = f"layers.{i}."
            own = {name: vector(at + name) for name in ("norm", "norm2", "qkv_bias", "o_bias", "down_bias", "head_norm")}
            own["up_bias"] = vector(at + "gate_bias", at + "up_bias")
            own["qkv"] = as_torch(unpack.qkv(matrices[at + "qkv"], c, xp), xp, dtype)
            own["o"] = plain(at + "o", c.heads * c.head_dim)
            moe = spec.mlp == "moe"
            own["router"] = plain(at + "router", c.hidden)[: c.experts] if moe else None
            own["up"] = gate_up(at + "up", c.experts if moe else 1)
            own["down"] = plain(at + "down", spec.width, c.experts if moe else 0)
            shared = moe and c.shared_width
            own["shared_up"] = gate_up(at + "shared_up") if shared else None
            own["shared_down"] = plain(at + "shared_down", c.shared_width) if shared else None
            self.layers.append(own)


def as_torch(array: Any, xp: Any, dtype: torch.dtype) -> torch.Tensor:
    """u16 are bf16 bits; others are numbers.  Shares memory where the dtype is right already."""
    array = xp.ascontiguousarray(array)
    bits = array.dtype == np.uint16
    if bits:
        array = array.view(np.int16)  # of unsigned ones torch knows little
    tensor = torch.from_numpy(array) if xp is np else torch.from_dlpack(array)
    return (tensor.view(torch.bfloat16) if bits else tensor).to(dtype)


class Ops:
    """The parts of a step around attention, as functions of tensors alone, so that one compiled function serves all layers."""

    def __init__(self, config: ModelConfig, compiled: Callable[[Callable], Callable] = lambda function: function):
        self.config, self._compiled = config, compiled
        self.before, self.dense, self.head = (compiled(f) for f in (self._before, self._dense, self._head))
        self.routed = cache(self._routed)

    def _norm(self, x, weight):
        c = self.config
        if c.norm == "layer":
            return F.layer_norm(x, (c.hidden,), weight, None, c.eps)
        return F.rms_norm(x, (c.hidden,), weight, c.eps)

    def _before(self, x, norm, qkv, qkv_bias, head_norm, cos, sin):
        """(normed x, q, k, v) of a layer; ``cos`` is None where nothing turns."""
        c = self.config
        n = self._norm(x, norm)
        q, k, v = F.linear(n, qkv, qkv_bias).view(len(x), -1, c.head_dim).split((c.heads, c.kv_heads, c.kv_heads), 1)
        if head_norm is not None:
            of_q, of_k = head_norm.chunk(2)
            q, k = F.rms_norm(q, (c.head_dim,), of_q, c.eps), F.rms_norm(k, (c.head_dim,), of_k, c.eps)
        if cos is not None:
            q, k = (rotated(y, cos, sin, c.rope_style == "interleaved") for y in (q, k))
        return n, q.contiguous(), k, v

    def _residual(self, x, n, attended, o, o_bias, norm2, ffn):
        """x of the next layer.  ``ffn``: of normed rows."""
        mid = x + F.linear(attended.flatten(1), o, o_bias)
        return mid + ffn(n if self.config.parallel else self._norm(mid, norm2))

    def _dense(self, x, n, attended, o, o_bias, norm2, up, up_bias, down, down_bias):
        return self._residual(x, n, attended, o, o_bias, norm2,
                              lambda n: F.linear(gated(F.linear(n, up, up_bias)), down, down_bias))  # fmt: skip

    def _routed(self, name: str):
        c, experts = self.config, EXPERTS[name]

        def routed(x, n, attended, o, o_bias, norm2, router, up, down, shared_up, shared_down):
            def ffn(n):
                chosen, weight = chosen_experts(F.linear(n, router).float(), c.router, c.top_k, c.renormalise)
                y = experts(n, chosen, weight.to(n.dtype), up, down)
                if shared_up is not None:
                    y = y + F.linear(gated(F.linear(n, shared_up)), shared_down)
                    y = y * 0.5 if c.shared_combine == "average" else y
                return y

            return self._residual(x, n, attended, o, o_bias, norm2, ffn)

        return self._compiled(routed)

    def _head(self, x, norm, head):
        """(logits, greedy token)."""
        logits = F.linear(self._norm(x, norm), head) * self.config.logit_scale
        return logits, logits.argmax(-1)


class TorchDecode:
    """``rows`` sequences, all of the same length, with room for ``keys`` keys.  ``token`` i64[rows] is what the next step
    reads, and what it leaves: its greedy token.  ``ops``: of a recipe's ``compiled``."""

    def __init__(self, config: ModelConfig, weights: TorchWeights, ops: dict[bool, Ops], rows: int, keys: int):
        c, like = config, weights.norm
        self.config, self.weights, self.ops = config, weights, ops
        self.token = torch.zeros(rows, dtype=torch.int64, device=like.device)
        self.k, self.v = (like.new_zeros(len(c.layers), rows, c.kv_heads, keys, c.head_dim) for _ in range(2))

    def angles(self, position: int) -> tuple[torch.Tensor, torch.Tensor]:
        """(cos, sin), each f32[head_dim / 2]."""
        angle = np.float32(position) * self.config.inv_freq()
        scale = np.float32(self.config.rope_scale)
        cos, sin = (torch.from_numpy(f(angle) * scale).to(self.token.device) for f in (np.cos, np.sin))
        return cos, sin

    @torch.no_grad()
    def step(self, position: int, angles: tuple[torch.Tensor, torch.Tensor], recipe: Recipe) -> torch.Tensor:
        """Logits [rows, vocab] of the tokens at ``position``."""
        c, ops, attend = self.config, self.ops[recipe.compiled], ATTENTION[recipe.attention]
        x = F.embedding(self.token, self.weights.embed)
        for i, (spec, w) in enumerate(zip(c.layers, self.weights.layers, strict=True)):
            cos, sin = angles if spec.rope else (None, None)
            n, q, k, v = ops.before(x, w["norm"], w["qkv"], w["qkv_bias"], w["head_norm"], cos, sin)
            self.k[i, :, :, position], self.v[i, :, :, position] = k, v
            oldest = max(0, position + 1 - c.window) if spec.attention == "sliding" else 0
            seen = slice(oldest, position + 1)
            attended = attend(q, self.k[i, :, :, seen], self.v[i, :, :, seen])
            shared = (x, n, attended, w["o"], w["o_bias"], w["norm2"])
            if spec.mlp == "moe":
                x = ops.routed(recipe.experts)(*shared, w["router"], w["up"], w["down"], w["shared_up"], w["shared_down"])
            else:
                x = ops.dense(*shared, w["up"], w["up_bias"], w["down"], w["down_bias"])
        logits, greedy = ops.head(x, self.weights.norm, self.weights.head)
        self.token.copy_(greedy)
        return logits
