"""Sampling: how a request wants its tokens picked (:mod:`engine.pick` does it), and where its text stops."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from mkviz.errors import MkvizError


@dataclass(frozen=True)
class SamplingParams:
    """How a request is sampled.  ``temperature`` 0 is greedy; ``top_k`` 0, ``top_p`` 1 and ``min_p`` 0 keep everything.

    ``choice``: which of several answers to one prompt this is; seed, position and choice decide a pick, whatever else is in the
    batch.  ``logprobs``: None, or how many of the most probable tokens are told beside the logarithm of the picked one's
    probability; ``prompt_logprobs``: the same of each prompt token after the first.  ``presence_penalty``,
    ``frequency_penalty``, ``repetition_penalty`` and ``logit_bias`` (token -> what is added) change the logits before the pick
    (:mod:`engine.adjust`).
    ``stop``: strings, which do not become part of the text; ``stop_tokens``: ids that end the request besides the model's own
    end tokens (``ignore_eos`` leaves those out); none of these ids is picked before ``min_tokens`` tokens.
    """

    max_tokens: int = 256
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0
    choice: int = 0
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_tokens: tuple[int, ...] = ()
    ignore_eos: bool = False

    def __post_init__(self):
        tops = "None, or 0 to 20 tokens beside the picked one"
        for name, ok, right in (
            ("max_tokens", self.max_tokens >= 1, "at least 1"),
            ("min_tokens", 0 <= self.min_tokens <= self.max_tokens, f"0 to max_tokens, {self.max_tokens}"),
            ("temperature", 0 <= self.temperature < float("inf"), "0 (greedy) or a positive number"),
            ("top_k", self.top_k >= 0, "0 (all) or a positive number"),
            ("top_p", 0 < self.top_p <= 1, "above 0, at most 1"),
            ("min_p", 0 <= self.min_p <= 1, "0 (all) to 1"),
            ("seed", 0 <= self.seed < 1 << 64, "0 to 2^64 - 1"),
            ("choice", 0 <= self.choice < 1 << 32, "0 to 2^32 - 1"),
            ("logprobs", self.logprobs is None or 0 <= self.logprobs <= 20, tops),
            ("prompt_logprobs", self.prompt_logprobs is None or 0 <= self.prompt_logprobs <= 20, tops),
            ("presence_penalty", -2 <= self.presence_penalty <= 2, "-2 to 2"),
            ("frequency_penalty", -2 <= self.frequency_penalty <= 2, "-2 to 2"),
            ("repetition_penalty", 1e-2 <= self.repetition_penalty <= 1e2, "0.01 to 100; 1 changes nothing"),
            ("logit_bias", all(-100 <= b <= 100 for b in self.logit_bias.values()), "-100 to 100 for each token"),
            ("stop", all(self.stop), "no empty strings"),
        ):
            if not ok:
                raise MkvizError(f"{name}: {getattr(self, name)!r}", right)

    @property
    def adjusts(self) -> bool:
        """Whether penalties or biases change the logits before the pick."""
        return bool(self.presence_penalty or self.frequency_penalty or self.repetition_penalty != 1 or self.logit_bias)


class StopMatcher:
    """Watches streamed text for stop strings and holds back what may be the beginning of one."""

    def __init__(self, stop: tuple[str, ...]):
        self._stop, self._held = stop, ""
        self._longest = max(map(len, stop), default=0)

    def push(self, text: str) -> tuple[str, bool]:
        """(text that may go out, stopped?)."""
        held = self._held + text
        at = min((i for s in self._stop if (i := held.find(s)) >= 0), default=-1)
        if at >= 0:
            self._held = ""
            return held[:at], True
        # Looked for from the text's end and not by all beginnings of a stop string, which may be as long as a request.
        ends = range(max(0, len(held) - self._longest + 1), len(held))
        cut = next((i for i in ends if any(s.startswith(held[i:]) for s in self._stop)), len(held))
        self._held = held[cut:]
        return held[:cut], False

    def flush(self) -> str:
        out, self._held = self._held, ""
        return out
