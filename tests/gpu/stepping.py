"""Steps of the cuda backend as the GPU tests take them."""

import numpy as np

from engine.checkpoint import Weights
from engine.config import load_config
from engine.cuda.pack import fragments
from engine.plan import StepPlan
from engine.tiling import PAGE


def open_cuda(directory, **options):
    from engine.cuda.backend import CudaBackend

    config = load_config(directory)
    return CudaBackend(config, Weights.open(directory, config), **{"trace": 0} | options)


def make_plan(tokens, positions, sequences=None, pages=None, wants=True) -> StepPlan:
    """A step; without ``sequences`` all rows are of one, without ``pages`` its pages are 0, 1, 2, …"""
    n, i32 = len(tokens), np.int32
    sequences = np.zeros(n, i32) if sequences is None else np.asarray(sequences, i32)
    if pages is None:
        pages = np.arange(max(positions) // PAGE + 1, dtype=i32)[None]
    return StepPlan(np.asarray(tokens, i32), np.asarray(positions, i32), sequences, np.full(n, wants), np.asarray(pages, i32))


def feed(backend, tokens, start: int = 0, rows: int = 8) -> np.ndarray:
    """f32[tokens from start, vocab]: logits of one sequence in pages 0, 1, 2, …, ``rows`` causal rows a step."""
    out = np.empty((len(tokens) - start, backend.config.vocab), np.float32)
    for at in range(start, len(tokens), rows):
        part = tokens[at : at + rows]
        out[at - start :][: len(part)] = backend.step(make_plan(part, range(at, at + len(part)))).logits
    return out


def cut_page(backend, page: int, to: int, keys: int) -> None:
    """Copy a KV page but for its last keys: ``keys`` are kept, what lies behind them is zero, as when they were written."""
    c = backend.config
    kv = backend._arrays["kv"][page].get().reshape(len(c.layers), c.kv_heads, 2, PAGE * c.head_dim)
    order = np.arange(PAGE * c.head_dim, dtype=np.uint16)
    token_of_k = fragments(order.reshape(PAGE, c.head_dim), np) // c.head_dim  # keys are rows of K, and columns of V
    token_of_v = fragments(order.reshape(c.head_dim, PAGE), np) % PAGE
    kv[:, :, 0, token_of_k >= keys] = 0
    kv[:, :, 1, token_of_v >= keys] = 0
    with backend._stream:  # in order with the steps
        backend._arrays["kv"][to].set(kv.reshape(-1))
