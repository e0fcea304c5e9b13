"""Sampling: from a row of logits to a token, and from a stream of text to where it stops."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mkviz.errors import MkvizError


@dataclass(frozen=True)
class SamplingParams:
    """How a request is sampled.  ``temperature`` 0 is greedy; ``top_k`` 0 and ``top_p`` 1 keep everything.

    ``stop``: strings, which do not become part of the text; ``stop_tokens``: ids that end the request besides the model's own
    end tokens (``ignore_eos`` leaves those out).  The same seed gives the same tokens whatever else is in the batch.
    """

    max_tokens: int = 256
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0
    stop: tuple[str, ...] = ()
    stop_tokens: tuple[int, ...] = ()
    ignore_eos: bool = False

    def __post_init__(self):
        for field, ok, right in (
            ("max_tokens", self.max_tokens >= 1, "at least 1"),
            ("temperature", 0 <= self.temperature < float("inf"), "0 (greedy) or a positive number"),
            ("top_k", self.top_k >= 0, "0 (all) or a positive number"),
            ("top_p", 0 < self.top_p <= 1, "above 0, at most 1"),
            ("seed", 0 <= self.seed < 1 << 64, "0 to 2^64 - 1"),
            ("stop", all(self.stop), "no empty strings"),
        ):
            if not ok:
                raise MkvizError(f"{field}: {getattr(self, field)!r}", right)


def distribution(logits: np.ndarray, params: SamplingParams) -> tuple[np.ndarray, np.ndarray]:
    """(token ids, probabilities f64) that ``params`` allow, most probable first, equal ones by id.

    Temperature, then the top_k largest logits, then the shortest head whose probability reaches top_p, then renormalised.
    """
    order = np.argsort(-logits.astype(np.float64), kind="stable")
    if params.top_k:
        order = order[: params.top_k]
    kept = logits[order].astype(np.float64)
    probs = np.exp((kept - kept[0]) / params.temperature)
    probs /= probs.sum()
    if params.top_p < 1:
        keep = int(np.searchsorted(np.cumsum(probs), params.top_p)) + 1
        order, probs = order[:keep], probs[:keep] / probs[:keep].sum()
    return order, probs


def sample(logits: np.ndarray, params: SamplingParams, index: int) -> int:
    """Token number ``index`` of a request from f32[vocab] logits.

    Stateless: the one random number is Philox's for the key (seed, index), so it depends on nothing else.
    """
    if params.temperature == 0:
        return int(np.argmax(logits))
    order, probs = distribution(logits, params)
    u = np.random.Generator(np.random.Philox(key=np.array([params.seed, index], np.uint64))).random()
    return int(order[min(int(np.searchsorted(np.cumsum(probs), u, side="right")), len(order) - 1)])


class StopMatcher:
    """Watches streamed text for stop strings and holds back what may be the beginning of one."""

    def __init__(self, stop: tuple[str, ...]):
        self._stop, self._held = stop, ""

    def push(self, text: str) -> tuple[str, bool]:
        """(text that may go out, stopped?)."""
        self._held += text
        at = min((i for s in self._stop if (i := self._held.find(s)) >= 0), default=-1)
        if at >= 0:
            out, self._held = self._held[:at], ""
            return out, True
        keep = max((n for s in self._stop for n in range(1, len(s)) if self._held.endswith(s[:n])), default=0)
        out, self._held = self._held[: len(self._held) - keep], self._held[len(self._held) - keep :]
        return out, False

    def flush(self) -> str:
        out, self._held = self._held, ""
        return out
