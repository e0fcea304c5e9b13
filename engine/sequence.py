"""Sequence: one request on its way through the engine."""

from __future__ import annotations

import queue
import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from engine.adjust import Constraint, adjust, forbid
from engine.pick import Logprobs
from engine.sampling import SamplingParams, StopMatcher
from engine.tokenizer import Detokenizer
from mkviz.protocols import Piece, RequestInfo


@dataclass(eq=False)
class Sequence:
    """``tokens``: the prompt, then what was generated; ``computed``: how many of them have their K and V in ``pages`` (page of
    each block of 64 tokens; -1: no layer needs it any more); ``keys``: names of the full pages; ``cached_tokens``: how many of
    the prompt were found computed when it began.

    ``logprobs``: of each generated token, ``prompt_logprobs``: of each prompt token, None for the first, where the request asks
    for them (there before the token's piece is).  ``salt``: requests share pages, and take turns, by it.  ``label``: what the
    caller knows the request by.

    ``state``: as in :class:`mkviz.protocols.RequestInfo`; ``finish_reason``: "", then stop, length, stopped or failed.  ``out``
    carries :class:`Piece` to whoever reads the stream, from the engine's thread; the one with a finish reason is the last, an
    exception in its place is raised there.

    Times in ns of the monotonic clock, 0 while unknown: ``arrived``; ``started``, when first admitted; ``first_token`` and
    ``last_token`` that went out; ``ended``.
    """

    request: int
    tokens: list[int]
    params: SamplingParams
    detokenizer: Detokenizer
    prompt: str = ""
    salt: str = ""
    constraint: Constraint | None = None
    label: str = ""
    out: Any = field(default_factory=queue.SimpleQueue)
    computed: int = 0
    pages: list[int] = field(default_factory=list)
    keys: list[bytes] = field(default_factory=list)
    cached_tokens: int = 0
    logprobs: list[Logprobs] = field(default_factory=list)
    prompt_logprobs: list[Logprobs | None] = field(default_factory=list)
    state: str = "queued"
    finish_reason: str = ""
    cancelled: bool = False
    preemptions: int = 0
    arrived: int = field(default_factory=time.monotonic_ns)
    started: int = 0
    first_token: int = 0
    last_token: int = 0
    ended: int = 0

    def __post_init__(self):
        self.prompt_tokens = len(self.tokens)
        self.matcher = StopMatcher(self.params.stop)
        if self.params.prompt_logprobs is not None:
            self.prompt_logprobs.append(None)

    @property
    def generated(self) -> int:
        return len(self.tokens) - self.prompt_tokens

    @property
    def left(self) -> int:
        """Tokens whose K and V are still to be computed."""
        return len(self.tokens) - self.computed

    @property
    def prompt_rows_wanted(self) -> range:
        """Positions whose logits the prompt's log-probabilities still need."""
        return range(len(self.prompt_logprobs) - 1, self.prompt_tokens - 1) if self.prompt_logprobs else range(0)

    def info(self) -> RequestInfo:
        return RequestInfo(
            self.request, self.state, time.monotonic_ns(), self.prompt_tokens, self.generated, self.prompt, self.finish_reason,
            self.label, self.cached_tokens,
        )  # fmt: skip

    @property
    def asks(self) -> SamplingParams | None:
        """How a backend may pick the next token itself; None where the logits are changed before the pick."""
        changed = self.params.adjusts or self.generated < self.params.min_tokens or self.constraint
        return None if changed else self.params

    def adjusted(self, logits: np.ndarray, eos: tuple[int, ...]) -> np.ndarray:
        """What the next token is picked from, of the model's f32[vocab] logits.  Raises MkvizError when nothing is allowed."""
        if self.asks:
            return logits
        params, early = self.params, self.generated < self.params.min_tokens
        prompt, answer = self.tokens[: self.prompt_tokens], self.tokens[self.prompt_tokens :]
        if params.adjusts:
            logits = adjust(logits, params, prompt, answer)
        mask = self.constraint.mask(answer) if self.constraint else None
        if mask is not None or early:
            ends = params.stop_tokens if params.ignore_eos else (*eos, *params.stop_tokens)
            logits = forbid(logits, mask, ends if early else ())
        return logits

    def accept(self, token: int, step: int, eos: tuple[int, ...]) -> Piece:
        """Take the token that a step produced; returns the piece to stream, with a finish reason if it was the last."""
        index = self.generated
        self.tokens.append(token)
        complete = self.constraint is not None and self.constraint.accept(token)
        ends = token in self.params.stop_tokens or (token in eos and (complete or not self.params.ignore_eos))
        text, stopped = self.matcher.push("" if ends else self.detokenizer.push(token))
        if ends or stopped or complete:
            self.finish_reason = "stop"
        elif self.generated >= self.params.max_tokens:
            self.finish_reason = "length"
        if self.finish_reason and not stopped:
            more, stopped = self.matcher.push(self.detokenizer.flush())
            text += more + ("" if stopped else self.matcher.flush())
        self.last_token = time.monotonic_ns()
        self.first_token = self.first_token or self.last_token
        return Piece(text, token, index, step, self.last_token - self.arrived, self.finish_reason)

    def put(self, item: Piece | Exception) -> None:
        """Hand an item to the reader; one that cannot take it has gone, which ends the request."""
        try:
            self.out.put(item)
        except Exception:
            self.cancelled = True


class Pieces:
    """Iterator over the pieces of a request as they come.

    Closing it, from any thread, or letting go of it stops the request; who waits for the next piece then gets a last one,
    with finish reason ``stopped``.  What made a request fail is raised in place of its last piece.
    """

    def __init__(self, sequence: Sequence):
        self._sequence, self._ended = sequence, False

    def __iter__(self) -> Pieces:
        return self

    def __next__(self) -> Piece:
        if self._ended:
            raise StopIteration
        piece = self._sequence.out.get()
        self._ended = self._ended or isinstance(piece, Exception) or bool(piece.finish_reason)
        if isinstance(piece, Exception):
            raise piece
        return piece

    def close(self) -> None:
        self._ended = self._sequence.cancelled = True

    __del__ = close
