"""Spread: what the costs of tasks were around their means by op, for steps of which the slowest task is waited for.

A step ends when its last task does and a counter is met by its last producer, so that costs that are all the mean of their op
make a step too short.  Here each task of another step has what a task of the fitted ones had around the mean: the same one (op,
layer, slot and tile) where there is one, else one of its op and layer, else one of its op, drawn with a fixed seed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from mkviz.costs import COSTS_OF_TASK, Costs
from mkviz.costs_fit import FittedStep
from mkviz.costs_model import OpCosts
from mkviz.graph import Graph
from mkviz.work import Work

SEED = 1
BITS = (8, 16, 16, 24)  # of op, layer, slot and tile in one number, in which tasks of an op, and of its layer, are neighbours


@dataclass(frozen=True, eq=False)
class Spread:
    """Of n tasks that ran, by ``key`` u64[n] (ascending): ``math`` f64[n], as a share of what ``model`` says of their work, and
    ``around`` i64[4, n], ns of the other costs in the order of COSTS_OF_TASK, of overhead beyond what ``model`` says."""

    model: OpCosts
    key: np.ndarray
    math: np.ndarray
    around: np.ndarray

    @classmethod
    def of(cls, model: OpCosts, steps: list[FittedStep]) -> Spread:
        """``steps``: those that ``model`` was fitted to."""
        keys, shares, costs = [], [], []
        for step in steps:
            graph, own = step.case.graph, step.case.costs
            said = model.of(graph, step.work, step.ran)
            keys.append(_keys(model, graph)[step.ran])
            shares.append((own.math / said.math)[step.ran])
            costs.append(np.stack([getattr(own, name)[step.ran] for name in COSTS_OF_TASK[1:]]))
            costs[-1][-1] -= said.overhead[step.ran]
        key = np.concatenate(keys)
        order = np.argsort(key, kind="stable")
        return cls(model, key[order], np.concatenate(shares)[order], np.concatenate(costs, axis=1)[:, order])

    def costs(self, graph: Graph, work: Work, ran: np.ndarray) -> Costs:
        """Of the tasks of a graph that ``ran`` bool[T], whose ops are all among the fitted ones; the others take no time."""
        mean, key = self.model.of(graph, work, ran), _keys(self.model, graph)[ran]
        low, high = self._range(key, 0)
        for below in (sum(BITS[2:]), sum(BITS[1:])):  # bits that may differ: slot and tile, then the layer, too
            wider, none = self._range(key, below), low == high
            low, high = np.where(none, wider[0], low), np.where(none, wider[1], high)
        chosen = low + (np.random.default_rng(SEED).random(len(key)) * (high - low)).astype(np.int64)
        math = mean.math.copy()
        math[ran] = np.maximum(1, np.rint(math[ran] * self.math[chosen]))
        around = {name: np.zeros(len(graph), np.int64) for name in COSTS_OF_TASK[1:]}
        for name, ns in zip(COSTS_OF_TASK[1:], self.around, strict=True):
            around[name][ran] = ns[chosen]
        around["overhead"][ran] = np.maximum(0, around["overhead"][ran] + mean.overhead[ran])
        return Costs(math, **around)

    def replayed(self, step: FittedStep) -> int:
        """ns that a replay of a step takes with these costs and nothing else of it but what each task had to do."""
        costs = self.costs(step.case.graph, step.work, step.ran)
        return replace(step.case, machine=self.model.machine, costs=costs).replay.makespan

    def error(self, step: FittedStep) -> float:
        """Of that against the recorded makespan, as a share."""
        return self.replayed(step) / step.step.makespan - 1

    def _range(self, key: np.ndarray, below: int) -> tuple[np.ndarray, np.ndarray]:
        """Of each key, from where to where those are that differ in the lowest ``below`` bits only."""
        first = key >> np.uint64(below) << np.uint64(below)
        last = first + np.uint64((1 << below) - 1)
        return np.searchsorted(self.key, first), np.searchsorted(self.key, last, "right")


def _keys(model: OpCosts, graph: Graph) -> np.ndarray:
    """u64[T], of the tasks of ops that the model knows."""
    known = list(model.ops)
    op = np.array([known.index(name) if name in known else 0 for name in graph.ops], np.int64)[graph.op]
    key = np.zeros(len(graph), np.uint64)
    for values, bits in zip((op, graph.layer, graph.slot, graph.tile), BITS, strict=True):
        key = key << np.uint64(bits) | (values.astype(np.int64) + 1).astype(np.uint64)
    return key
