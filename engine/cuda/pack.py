"""Packing: weights in the order in which the tensor cores read them, once, when a model is loaded.

A row block is 16 weight rows; its k16 fragments (16 rows x 16 columns, 512 bytes: 32 lanes of 16 bytes) follow each other, so
that up to 32 of them are one 16 KiB chunk of the ring.  Works on numpy and cupy arrays alike (``xp``), of u16 (bf16 bits).
"""

from __future__ import annotations

from typing import Any


def pad_rows(w: Any, xp: Any) -> Any:
    """w u16[rows, k] with zero rows up to a multiple of 16."""
    missing = -len(w) % 16
    return w if not missing else xp.concatenate([w, xp.zeros((missing, w.shape[1]), w.dtype)])


def fragments(w: Any, xp: Any) -> Any:
    """u16[rows * k]: w u16[rows, k] (k a multiple of 16; rows are padded) in fragment order.

    Lane 4 g + t of a fragment holds, for register (half of k, half of the rows), elements 2 t and 2 t + 1 of row g: the A
    operand of mma.m16n8k16 (PTX ISA, "Matrix fragments for mma.m16n8k16").
    """
    w = pad_rows(w, xp)
    rows, k = w.shape
    #             block      row half, row, k16, k half, pair, element
    w = w.reshape(rows // 16, 2, 8, k // 16, 2, 4, 2)
    return xp.ascontiguousarray(w.transpose(0, 3, 2, 5, 4, 1, 6)).reshape(-1)


def pair_rows(heads: int, head_dim: int, interleaved: bool, xp: Any) -> Any:
    """i64[heads * head_dim]: row order in which each block holds the first elements of eight RoPE pairs, then the second."""
    first, second = pair_elements(head_dim, interleaved, xp)
    blocks = xp.concatenate([first.reshape(-1, 8), second.reshape(-1, 8)], 1).reshape(-1)
    return (xp.arange(heads)[:, None] * head_dim + blocks).reshape(-1)


def pair_elements(head_dim: int, interleaved: bool, xp: Any) -> tuple[Any, Any]:
    pair = xp.arange(head_dim // 2)
    return (2 * pair, 2 * pair + 1) if interleaved else (pair, pair + head_dim // 2)


def gate_up(gate: Any, up: Any, xp: Any) -> Any:
    """u16[2 * width, k]: eight gate rows, then the same eight rows of up, in turn (width a multiple of 8)."""
    width, k = gate.shape
    return xp.stack([gate.reshape(width // 8, 8, k), up.reshape(width // 8, 8, k)], 1).reshape(2 * width, k)
