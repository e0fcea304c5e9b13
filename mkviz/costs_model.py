"""Costs by op: what a task of an op takes, from its bytes and flops, fitted to recorded steps and judged on others."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np

from mkviz.costs import COSTS_OF_TASK, Costs
from mkviz.costs_fit import FittedStep
from mkviz.errors import MkvizError
from mkviz.graph import Graph
from mkviz.machine import Machine


@dataclass(frozen=True)
class OpCost:
    """Of a task of an op, ns: ``base`` + ``per_byte`` x bytes + ``per_flop`` x flops of math, none of them below 0, and what is
    around it.  ``tasks``: how many it was fitted to."""

    tasks: int
    base: float
    per_byte: float
    per_flop: float
    publish: int
    hop: int
    feed: int
    overhead: int


@dataclass(frozen=True)
class OpCosts:
    """``ops``: name to OpCost; ``machine``: of the first step that they were fitted to."""

    ops: dict[str, OpCost]
    machine: Machine

    @classmethod
    def fit(cls, steps: list[FittedStep]) -> OpCosts:
        """Least squares of math over the tasks that ran, and means of the other costs, whose sums a step is made of."""
        rows: dict[str, list[np.ndarray]] = {}
        for step in steps:
            graph, costs = step.case.graph, [getattr(step.case.costs, name) for name in COSTS_OF_TASK]
            table = np.stack([graph.bytes, graph.flops, *costs], axis=1)
            for i, op in enumerate(graph.ops):
                if (mine := step.ran & (graph.op == i)).any():
                    rows.setdefault(op, []).append(table[mine])
        return cls({op: _fit(np.concatenate(parts)) for op, parts in rows.items()}, steps[0].case.machine)

    def of(self, graph: Graph, ran: np.ndarray | None = None) -> Costs:
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
            math = cost.base + cost.per_byte * graph.bytes[mine] + cost.per_flop * graph.flops[mine]
            out["math"][mine] = np.maximum(1, np.rint(math))
            for name in COSTS_OF_TASK[1:]:
                out[name][mine] = getattr(cost, name)
        return Costs(**out)

    def knows(self, step: FittedStep) -> bool:
        """Whether it was fitted to all ops that ran in a step."""
        return {step.case.graph.ops[i] for i in np.unique(step.case.graph.op[step.ran]).tolist()} <= self.ops.keys()

    def error(self, step: FittedStep) -> float:
        """On a step that they were not fitted to: the makespan of its replay with these costs against the recorded one."""
        case = replace(step.case, machine=self.machine, costs=self.of(step.case.graph, step.ran))
        return case.replay.makespan / step.step.makespan - 1

    def frame(self, step: FittedStep):
        """On such a step, a row for each op: ``tasks``, ``recorded`` and ``predicted`` ns of their math in all, ``error``."""
        import pandas as pd

        graph, costs, rows = step.case.graph, self.of(step.case.graph, step.ran), []
        for i in np.unique(graph.op[step.ran]).tolist():
            mine = step.ran & (graph.op == i)
            rows.append((graph.ops[i], int(mine.sum()), int(step.case.costs.math[mine].sum()), int(costs.math[mine].sum())))
        out = pd.DataFrame(rows, columns=["op", "tasks", "recorded", "predicted"])
        return out.assign(error=out["predicted"] / out["recorded"] - 1)


def _fit(table: np.ndarray) -> OpCost:
    """Of the columns bytes, flops and COSTS_OF_TASK."""
    size, flops, math = table[:, :3].T.astype(float)
    weights = _least_squares(np.stack([np.ones(len(math)), size, flops], axis=1), math)
    return OpCost(len(table), *weights, *(round(float(np.mean(ns))) for ns in table[:, 3:].T))


def _least_squares(columns: np.ndarray, values: np.ndarray) -> list[float]:
    """Weights of 0 or more with the least squares: of all choices of columns the best whose own solution has no weight below 0.
    Of columns that say the same (bytes and flops of tasks that are all alike) the first takes it all."""
    scale = np.maximum(np.abs(columns).max(axis=0), 1)
    best, found = np.inf, np.zeros(columns.shape[1])
    for n in range(1, columns.shape[1] + 1):
        for chosen in map(list, combinations(range(columns.shape[1]), n)):
            part = columns[:, chosen] / scale[chosen]
            if np.linalg.matrix_rank(part) < n:
                continue
            weights = np.linalg.lstsq(part, values, rcond=None)[0]
            left = float(((part @ weights - values) ** 2).sum())
            if (weights >= 0).all() and left < best * (1 - 1e-9):
                best, found = left, np.zeros(columns.shape[1])
                found[chosen] = weights / scale[chosen]
    return found.tolist()
