"""Asks: what rows want of their pick, as the interpreter reads it, and what it tells."""

from __future__ import annotations

from math import ceil

import numpy as np

from engine.pick import COLDEST, HOTTEST, ONE, Logprobs, largest_of, logprobs_of
from engine.sampling import SamplingParams


def words_of(params: SamplingParams) -> tuple[np.ndarray, np.ndarray]:
    """(i64[5], f64[2]) of a row: see :class:`engine.cpu.binding.Binding`."""
    temperature = np.float32(min(max(params.temperature, COLDEST), HOTTEST)) if params.temperature else 1
    mode = (params.temperature > 0) | (params.logprobs is not None) << 1
    whole = np.array([mode, params.top_k, max(1, ceil(params.min_p * float(ONE))), params.seed, params.choice], np.uint64)
    return whole.view(np.int64), np.array([temperature, params.top_p])


def told_of(params: SamplingParams | None, logits: np.ndarray, token: int, weight: int) -> Logprobs | None:
    """What a row that asks for log-probabilities is told, if it has a token; ``weight``: that of its vocabulary."""
    if params is None or params.logprobs is None or token < 0:
        return None
    return logprobs_of(logits[token], largest_of(logits, params.logprobs), logits.max(), weight)
