"""StepPlan and StepResult: what the batcher asks of a backend for one step, and what comes back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

if TYPE_CHECKING:
    from engine.builder import StepShape
    from engine.pick import Logprobs
    from engine.sampling import SamplingParams
    from mkviz.graph import Graph
    from mkviz.schedule import Schedule


@dataclass
class StepPlan:
    """Rows of one step, in order; rows of one sequence are consecutive positions.

    ``token``, ``position``, ``sequence`` i32[rows] (sequence: index into ``pages``), ``wants_logits`` bool[rows],
    ``pages`` i32[sequences, width]: page of each 64-token block (-1: none).  ``sampling``: of each row, how a backend that
    samples shall pick its token; None for a row whose logits the caller wants himself.  ``keys``: what the longest of the
    sequences will come to, as far as is known: the steps that follow may share a task table with this one.
    """

    token: np.ndarray
    position: np.ndarray
    sequence: np.ndarray
    wants_logits: np.ndarray
    pages: np.ndarray
    sampling: list[SamplingParams | None] | None = None
    keys: int = 0

    def __len__(self) -> int:
        return len(self.token)


@dataclass
class StepResult:
    """``logits`` f32[rows, vocab] (undefined for rows that did not want logits, or whose token a backend that samples has
    picked; valid until the next step), ``greedy`` i32[rows] (-1 where not wanted; for rows of ``plan.sampling`` what is
    picked, -1 where that is left to the caller), ``routes`` [(layer, slot, expert, rows)], times in ns.  ``told``:
    log-probabilities of picked tokens, where asked for."""

    logits: np.ndarray
    greedy: np.ndarray
    routes: list[tuple[int, int, int, int]]
    graph: int
    begin: int
    end: int
    told: list[Logprobs | None] | None = None


class Backend(Protocol):
    """Runs steps.  ``name`` is ``cpu`` or ``cuda``; ``max_rows``: of a step; ``pages``: of the KV cache; ``sampling``: whether
    it picks tokens itself; ``graphs``: of each task table, by number; ``serial``: the number of the next step; ``builds``:
    whether a step has its own task table built, rather than take the nearest there is.  ``program`` builds that of a
    shape, if there is none yet."""

    name: str
    max_rows: int
    pages: int
    sampling: bool
    graphs: dict[int, tuple[Graph, Schedule]]
    serial: int
    builds: bool

    def program(self, shape: StepShape) -> object: ...
    def zero_pages(self, pages: list[int]) -> None: ...
    def step(self, plan: StepPlan) -> StepResult: ...
    def close(self) -> None: ...
