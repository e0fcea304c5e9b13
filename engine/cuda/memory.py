"""Memory: the arrays that the kernel works in, with their sizes known before anything is allocated."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

from engine.builder import StepShape
from engine.config import ModelConfig
from engine.cuda import abi
from engine.cuda.device import Device
from engine.cuda.weights import PackedWeights
from engine.memory_plan import MemoryPlan
from engine.tiling import PAGE, SAMPLE_PARTS

Arrays = dict[str, tuple[Any, tuple[int, ...]]]  # name, as in Params -> (dtype, shape)
REMEDY = "a shorter --context, fewer --pages, a smaller model, or a larger GPU"
MARGIN, LEAST_MARGIN = 20, 1 << 30  # kept free where pages are made to fit: a twentieth of what is free, at least 1 GiB


def widths(config: ModelConfig) -> tuple[int, int]:
    """Width of an expert and of a dense FFN; 0 where the model has none."""
    moe, dense = ([s.width for s in config.layers if s.mlp == kind] for kind in ("moe", "dense"))
    return max(moe, default=0), max(dense, default=0)


def page_bytes(config: ModelConfig) -> int:
    """Bytes of a KV page: 64 tokens of K and V in every layer, bf16."""
    return len(config.layers) * config.kv_heads * 2 * PAGE * config.head_dim * 2


def work_arrays(config: ModelConfig, pages: int, max_steps: int, sms: int, head_tiles: int, sampling: bool = False,
                rows: int = abi.ROWS) -> Arrays:  # fmt: skip
    """All that the kernel reads and writes besides weights, task tables and rings, for steps of up to ``rows`` rows."""
    c, f32, u32, u16 = config, np.float32, np.uint32, np.uint16
    splits = StepShape.covering(1, c.max_positions).splits
    moe, dense = widths(c)
    more: Arrays = {}
    if c.qk_norm:
        more["head_scratch"] = f32, (sms, abi.STORERS, rows // 8, abi.HEAD_BLOCKS + 1, 32, 4)
    if one_row(c):
        more |= {f"{ONE}{name}": spec for name, spec in tagged_arrays(c, splits).items()}
    if rows > abi.ROWS:
        more["normed"] = u16, (c.hidden * rows,)
    if sampling:
        more |= sampling_arrays(rows, max_steps, head_tiles)
    return more | {
        "rope_table": (f32, (c.max_positions, c.head_dim // 2, 2)),
        "abort": (u32, (8,)), "stop": (u32, (1,)), "go": (u32, (max_steps + 1,)),
        "token": (u32, (rows,)), "position": (u32, (rows,)), "first": (u32, (rows,)), "sequence": (u32, (rows,)),
        "wants": (u32, (rows,)), "page_table": (u32, (rows, -(-c.max_positions // PAGE))),
        "kv": (u16, (pages, page_bytes(c) // 2)), "x": (f32, (2, rows, c.hidden)), "mid": (f32, (rows, c.hidden)),
        "q": (u16, (rows, c.heads, c.head_dim)), "part_out": (f32, (rows, c.heads, splits, c.head_dim)),
        "part_max": (f32, (rows, c.heads, splits)), "part_sum": (f32, (rows, c.heads, splits)),
        "attention": (u16, (c.heads * c.head_dim * rows,)), "router_logits": (f32, (rows, max(1, c.experts))),
        "chosen": (u32, (rows, abi.MAX_TOP_K)), "chosen_weight": (f32, (rows, abi.MAX_TOP_K)),
        "expert_hidden": (u16, (max(1, min(c.experts, rows * c.top_k) * moe * rows),)),
        "dense_hidden": (u16, (max(1, dense * rows),)), "shared_hidden": (u16, (max(1, c.shared_width * rows),)),
        "logits": (f32, (rows, c.vocab)), "tile_max": (f32, (rows, head_tiles)), "tile_arg": (u32, (rows, head_tiles)),
        "greedy": (u32, (max_steps, rows)), "routes": (u32, (len(c.layers), abi.route_slots(rows))),
        "states": (u32, (sms, len(abi.ROLES), 4)),
    }  # fmt: skip


ONE = "one_"  # before the names of what the kernel for one row has instead


def held_words(config: ModelConfig) -> int:
    """u32 of shared memory in which the kernel for one row holds what a projection back into the residual reads, the heads or a
    hidden layer: 256 for every chunk of its weights."""
    c = config

    def chunks(width: int) -> int:
        return -(-width // (16 * abi.CHUNK_K16))

    widths = [c.top_k * chunks(s.width) + chunks(c.shared_width) if s.mlp == "moe" else chunks(s.width) for s in c.layers]
    return 256 * max(chunks(c.heads * c.head_dim), *widths)


def one_row(config: ModelConfig) -> bool:
    """Whether a step of one row has a kernel of its own: such activations must have room in two stages of the ring."""
    return held_words(config) * 4 <= 2 * abi.CHUNK


class Tags:
    """Tags of what one-row steps hand over: a layer of a step has one that no other had since the words were cleared.
    Backends that share these arrays share this."""

    def __init__(self, of_step: int, clear: Callable[[], None]):
        self._of_step, self._clear, self._next = of_step, clear, 1

    def take(self, steps: int) -> int:
        """The first of a launch's."""
        if self._next + steps * self._of_step > 1 << 32:
            self._clear()
            self._next = 1
        first, self._next = self._next, self._next + steps * self._of_step
        return first


def tagged_arrays(config: ModelConfig, splits: int) -> Arrays:
    """What the kernel for one row hands over: words of 4 bytes and a tag (cuda/tagged.cuh)."""
    c, u64 = config, np.uint64
    moe, dense = widths(c)
    return {
        "x": (u64, (c.hidden,)), "mid": (u64, (c.hidden,)), "q": (u64, (c.heads + 2 * c.kv_heads, c.head_dim // 2)),
        "part_out": (u64, (c.heads, splits, c.head_dim)), "part_max": (u64, (c.heads, splits, 2)),
        "attention": (u64, (c.heads * c.head_dim // 2,)), "router_logits": (u64, (max(1, c.experts),)),
        "expert_hidden": (u64, (max(1, c.top_k * moe // 2),)), "dense_hidden": (u64, (max(1, dense // 2),)),
        "shared_hidden": (u64, (max(1, c.shared_width // 2),)),
    }  # fmt: skip


def sampling_arrays(rows: int, max_steps: int, head_tiles: int) -> Arrays:
    u8, u32, u64 = np.uint8, np.uint32, np.uint64
    return {
        "sampling": (u8, (rows, abi.SAMPLING.itemsize)), "told": (u8, (max_steps, rows, abi.TOLD.itemsize)),
        "tile_sums": (u64, (rows, head_tiles)), "part_sums": (u64, (rows, 2, SAMPLE_PARTS)),
        "candidates": (u32, (rows, abi.CANDIDATES, 2)), "weighed": (u64, (rows, abi.CANDIDATES, 2)), "cursor": (u32, (rows,)),
    }  # fmt: skip


def rope_table(config: ModelConfig) -> np.ndarray:
    """f32[positions, head_dim / 2, 2]: cosine and sine of every pair."""
    angle = np.arange(config.max_positions, dtype=np.float32)[:, None] * config.inv_freq()
    return (np.stack([np.cos(angle), np.sin(angle)], -1) * np.float32(config.rope_scale)).astype(np.float32)


def bytes_needed(config: ModelConfig, arrays: Arrays, sms: int, ring_capacity: int) -> dict[str, int]:
    """Bytes of device memory by purpose."""
    sizes = {name: prod(shape) * np.dtype(dtype).itemsize for name, (dtype, shape) in arrays.items()}
    return {
        "weights": PackedWeights.bytes_needed(config), "KV pages": sizes.pop("kv"),
        "rings": sms * abi.STORERS * ring_capacity * 32, "activations": sum(sizes.values()),
    }  # fmt: skip


def fit(arrays: Arrays, need: dict[str, int], free: int) -> None:
    """Fewer KV pages where ``free`` bytes do not hold them beside all else that is needed and a margin, which is then added to
    ``need``: for task tables, kernels and what packing takes for a while."""
    margin, (dtype, (wanted, halves)) = max(LEAST_MARGIN, free // MARGIN), arrays["kv"]
    others = sum(need.values()) - need["KV pages"] + margin
    pages = max(1, (free - others) // (2 * halves))
    if pages < wanted:
        arrays["kv"], need["KV pages"], need["margin"] = (dtype, (pages, halves)), 2 * pages * halves, margin


def plan(need: dict[str, int], pages: int, device: Device) -> MemoryPlan:
    """What will be taken of the device's memory, to be told and checked before anything is."""
    parts = {f"{pages:,} KV pages" if name == "KV pages" else name: count for name, count in need.items()}
    return MemoryPlan(f"memory of {device.name}", parts, device.free)
