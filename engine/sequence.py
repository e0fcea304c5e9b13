"""Sequence: one request on its way through the engine."""

from __future__ import annotations

import queue
import time
from dataclasses import dataclass, field

from engine.pick import Logprobs
from engine.sampling import SamplingParams, StopMatcher
from engine.tokenizer import Detokenizer
from mkviz.protocols import Piece, RequestInfo


@dataclass(eq=False)
class Sequence:
    """``tokens``: the prompt, then what was generated; ``computed``: how many of them have their K and V in ``pages``;
    ``logprobs``: of each generated token, where the request asks for them (there before the token's piece is).

    ``out`` carries :class:`Piece` to whoever reads the stream; the one with a finish reason is the last, an exception in its
    place is raised there.
    """

    request: int
    tokens: list[int]
    params: SamplingParams
    detokenizer: Detokenizer
    prompt: str = ""
    computed: int = 0
    pages: list[int] = field(default_factory=list)
    logprobs: list[Logprobs] = field(default_factory=list)
    state: str = "queued"
    finish_reason: str = ""
    cancelled: bool = False
    out: queue.SimpleQueue = field(default_factory=queue.SimpleQueue)
    arrived: int = field(default_factory=time.monotonic_ns)

    def __post_init__(self):
        self.prompt_tokens = len(self.tokens)
        self.matcher = StopMatcher(self.params.stop)

    @property
    def generated(self) -> int:
        return len(self.tokens) - self.prompt_tokens

    @property
    def budget(self) -> int:
        """Tokens that this request may come to hold: what its pages are reserved for."""
        return self.prompt_tokens + self.params.max_tokens

    def info(self) -> RequestInfo:
        return RequestInfo(
            self.request, self.state, time.monotonic_ns(), self.prompt_tokens, self.generated, self.prompt, self.finish_reason
        )

    def accept(self, token: int, step: int, eos: tuple[int, ...]) -> Piece:
        """Take the token that a step produced; returns the piece to stream, with a finish reason if it was the last."""
        index = self.generated
        self.tokens.append(token)
        ends = token in self.params.stop_tokens or (token in eos and not self.params.ignore_eos)
        text, stopped = self.matcher.push("" if ends else self.detokenizer.push(token))
        if ends or stopped:
            self.finish_reason = "stop"
        elif self.generated >= self.params.max_tokens:
            self.finish_reason = "length"
        if self.finish_reason and not stopped:
            more, stopped = self.matcher.push(self.detokenizer.flush())
            text += more + ("" if stopped else self.matcher.flush())
        return Piece(text, token, index, step, time.monotonic_ns() - self.arrived, self.finish_reason)


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
