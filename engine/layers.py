"""LayerSpec: one layer of a model."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class LayerSpec:
    """One layer: ``attention`` "full" | "sliding", ``rope`` whether it rotates q and k, ``mlp`` "dense" | "moe",
    ``width`` of the dense feed-forward or of one expert."""

    attention: str
    rope: bool
    mlp: str
    width: int
