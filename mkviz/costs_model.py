"""Costs by op: what a task of an op takes, from the work it has, fitted to recorded steps and judged on others."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np

from mkviz.costs import COSTS_OF_TASK, Costs
from mkviz.costs_fit import FittedStep
from mkviz.errors import MkvizError
from mkviz.graph import Graph
from mkviz.machine import Machine
from mkviz.work import Work

TOLD, LENT, NOT_TOLD = "told", "lent", "not told"


@dataclass(frozen=True)
class OpCost:
    """Of a task of an op, ns: ``base`` + ``per_byte`` x bytes + ``per_flop`` x flops of math, none of them below 0, and what is
    around it; overhead has a part that goes with flops, too, because SMs that share a processor wait for each other's work.
    ``tasks``: how many it was fitted to.

    ``per_flop`` is ``told`` by tasks that had other flops with the same bytes, ``lent`` by the ops to which that applies, or
    ``not told``: then it is 0, and may be anything up to ``at_most``.
    """

    tasks: int
    base: float
    per_byte: float
    per_flop: float
    flops: str
    at_most: float
    publish: int
    hop: int
    feed: int
    overhead: float
    overhead_per_flop: float

    def math(self, size: np.ndarray, flops: np.ndarray) -> np.ndarray:
        return np.maximum(1, np.rint(self.base + self.per_byte * size + self.per_flop * flops)).astype(np.int64)

    def all_flops(self) -> OpCost:
        """The same where all of its math is for flops."""
        return replace(self, base=0.0, per_byte=0.0, per_flop=self.at_most)


@dataclass(frozen=True)
class OpCosts:
    """``ops``: name to OpCost; ``machine``: of the first step that they were fitted to."""

    ops: dict[str, OpCost]
    machine: Machine

    @classmethod
    def fit(cls, steps: list[FittedStep]) -> OpCosts:
        """Least squares of math over the tasks that ran, and means of the others, whose sums a step is made of."""
        rows: dict[str, list[np.ndarray]] = {}
        for step in steps:
            graph, costs = step.case.graph, [getattr(step.case.costs, name) for name in COSTS_OF_TASK]
            table = np.stack([step.work.bytes, step.work.flops, *costs], axis=1)
            for i, op in enumerate(graph.ops):
                if (mine := step.ran & (graph.op == i)).any():
                    rows.setdefault(op, []).append(table[mine])
        tables = {op: np.concatenate(parts) for op, parts in rows.items()}
        told = {op: _weights(table[:, :3]) for op, table in tables.items() if _tells_flops(table)}
        lent = _middle([(w[2], tables[op][:, 2].sum()) for op, w in told.items() if tables[op][:, 1].any()])
        return cls({op: _fit(table, told.get(op), lent) for op, table in tables.items()}, steps[0].case.machine)

    @property
    def not_told(self) -> list[str]:
        """Ops of which nobody knows what more rows add."""
        return [op for op, cost in self.ops.items() if cost.flops == NOT_TOLD]

    def of(self, graph: Graph, work: Work, ran: np.ndarray | None = None) -> Costs:
        """The costs of a graph's tasks; those that do not run (``ran`` bool[T], default: all do) take no time.

        Raises MkvizError for an op that it was not fitted to."""
        ran = np.ones(len(graph), bool) if ran is None else ran
        out = {name: np.zeros(len(graph), np.int64) for name in COSTS_OF_TASK}
        out["math"] += 1
        for i in np.unique(graph.op[ran]).tolist():
            if graph.ops[i] not in self.ops:
                what = f"op {graph.ops[i]!r} ran in no step that the costs are fitted to"
                raise MkvizError(what, f"a graph of {', '.join(self.ops)}")
            cost, mine = self.ops[graph.ops[i]], ran & (graph.op == i)
            out["math"][mine] = cost.math(work.bytes[mine], work.flops[mine])
            for name in COSTS_OF_TASK[1:-1]:
                out[name][mine] = getattr(cost, name)
            out["overhead"][mine] = np.rint(cost.overhead + cost.overhead_per_flop * work.flops[mine])
        return Costs(**out)

    def knows(self, step: FittedStep) -> bool:
        """Whether it was fitted to all ops that ran in a step."""
        return {step.case.graph.ops[i] for i in np.unique(step.case.graph.op[step.ran]).tolist()} <= self.ops.keys()

    def replayed(self, step: FittedStep) -> int:
        """ns that a replay of a step takes with these costs and nothing else of it but what each task had to do."""
        costs = self.of(step.case.graph, step.work, step.ran)
        return replace(step.case, machine=self.machine, costs=costs).replay.makespan

    def error(self, step: FittedStep) -> float:
        """Of that against the recorded makespan, on a step that they were not fitted to."""
        return self.replayed(step) / step.step.makespan - 1

    def if_flops(self) -> OpCosts:
        """The other end of what is not told: all that these ops take beyond their bytes is for flops."""
        ops = {op: cost.all_flops() if cost.flops == NOT_TOLD else cost for op, cost in self.ops.items()}
        return replace(self, ops=ops)


def _fit(table: np.ndarray, told: list[float] | None, lent: float | None) -> OpCost:
    """Of the columns bytes, flops and COSTS_OF_TASK.  ``told``: weights, where the table tells them; ``lent``: per_flop."""
    size, flops, math = table[:, :3].T
    at_most = float(math.sum() / flops.sum()) if flops.any() else 0.0
    weights, how = told, TOLD
    if told is None and lent is None:
        weights, how = [*_weights(table[:, [0, 2]]), 0.0], NOT_TOLD if flops.any() else TOLD
    elif told is None:
        lent = min(lent, at_most)
        weights, how = [*_weights(np.stack([size, math - lent * flops], axis=1)), lent], LENT
    *around, overhead = table[:, 3:].mean(axis=0).tolist()
    late = _weights(table[:, [1, 6]]) if how == TOLD and flops.any() else [overhead, 0.0]
    return OpCost(len(table), *weights, how, at_most, *map(round, around), *late)


def _tells_flops(table: np.ndarray) -> bool:
    """Whether tasks had more flops than others by more than 1 % of the most, beyond what goes with their bytes."""
    size, flops = np.unique(table[:, :2], axis=0).T
    if not flops.any():
        return True  # there is nothing to tell
    columns = np.stack([np.ones(len(size)), size / max(1, size.max())], axis=1)
    left = flops - columns @ np.linalg.lstsq(columns, flops, rcond=None)[0]
    return bool(np.abs(left).max() > 0.01 * flops.max())


def _middle(found: list[tuple[float, float]]) -> float | None:
    """The weighted median of (value, weight), None of none."""
    found = sorted(found)
    half = sum(weight for _, weight in found) / 2
    total = np.cumsum([weight for _, weight in found])
    return found[int(np.searchsorted(total, half))][0] if found else None


def _weights(table: np.ndarray) -> list[float]:
    """Of the columns of work and, last, ns: ns for itself and for each of what there is of work, none below 0.

    Least squares of the error of the mean ns of tasks with the same work, relative to it (or to a tenth of the mean of all,
    where that is more), because what tasks take is spread in proportion; each counts as many times as there are such tasks."""
    what, of, count = np.unique(table[:, :-1], axis=0, return_inverse=True, return_counts=True)
    mean = np.bincount(of.reshape(-1), table[:, -1]) / count
    weight = np.sqrt(count) / np.maximum(mean, max(1.0, table[:, -1].mean() / 10))
    columns = np.concatenate([what, np.ones((len(what), 1))], axis=1)  # where all have the same work, it is for that work
    *of_work, base = _least_squares(columns * weight[:, None], mean * weight)
    return [base, *of_work]


def _least_squares(columns: np.ndarray, values: np.ndarray) -> list[float]:
    """Weights of 0 or more with the least squares: of all choices of columns the best whose own solution has no weight below 0.
    Of columns that say the same (bytes and flops of tasks that are all alike) the first takes it all."""
    scale = np.maximum(np.abs(columns).max(axis=0), 1e-300)
    best, found = np.inf, np.zeros(columns.shape[1])
    for n in range(1, columns.shape[1] + 1):
        for chosen in map(list, combinations(range(columns.shape[1]), n)):
            part = columns[:, chosen] / scale[chosen]
            if np.linalg.matrix_rank(part) < n:
                continue
            weights = np.linalg.lstsq(part, values, rcond=None)[0]
            left = float(((part @ weights - values) ** 2).sum())
            if (weights >= 0).all() and left < best * (1 - 1e-9) - 1e-15:
                best, found = left, np.zeros(columns.shape[1])
                found[chosen] = weights / scale[chosen]
    return found.tolist()
