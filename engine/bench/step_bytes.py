"""StepBytes: the bytes that a decode step cannot but read, counted from the model and not from what a kernel does.

Weight matrices once, of experts those that some row of the step is routed to; K and V of every key that a row sees; a row of
the embedding for each token.  Norms, biases and activations, which stay in caches, are left out; so is what is read in vain.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from engine.config import ModelConfig


@dataclass(frozen=True)
class StepBytes:
    """Bytes of one step, or their mean over several."""

    weights: float
    kv: float
    embedding: float

    @property
    def total(self) -> float:
        return self.weights + self.kv + self.embedding


def step_bytes(config: ModelConfig, keys: Sequence[float], experts: float = 0.0, *, weight_bytes: int = 2,
               kv_bytes: int = 2) -> StepBytes:  # fmt: skip
    """``keys``: how many each row sees where it sees all, its own included; ``experts``: distinct pairs of a routed layer and
    one of its experts that the step touches (or a mean); ``weight_bytes``, ``kv_bytes`` of an element as it is stored."""
    c = config
    always = c.vocab * c.hidden
    for spec in c.layers:
        always += 2 * (c.heads + c.kv_heads) * c.head_dim * c.hidden  # Q and O; K and V
        if spec.mlp == "moe":
            always += (c.experts + 3 * c.shared_width) * c.hidden
        else:
            always += 3 * spec.width * c.hidden
    expert = next((3 * spec.width * c.hidden for spec in c.layers if spec.mlp == "moe"), 0)
    return StepBytes(
        weights=(always + experts * expert) * weight_bytes,
        kv=sum(kv_read(c, n) for n in keys) * 2 * c.kv_heads * c.head_dim * kv_bytes,
        embedding=len(keys) * c.hidden * weight_bytes,
    )


def kv_read(config: ModelConfig, keys: float) -> float:
    """Keys that a row which sees ``keys`` reads, summed over the layers: a sliding one reads its window at most."""
    return sum(min(keys, config.window) if spec.attention == "sliding" else keys for spec in config.layers)
