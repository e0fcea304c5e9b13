"""Unpacking: packed weights and KV pages back into plain matrices, on the device where they lie.  The inverse of
:mod:`engine.cuda.pack`; works on numpy and cupy arrays alike (``xp``), of u16 (bf16 bits)."""

from __future__ import annotations

from typing import Any

from engine.config import ModelConfig
from engine.cuda.pack import pair_rows
from engine.tiling import PAGE


def matrix(packed: Any, k: int, xp: Any) -> Any:
    """u16[rows, k] of fragments; rows come as padded, to a multiple of 16."""
    #                      block, k16, row, pair, k half, row half, element
    w = packed.reshape(-1, k // 16, 8, 4, 2, 2, 2)
    return xp.ascontiguousarray(w.transpose(0, 5, 2, 1, 4, 3, 6)).reshape(-1, k)


def gate_over_up(packed: Any, k: int, owners: int, xp: Any) -> Any:
    """u16[owners, 2 * width, k]: of each owner (an expert) all gate rows, then all up rows."""
    w = matrix(packed, k, xp)
    w = w.reshape(owners, -1, 2, 8, k).transpose(0, 2, 1, 3, 4)
    return xp.ascontiguousarray(w).reshape(owners, -1, k)


def qkv(packed: Any, config: ModelConfig, xp: Any) -> Any:
    """u16[(heads + 2 * kv_heads) * head_dim, hidden]: heads of Q, of K, of V, each with its rows in the checkpoint's order."""
    c = config
    order = pair_rows(c.heads + 2 * c.kv_heads, c.head_dim, c.rope_style == "interleaved", xp)
    w = matrix(packed, c.hidden, xp)
    out = xp.empty_like(w)
    out[order] = w
    return out


def pages(kv: Any, config: ModelConfig, layer: int, ids: Any, xp: Any) -> tuple[Any, Any]:
    """(K, V), each u16[kv_heads, tokens, head_dim], of the pages ``ids`` (i64[n]) in order.  In a page of K the keys are the
    rows of fragments, in one of V the elements of a head are."""
    c = config
    found = kv.reshape(len(kv), len(c.layers), c.kv_heads, 2, PAGE * c.head_dim)[:, layer][ids]  # [n, kv_heads, 2, …]
    n, d = len(found), c.head_dim
    keys = matrix(found[:, :, 0].reshape(-1), d, xp).reshape(n, c.kv_heads, PAGE, d)
    values = matrix(found[:, :, 1].reshape(-1), PAGE, xp).reshape(n, c.kv_heads, d, PAGE).transpose(0, 1, 3, 2)
    return tuple(xp.ascontiguousarray(x.transpose(1, 0, 2, 3)).reshape(c.kv_heads, n * PAGE, d) for x in (keys, values))
