"""Pieces: the packed matrices of a model, one by one: what each is called, how large it is, what it is packed from.

One list for who packs, counts bytes, draws random weights, or keeps packed weights on disk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from engine.config import ModelConfig
from engine.cuda.pack import fragments, gate_up, pair_rows

Bits = Callable[[str], Any]  # canonical name of a matrix -> its bf16 bits, u16[rows, k], as an array of ``xp``
VERSION = 1  # of the packed order; kept pieces of another are not read


@dataclass(frozen=True)
class Piece:
    """``name`` in :class:`engine.cuda.weights.PackedWeights`; ``elements`` u16; ``blocks`` are packed one after the other: an
    expert each, so that no more than one is in memory twice."""

    name: str
    elements: int
    blocks: tuple[Callable[[Bits, Any], Any], ...]

    @property
    def nbytes(self) -> int:
        return 2 * self.elements

    def pack(self, bits: Bits, xp: Any) -> Any:
        """u16[elements] on the device of ``xp``."""
        if len(self.blocks) == 1:
            return self.blocks[0](bits, xp)
        out, at = xp.empty(self.elements, np.uint16), 0
        for block in self.blocks:
            w = block(bits, xp)
            out[at : at + len(w)] = w
            at += len(w)
        return out


def pieces(c: ModelConfig) -> Iterator[Piece]:
    """Every packed matrix of a model.  A tied embedding is not among them: it is the head."""
    h = c.hidden
    for name in ("head",) if c.tied else ("head", "embed"):
        yield Piece(name, _padded(c.vocab) * h, (_plain(name),))
    for i, spec in enumerate(c.layers):
        at = f"layers.{i}."
        yield Piece(at + "qkv", (c.heads + 2 * c.kv_heads) * c.head_dim * h, (_qkv(c, at),))
        yield Piece(at + "o", h * c.heads * c.head_dim, (_plain(at + "o"),))
        owners = [at]
        if spec.mlp == "moe":
            yield Piece(at + "router", _padded(c.experts) * h, (_plain(at + "router"),))
            owners = [f"{at}experts.{e}." for e in range(c.experts)]
        count = len(owners) * spec.width * h
        yield Piece(at + "up", 2 * count, tuple(_gated(o) for o in owners))
        yield Piece(at + "down", count, tuple(_plain(o + "down") for o in owners))
        if spec.mlp == "moe" and c.shared_width:
            yield Piece(at + "shared_up", 2 * c.shared_width * h, (_gated(at + "shared."),))
            yield Piece(at + "shared_down", c.shared_width * h, (_plain(at + "shared.down"),))


def _padded(rows: int) -> int:
    return -(-rows // 16) * 16


def _plain(name: str):
    return lambda bits, xp: fragments(bits(name), xp)


def _gated(owner: str):
    return lambda bits, xp: fragments(gate_up(bits(owner + "gate"), bits(owner + "up"), xp), xp)


def _qkv(c: ModelConfig, at: str):
    def pack(bits: Bits, xp: Any) -> Any:
        units = (("q", c.heads), ("k", c.kv_heads), ("v", c.kv_heads))
        interleaved = c.rope_style == "interleaved"
        return fragments(xp.concatenate([bits(at + m)[pair_rows(n, c.head_dim, interleaved, xp)] for m, n in units]), xp)

    return pack
