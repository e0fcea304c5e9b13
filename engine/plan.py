"""StepPlan and StepResult: what the batcher asks of a backend for one step, and what comes back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np


@dataclass
class StepPlan:
    """Rows of one step, in order; rows of one sequence are consecutive positions.

    ``token``, ``position``, ``sequence`` i32[rows] (sequence: index into ``pages``), ``wants_logits`` bool[rows],
    ``pages`` i32[sequences, width]: page of each 64-token block (-1: none).
    """

    token: np.ndarray
    position: np.ndarray
    sequence: np.ndarray
    wants_logits: np.ndarray
    pages: np.ndarray

    def __len__(self) -> int:
        return len(self.token)


@dataclass
class StepResult:
    """``logits`` f32[rows, vocab] (rows that did not want logits are undefined; valid until the next step),
    ``greedy`` i32[rows] (-1 where not wanted), ``routes`` [(layer, slot, expert, rows)], times in ns."""

    logits: np.ndarray
    greedy: np.ndarray
    routes: list[tuple[int, int, int, int]]
    graph: int
    begin: int
    end: int


class Backend(Protocol):
    """Runs steps.  ``name`` is ``cpu`` or ``cuda``."""

    name: str

    def step(self, plan: StepPlan) -> StepResult: ...
    def close(self) -> None: ...
