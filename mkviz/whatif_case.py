"""Case: all that one replay of a step takes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from mkviz.costs import Costs
from mkviz.graph import Graph
from mkviz.machine import Machine
from mkviz.protocols import StepInfo
from mkviz.schedule import Schedule
from mkviz.simulator import Simulated, simulate
from mkviz.step_records import StepRecords, of_events


@dataclass(frozen=True, eq=False)
class Case:
    """A graph under a schedule, on a machine, with the costs of its tasks.

    ``beside`` bool[T]: tasks that other warps of an SM work at, beside its math; they have no bytes, and take each other's turn
    only.  To the simulator these warps are a second SM, number ``sms`` + that of theirs.
    """

    graph: Graph
    schedule: Schedule
    machine: Machine
    costs: Costs
    beside: np.ndarray
    prefetch: bool = True
    kernel_per_op: bool = False

    @cached_property
    def replay(self) -> Simulated:
        schedule, machine = self.schedule, self.machine
        if self.beside.any():
            sm = schedule.sm_of(len(self.graph)).astype(np.int64)[schedule.order]
            lane = sm + schedule.sms * self.beside[schedule.order]
            ptr = np.zeros(2 * schedule.sms + 1, np.int32)
            np.cumsum(np.bincount(lane, minlength=2 * schedule.sms), out=ptr[1:])
            order = schedule.order[np.argsort(lane, kind="stable")]
            schedule = Schedule(2 * schedule.sms, ptr, order, schedule.queue, order.copy(), schedule.policy)
        machine = replace(machine, sms=max(machine.sms, schedule.sms))
        return simulate(self.graph, schedule, machine, prefetch=self.prefetch, barrier_per_op=self.kernel_per_op,
                        costs=self.costs)  # fmt: skip

    @cached_property
    def records(self) -> StepRecords:
        """The replay as records of its SMs."""
        events = self.replay.events.copy()
        events["sm"] %= self.schedule.sms
        return of_events(StepInfo(0, 0, 0, self.replay.makespan), events, self.graph, self.schedule)

    @cached_property
    def rank(self) -> np.ndarray:
        """i64[T]: the place of each task in the order of begins."""
        events = self.replay.events
        out = np.empty(len(events), np.int64)
        out[events["task"][np.lexsort((events["task"], events["begin"]))]] = np.arange(len(events))
        return out
