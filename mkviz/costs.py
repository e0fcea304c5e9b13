"""Costs: what each task of a step takes, in whole ns; the machine says them, or a recorded step does (``costs_fit``)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mkviz.errors import MkvizError
from mkviz.graph import Graph
from mkviz.machine import Machine

COSTS_OF_TASK = ("math", "publish", "hop", "feed", "overhead")


@dataclass(frozen=True, eq=False)
class Costs:
    """Arrays over T tasks, i64 ns.

    ``math``: from begin to end with all bytes at hand, 1 at least.  ``publish``: from end to the raise of its counters.
    ``hop``: from the publish that meets its last wait until it is seen.  ``feed``: from there until its activations are
    prepared, beside the math of other tasks.  ``overhead``: from all operands there, and math free, to begin.

    Raises MkvizError for arrays of different lengths and for values below these.
    """

    math: np.ndarray
    publish: np.ndarray
    hop: np.ndarray
    feed: np.ndarray
    overhead: np.ndarray

    def __post_init__(self):
        count = max(len(getattr(self, name)) for name in COSTS_OF_TASK)
        for name in COSTS_OF_TASK:
            values, least = getattr(self, name), 1 if name == "math" else 0
            if len(values) != count:
                raise MkvizError(f"{name} has {len(values)} entries", f"one for each of the {count} tasks")
            for task in np.flatnonzero(values < least)[:1].tolist():
                raise MkvizError(f"{name} of task {task} is {values[task]}", f"{least} ns or more")

    def __len__(self) -> int:
        return len(self.math)

    @classmethod
    def of_machine(cls, graph: Graph, machine: Machine) -> Costs:
        """What a machine says of the tasks of a graph."""
        same = (machine.publish_ns, machine.hop_ns, machine.feed_ns, machine.task_overhead_ns)
        return cls(machine.math_ns(graph), *(np.full(len(graph), int(ns), np.int64) for ns in same))

    def of(self, tasks: np.ndarray) -> Costs:
        """Those of some tasks, in the order of their ids."""
        return Costs(*(getattr(self, name)[tasks] for name in COSTS_OF_TASK))
