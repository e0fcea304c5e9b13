"""An engine on paper: the batcher and the pool as they are, and in place of a model a hash that reads and writes pages.

What stands for the K and V of a position is a number made from its token and from the number of the position before, which is
read from the page that the step's table names.  A page that is shared wrongly, written by somebody else or given away too early
changes every number after it, and with them the tokens.
"""

from types import SimpleNamespace

import numpy as np

from engine.batching import Batcher
from engine.kv import PagePool
from engine.layers import LayerSpec
from engine.sampling import SamplingParams
from engine.sequence import Sequence
from engine.step_time import StepTime
from engine.tiling import PAGE

VOCAB = 50
CONFIG = SimpleNamespace(experts=0, top_k=0, window=0, layers=(LayerSpec("full", True, "dense", 8),))


def mixed(before: int, token: int) -> int:
    """The number of a position, from that of the one before (-1: none)."""
    return hash((before, token)) & (1 << 62) - 1


def answer(tokens: list[int], count: int) -> list[int]:
    """What a request alone gets."""
    at, new = -1, []
    for token in tokens:
        at = mixed(at, token)
    for _ in range(count):
        new.append(at % VOCAB)
        at = mixed(at, new[-1])
    return new


class Paper:
    """``step_ns(spans)``: how long a step takes on the clock ``now``.  ``steps``: [(request, first position, rows)] of each."""

    def __init__(self, pages=20, *, batch=4, max_rows=64, step_ns=lambda spans: 1_000_000, **options):
        self.pool = PagePool(pages)
        self.step_time = StepTime(CONFIG)
        self.batcher = Batcher(self.pool, self.step_time, max_rows=max_rows, batch=batch, **options)
        self.kv = np.full((pages, PAGE), -1, np.int64)
        self.written_for = [None] * pages  # the salt of whoever opened a page last
        self.step_ns, self.now, self.steps, self.requests, self.ended = step_ns, 1, [], 0, []
        self.preemptions = 0

    def submit(self, tokens, max_tokens=8, salt="") -> Sequence:
        sequence = Sequence(self.requests, list(tokens), SamplingParams(max_tokens=max_tokens), None, salt=salt)
        self.requests += 1
        self.batcher.waiting.add(sequence)
        return sequence

    def step(self) -> None:
        """As the engine does it: start what can start, compute a step, take its tokens."""
        for sequence in self.batcher.admit():
            assert all(self.written_for[p] == sequence.salt for p in sequence.pages if p >= 0), "a page of another salt"
        step = self.batcher.plan(self.now)
        self.preemptions += len(step.preempted)
        if not step.rows:
            return
        assert sum(count for _, count in step.rows) <= self.batcher.max_rows
        for page in step.opened:
            self.kv[page] = -1
            self.written_for[page] = next(s.salt for s, _ in step.rows if page in s.pages)
        spans, plan = step.spans, step.for_backend()
        self.steps.append([(s.request, s.computed, count) for s, count in step.rows])
        last = self._compute(plan)
        self.now += self.step_ns(spans)
        if self.batcher.budget_ns:
            self.step_time.observe(spans, self.step_ns(spans))
        for (sequence, count), number in zip(step.rows, last, strict=True):
            self.batcher.computed(sequence, count)
            if sequence.left:
                continue
            sequence.tokens.append(number % VOCAB)
            sequence.state, sequence.last_token = "decode", self.now
            if sequence.generated == sequence.params.max_tokens:
                self.end(sequence)

    def _compute(self, plan) -> list[int]:
        """Write a number for every row; returns the last one of each sequence."""
        numbers = {}
        for token, position, owner in zip(plan.token.tolist(), plan.position.tolist(), plan.sequence.tolist(), strict=True):
            before = self._at(plan.pages[owner], position - 1) if position else -1
            page = plan.pages[owner, position // PAGE]
            assert page >= 0 and self.kv[page, position % PAGE] == -1, "a position is written once"
            self.kv[page, position % PAGE] = numbers[owner] = mixed(before, token)
        return [numbers[i] for i in range(len(plan.pages))]

    def _at(self, pages, position: int) -> int:
        assert pages[position // PAGE] >= 0
        number = int(self.kv[pages[position // PAGE], position % PAGE])
        assert number >= 0, "K and V that are read have been written"
        return number

    def end(self, sequence) -> None:
        self.batcher.remove(sequence)
        self.batcher.release(sequence)
        sequence.ended = self.now
        self.ended.append(sequence)

    def run(self, most=20_000) -> None:
        for _ in range(most):
            if not any(True for _ in self.batcher):
                return
            self.step()
        raise AssertionError("requests are left")
