"""RandomWeights: packed weights drawn on the device, for timings at sizes whose checkpoints are not at hand."""

from __future__ import annotations

from typing import Any

from engine.config import ModelConfig
from engine.cuda.weights import PackedWeights

SLICE = 1 << 26  # elements drawn at a time


class RandomWeights(PackedWeights):
    """Normal weights of standard deviation 0.02, norms 1 (so that a router spreads its rows over the experts)."""

    def __init__(self, config: ModelConfig, xp: Any, seed: int = 0):
        self._generator = xp.random.Generator(xp.random.XORWOW(seed))
        super().__init__(config, None, xp)

    def _draw(self, elements: int) -> Any:
        xp, out = self.xp, self.xp.empty(elements, self.xp.uint16)
        for at in range(0, elements, SLICE):
            n = min(SLICE, elements - at)
            bits = (self._generator.standard_normal(n, xp.float32) * xp.float32(0.02)).view(xp.uint32)
            out[at : at + n] = (bits + xp.uint32(0x8000)) >> xp.uint32(16)
        return out

    def _pack(self, weights) -> None:
        c, xp = self.config, self.xp
        h = c.hidden
        self.matrices["head"] = self._draw(-(-c.vocab // 16) * 16 * h)
        self.matrices["embed"] = self.matrices["head"] if c.tied else self._draw(-(-c.vocab // 16) * 16 * h)
        self.vectors["norm"] = xp.ones(h, xp.float32)
        for i, spec in enumerate(c.layers):
            at = f"layers.{i}."
            self.vectors[at + "norm"] = xp.ones(h, xp.float32)
            if not c.parallel:
                self.vectors[at + "norm2"] = xp.ones(h, xp.float32)
            self.matrices[at + "qkv"] = self._draw((c.heads + 2 * c.kv_heads) * c.head_dim * h)
            self.matrices[at + "o"] = self._draw(h * c.heads * c.head_dim)
            n = c.experts if spec.mlp == "moe" else 1
            if spec.mlp == "moe":
                self.matrices[at + "router"] = self._draw(-(-c.experts // 16) * 16 * h)
            self.matrices[at + "up"] = self._draw(n * 2 * spec.width * h)
            self.matrices[at + "down"] = self._draw(n * spec.width * h)
            if spec.mlp == "moe" and c.shared_width:
                self.matrices[at + "shared_up"] = self._draw(2 * c.shared_width * h)
                self.matrices[at + "shared_down"] = self._draw(c.shared_width * h)
