"""Runs token sequences on a backend, row by row, in any mixture of steps: what the tests of the interpreter share."""

import numpy as np

from engine.checkpoint import Weights
from engine.config import load_config
from engine.plan import StepPlan
from engine.tiling import PAGE

__all__ = ["Rows", "demo_directory", "open_backend", "same_bits"]


def demo_directory():
    from engine.models import resolve_model

    return resolve_model(None)


def open_backend(directory, **options):
    """A :class:`CpuBackend` of the checkpoint in ``directory``."""
    from engine.cpu.backend import CpuBackend  # compiles the interpreter, which tests of other backends need not wait for

    config = load_config(directory)
    return CpuBackend(
        config, Weights.open(directory, config), **{"sms": 5, "workers": 2, "pages": 64, "trace": False} | options
    )


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether two f32 arrays are equal bit by bit (NaN equals NaN, 0 does not equal -0)."""
    return a.shape == b.shape and np.array_equal(a.view(np.uint32), b.view(np.uint32))


class Rows:
    """``tokens[i]``: sequence i.  :meth:`step` runs some next rows of each; ``logits[i]`` collects f32[rows so far, vocab]."""

    def __init__(self, backend, tokens: list[list[int]], seed: int | np.random.Generator = 0):
        self.backend, self.tokens, self.rng = backend, [list(t) for t in tokens], np.random.default_rng(seed)
        self.done = [0] * len(tokens)
        self.logits = [np.zeros((0, backend.config.vocab), np.float32) for _ in tokens]
        self.mixed = 0  # steps in which one sequence had a single row and another had several
        self.plans, self.results = [], []  # StepPlan, StepResult of each step
        self._free = self.rng.permutation(backend._arrays["kv"].shape[0]).tolist()  # pages of a sequence lie anywhere
        self._pages = [[] for _ in tokens]

    def step(self, counts: list[int], wanted: list[bool] | None = None) -> np.ndarray:
        """``counts[i]`` more rows of sequence i, with logits where ``wanted`` (all, by default); i32[rows]: greedy tokens."""
        token, position, owner = [], [], []
        for i, n in enumerate(counts):
            at = self.done[i]
            token += self.tokens[i][at : at + n]
            position += range(at, at + n)
            owner += [i] * n
            while len(self._pages[i]) * PAGE < at + n:
                self._pages[i].append(self._free.pop())
                self.backend.zero_pages(self._pages[i][-1:])
        self.mixed += 1 in counts and max(counts) > 1
        pages = np.full((len(counts), max(1, *map(len, self._pages))), -1, np.int32)
        for i, own in enumerate(self._pages):
            pages[i, : len(own)] = own
        i32 = np.int32
        wants = np.ones(len(token), bool) if wanted is None else np.array(wanted, bool)[owner]
        plan = StepPlan(np.array(token, i32), np.array(position, i32), np.array(owner, i32), wants, pages)
        result = self.backend.step(plan)
        self.plans.append(plan)
        self.results.append(result)
        for i, n in enumerate(counts):
            mine = plan.sequence == i
            self.logits[i] = np.concatenate([self.logits[i], result.logits[mine]])
            self.done[i] += n
        return result.greedy

    def run(self, most: int = 13) -> list[np.ndarray]:
        """All rows that are left, up to ``most`` at once, as many of each as chance says; returns ``logits``."""
        while any(left := [len(t) - d for t, d in zip(self.tokens, self.done, strict=True)]):
            counts, room = [0] * len(left), self.backend.max_rows
            for i in self.rng.permutation(len(left)).tolist():
                counts[i] = min(left[i], room, int(self.rng.choice([0, 1, 1, self.rng.integers(1, most + 1)])))
                room -= counts[i]
            if any(counts):
                self.step(counts)
        return self.logits

    def greedy(self, count: int) -> list[list[int]]:
        """Every sequence goes on by ``count`` greedy tokens; returns them."""
        self.run()
        start = [len(t) for t in self.tokens]
        for tokens, logits in zip(self.tokens, self.logits, strict=True):
            tokens.append(int(logits[-1].argmax()))
        for _ in range(count - 1):
            for tokens, token in zip(self.tokens, self.step([1] * len(self.tokens)).tolist(), strict=True):
                tokens.append(token)
        return [t[s:] for t, s in zip(self.tokens, start, strict=True)]
