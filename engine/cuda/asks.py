"""Asks: what rows want of their pick, as the kernel reads it, and what it tells."""

from __future__ import annotations

from math import ceil

import numpy as np

from engine.cuda.abi import DRAWN, MAX_TOLD, SAMPLING, TOLD_BIT
from engine.pick import COLDEST, HOTTEST, ONE, Logprobs, logprobs_of
from engine.sampling import SamplingParams


def sampling_of(params: SamplingParams | None) -> np.ndarray:
    """SAMPLING[()] of a row; None, or nothing but the greedy token: mode 0."""
    out = np.zeros((), SAMPLING)
    if params is None:
        return out
    told = params.logprobs is not None
    out["mode"] = DRAWN * (params.temperature > 0) | TOLD_BIT * told
    out["temperature"] = min(max(params.temperature, COLDEST), HOTTEST) if params.temperature else 1
    out["top_k"], out["top_p"] = min(params.top_k, 0xFFFFFFFF), params.top_p
    out["min_weight"] = max(1, ceil(params.min_p * float(ONE)))
    out["seed"], out["choice"], out["tops"] = params.seed, params.choice, params.logprobs or 0
    return out


def told_of(told: np.void) -> Logprobs:
    """The log-probabilities that one TOLD is made of."""
    count = min(int(told["count"]), MAX_TOLD)
    tops = list(zip(told["token"][:count].tolist(), told["logits"][:count], strict=True))
    return logprobs_of(told["logit"], tops, told["top"], int(told["weight"]))
