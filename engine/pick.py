"""Pick: the rule that turns a row of logits into a token, the same on every device and bit for bit (docs/sampling.md).

Temperature 0 is greedy: the largest logit, the lowest id among equals.  Otherwise each step is an f32 or f64 operation rounded
to nearest (never a fused multiply-add) or arithmetic of whole numbers, so that no sum depends on the order of its terms:

1. *Weights.*  w[i] = floor(exp((logit[i] - top) / temperature) · 2^40) with ``top`` the largest logit, in f32 up to the
   product, then u64; :func:`exp` says how.
2. *Order.*  Of tokens with w > 0, the larger logit first, the lower id among equals.  ``top_k``: the first k stay.
3. ``top_p``: the shortest beginning of them whose w sum up to ceil(top_p · W) stays, W being the sum of all of them (f64).
4. ``min_p``: of these, tokens with w >= ceil(min_p · 2^40) stay (f64), the most probable among them always.
5. *Draw.*  r = u · W / 2^64, rounded down, with W the sum of what stays and u 64 random bits (:func:`draw`).  The pick is the
   first token, by ascending id, at which the running sum of w exceeds r.

A device may leave any row to the host, which applies the same rule to the row's logits: the token is the same.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from engine.sampling import SamplingParams
from mkviz.errors import MkvizError

ONE = 1 << 40  # the weight of the most probable token; 2^24 tokens of it are a sum of 64 bits
_NOTHING = np.float32(-28)  # exp(x) · 2^40 is below 1 from here down
COLDEST, HOTTEST = 1e-30, 1e30  # temperatures beyond are taken for these: f32 holds them, and no pick can differ
_LOG2_E, _LN2_HIGH, _LN2_LOW = (np.float32(c) for c in (1.4426950408889634, 0.693359375, -2.12194440054690583e-4))
_SERIES = tuple(np.float32(1 / d) for d in (5040, 720, 120, 24, 6, 2))
_M0, _M1, _W0, _W1, _LOW = 0xD2511F53, 0xCD9E8D57, 0x9E3779B9, 0xBB67AE85, 0xFFFFFFFF


def exp(x: np.ndarray) -> np.ndarray:
    """e to the x for f32 x in [-87, 0], as :func:`engine.cpu.math.exp` does it, to the last bit.

    n = floor(x · log2(e) + 1/2); r = x - n · HIGH - n · LOW; the series to r^7 by Horner's rule, its last three steps being
    p · r · r + r + 1 from left to right; times 2^n.
    """
    n = np.floor(x * _LOG2_E + np.float32(0.5))
    r = x - n * _LN2_HIGH - n * _LN2_LOW
    p = np.full_like(r, _SERIES[0])
    for c in _SERIES[1:]:
        p = p * r + c
    p = p * r * r + r + np.float32(1)
    return np.ldexp(p, n.astype(np.int32))


def draw(seed: int, position: int, choice: int) -> int:
    """64 random bits: Philox4x32-10 (Salmon et al., 2011) with key (seed low, seed high) and counter (position, choice, 0, 0);
    its word 0 is the low half, word 1 the high half."""
    c0, c1, c2, c3 = position, choice, 0, 0
    k0, k1 = seed & _LOW, seed >> 32
    for _ in range(10):
        a, b = _M0 * c0, _M1 * c2
        c0, c1, c2, c3 = (b >> 32) ^ c1 ^ k0, b & _LOW, (a >> 32) ^ c3 ^ k1, a & _LOW
        k0, k1 = (k0 + _W0) & _LOW, (k1 + _W1) & _LOW
    return c1 << 32 | c0


def weigh(logits: np.ndarray, temperature: float) -> tuple[np.ndarray, np.ndarray]:
    """(ids i64 ascending, weights u64) of the tokens whose weight is not 0.  ``logits`` f32[vocab].

    Raises :class:`MkvizError` when there is no finite largest logit: a NaN or plus infinity among them, or nothing but minus
    infinity.
    """
    top = logits.max()
    if not np.isfinite(top):
        raise MkvizError(f"logits: the largest is {top}", "finite logits; weights or activations of this model overflow")
    x = (logits - top) / np.float32(min(max(temperature, COLDEST), HOTTEST))
    ids = np.flatnonzero(x >= _NOTHING)
    weights = (exp(x[ids]) * np.float32(ONE)).astype(np.uint64)
    return ids[weights > 0], weights[weights > 0]


def kept(logits: np.ndarray, params: SamplingParams) -> tuple[np.ndarray, np.ndarray]:
    """(ids i64 ascending, weights u64): what ``params`` leave to draw from; probabilities are weights by their sum."""
    ids, weights = weigh(logits, params.temperature)
    if params.top_k or params.top_p < 1:
        order = np.argsort(-logits[ids], kind="stable")[: params.top_k or None]
        if params.top_p < 1:
            sums = np.cumsum(weights[order])
            need = min(max(1, int(np.ceil(params.top_p * float(sums[-1])))), int(sums[-1]))
            order = order[: int(np.searchsorted(sums, np.uint64(need))) + 1]  # with an int, sums would be rounded to f64
        order.sort()
        ids, weights = ids[order], weights[order]
    if params.min_p:
        stays = weights >= int(np.ceil(params.min_p * float(ONE)))
        ids, weights = ids[stays], weights[stays]
    return ids, weights


def pick(logits: np.ndarray, params: SamplingParams, position: int) -> int:
    """The token that follows the row at ``position`` of its sequence, from the row's f32[vocab] logits.

    Stateless: seed, position and ``params.choice`` give the random number, and it depends on nothing else.
    Raises :class:`MkvizError` as :func:`weigh` does, but for temperature 0.
    """
    if params.temperature == 0:
        return int(np.argmax(logits))
    ids, weights = kept(logits, params)
    sums = np.cumsum(weights)
    r = draw(params.seed, position, params.choice) * int(sums[-1]) >> 64
    return int(ids[np.searchsorted(sums, np.uint64(r), side="right")])


@dataclass(frozen=True)
class Logprobs:
    """``chosen``: natural logarithm of the model's probability of the picked token; ``top``: (id, logarithm) of the most
    probable tokens, equal ones by id.  Of the model itself: temperature 1, nothing filtered."""

    chosen: float
    top: tuple[tuple[int, float], ...]


def logprobs(logits: np.ndarray, token: int, top: int) -> Logprobs:
    """Of f32[vocab] logits: (logit - largest) - ln(W / 2^40) in f64, W the sum of the weights at temperature 1.

    Within 4e-7 of the exact logarithm.  Raises :class:`MkvizError` as :func:`weigh` does.
    """
    _, weights = weigh(logits, 1.0)
    return logprobs_of(logits[token], largest_of(logits, top), logits.max(), int(weights.sum()))


def largest_of(logits: np.ndarray, count: int) -> list[tuple[int, float]]:
    """(id, logit) of the ``count`` largest, in the rule's order."""
    most = np.argsort(-logits, kind="stable")[:count].tolist() if count else ()
    return [(i, logits[i]) for i in most]


def logprobs_of(logit: float, tops: list[tuple[int, float]], largest: float, weight: int) -> Logprobs:
    """The same from the numbers that a device carries: the picked token's logit, (id, logit) of the most probable tokens, the
    largest logit, and W."""
    total = float(np.log(float(weight) / ONE))
    return Logprobs(float(logit) - float(largest) - total, tuple((i, float(v) - float(largest) - total) for i, v in tops))
