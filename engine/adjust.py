"""Adjust: what a request's penalties, biases and constraint make of a row of logits before the pick (docs/sampling.md).

Each step is an f32 operation rounded to nearest, so that the result is the same on every device and bit for bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from engine.sampling import SamplingParams
from mkviz.errors import MkvizError


class Constraint(Protocol):
    """Which tokens may come next, for one request; called from the engine's thread, in turn, for each token.

    ``mask(generated)``: bool[vocab], True where the token may come next, or None for any; a shorter one allows nothing beyond
    its end.  ``accept(token)``: takes the picked token; True ends the request with finish reason ``stop``.
    """

    def mask(self, generated: list[int]) -> np.ndarray | None: ...
    def accept(self, token: int) -> bool: ...


def adjust(logits: np.ndarray, params: SamplingParams, prompt: Sequence[int], generated: Sequence[int]) -> np.ndarray:
    """f32[vocab] logits with the penalties and biases of ``params``, in this order; the argument itself stays as it is.

    ``repetition_penalty`` r, for tokens in the prompt or the answer: logits above 0 are divided by r, others multiplied.
    ``frequency_penalty``: times the token's count in the answer, subtracted.  ``presence_penalty``: subtracted once from tokens
    in the answer.  ``logit_bias``: added.
    """
    logits, f32 = logits.copy(), np.float32
    if params.repetition_penalty != 1:
        seen, r = np.unique(np.array([*prompt, *generated], np.int64)), f32(params.repetition_penalty)
        logits[seen] = np.where(logits[seen] > 0, logits[seen] / r, logits[seen] * r)
    if generated and (params.frequency_penalty or params.presence_penalty):
        seen, counts = np.unique(np.array(generated, np.int64), return_counts=True)
        logits[seen] -= f32(params.frequency_penalty) * counts.astype(f32)
        logits[seen] -= f32(params.presence_penalty)
    for token, bias in params.logit_bias.items():
        logits[token] += f32(bias)
    return logits


def forbid(logits: np.ndarray, mask: np.ndarray | None, ends: Sequence[int]) -> np.ndarray:
    """f32[vocab] logits with minus infinity for tokens that ``mask`` (see :class:`Constraint`) does not allow, and for ``ends``
    unless nothing else is allowed.  Raises :class:`MkvizError` when nothing is.
    """
    allowed = np.zeros(len(logits), bool)
    allowed[: None if mask is None else len(mask)] = True if mask is None else mask[: len(logits)]
    if not allowed.any():
        raise MkvizError("constraint: no token may come next", "a grammar that the model's tokens can spell")
    going_on = allowed.copy()
    going_on[list(ends)] = False
    return np.where(going_on if going_on.any() else allowed, logits, np.float32(-np.inf))
