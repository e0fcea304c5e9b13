"""Backends: where steps run, and what an engine opens one with where it is not told."""

from __future__ import annotations

from typing import Any

from engine.config import ModelConfig
from engine.kv import PagePool
from engine.memory_plan import free_host_memory
from mkviz.errors import MkvizError

BACKENDS = ("cpu", "cuda")
KV_BUDGET = 1 << 30  # bytes of KV pages in host memory by default, unless one whole context needs more


def backend_class(name: str):
    """The class of a backend; what it needs is imported only now."""
    if name == "cpu":
        from engine.cpu.backend import CpuBackend

        return CpuBackend
    if name == "cuda":
        from engine.cuda.backend import CudaBackend

        return CudaBackend
    raise MkvizError(f"backend: {name!r}", f"one of {', '.join(BACKENDS)}")


def options_of(kind, config: ModelConfig, batch: int, pages: int | None) -> dict[str, Any]:
    """Options of a backend for ``batch`` requests at once.

    ``pages=None``: whole contexts for all of them as far as memory goes, of which the cuda backend leaves a margin; in a host
    half of what is free may go, and a gigabyte unless a context needs more.  On cuda tokens are picked in the kernel, and steps
    have as many rows as there is a kernel for; a ring holds the records of two of the largest steps.
    """
    context = PagePool.pages_for(config.max_positions)
    if kind.name == "cuda":
        wanted = batch * context if pages is None else pages
        return {"pages": wanted, "fit": pages is None, "sampling": True, "rows": None, "ring_capacity": None}
    if pages is None:
        page_bytes = kind.page_bytes(config)
        wanted = max(context, min(batch * context, KV_BUDGET // page_bytes))
        pages = max(1, min(wanted, free_host_memory() // 2 // page_bytes))
    return {"pages": pages}
