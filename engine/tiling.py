"""Tiling: how many weight rows one task covers, per op."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from engine.config import ModelConfig

PAGE = 64  # tokens in a KV page
SAMPLE_PARTS = 64  # parts of a row's vocabulary, a task each, where rows are drawn on a GPU
SPLIT = 256  # keys in one attention split: fixed, so that a row's splits follow from its own length alone
ROW_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256)  # rows a step is padded to


def _tile(rows: int, tiles: int) -> int:
    """Rows per tile for about ``tiles`` tiles of a matrix: a multiple of 4, at most the whole matrix."""
    return min(rows, 4 * max(1, ceil(rows / max(1, tiles) / 4)))


@dataclass(frozen=True)
class Tiling:
    """Weight rows per task.  ``qkv_pairs``: pairs of rows of one head (RoPE turns pairs, so a tile never splits one).
    ``norm_tasks``, ``top_k_tasks``: whether rows are normed, and their experts found, by a task a row; else each SM does it for
    itself.
    ``sample``: parts of a row's vocabulary, by the LM head's tiles (0: rows are not drawn by tasks).
    ``merge``: parts of a head, a merge task each.
    ``teams``: how many row blocks an SM computes at the same time.

    No result depends on it.  Tiles that are multiples of 4 rows fill the interpreter's passes.
    """

    qkv_pairs: int
    o_proj: int
    router: int
    expert_up: int
    shared_up: int
    dense_up: int
    lm_head: int
    sample: int = 0
    merge: int = 1
    norm_tasks: bool = False
    top_k_tasks: bool = False
    teams: int = 1

    @classmethod
    def for_sms(cls, config: ModelConfig, sms: int) -> Tiling:
        """About one tile per SM and op; four per SM for the LM head, whose tail would otherwise be a whole tile long."""
        half, units = config.head_dim // 2, config.heads + 2 * config.kv_heads
        pairs = half
        if not config.qk_norm:  # a head norm needs its head in one tile
            least = 2 if config.rope_style == "interleaved" else 4  # 4 neighbouring rows
            pairs = min((p for p in range(least, half, least) if half % p == 0 and half // p * units <= sms), default=half)
        expert_width = max((layer.width for layer in config.layers if layer.mlp == "moe"), default=4)
        dense_width = max((layer.width for layer in config.layers if layer.mlp == "dense"), default=4)
        return cls(
            qkv_pairs=pairs,
            o_proj=_tile(config.hidden, sms),
            router=_tile(max(4, config.experts), sms // 8),
            expert_up=_tile(expert_width, ceil(sms / max(1, config.top_k))),
            shared_up=_tile(max(4, config.shared_width), sms),
            dense_up=_tile(dense_width, sms),
            lm_head=_tile(config.vocab, 4 * sms),
        )

    @classmethod
    def for_tensor_cores(cls, config: ModelConfig, sms: int, sampling: bool = False) -> Tiling:
        """Tiles of one 16-row block (8 gate and 8 up rows for the gated products); a whole head where it is normed; the LM head
        takes 8 blocks a task, or fewer where that would leave an SM less than two tasks."""
        blocks = max(1, min(8, config.vocab // 16 // (2 * sms)))
        pairs = config.head_dim // 2 if config.qk_norm else 8
        return cls(qkv_pairs=pairs, o_proj=16, router=16, expert_up=8, shared_up=8, dense_up=8, lm_head=16 * blocks,
                   sample=SAMPLE_PARTS * sampling)  # fmt: skip
