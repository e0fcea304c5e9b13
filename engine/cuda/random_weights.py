"""RandomWeights: packed weights drawn on the device, for timings at sizes whose checkpoints are not at hand."""

from __future__ import annotations

from typing import Any

from engine.config import ModelConfig
from engine.cuda.pack_pieces import pieces
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
        for piece in pieces(c):
            self.matrices[piece.name] = self._draw(piece.elements)
        self.matrices.setdefault("embed", self.matrices["head"])
        self.vectors["norm"] = xp.ones(c.hidden, xp.float32)
        for i in range(len(c.layers)):
            for norm in ("norm",) if c.parallel else ("norm", "norm2"):
                self.vectors[f"layers.{i}.{norm}"] = xp.ones(c.hidden, xp.float32)
            if c.qk_norm:
                self.vectors[f"layers.{i}.head_norm"] = xp.ones(2 * c.head_dim, xp.float32)
