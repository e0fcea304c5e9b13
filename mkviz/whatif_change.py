"""Change: what is to be different in the replay of a step."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from mkviz.errors import MkvizError
from mkviz.policies import POLICIES, make_schedule
from mkviz.whatif_case import Case
from mkviz.whatif_graph import dealt, in_sequence, op_of, split

LONGEST = "longest"  # the one task with the most math


@dataclass(frozen=True)
class Change:
    """Any of these at once; they are made in this order.

    ``faster``: {op: k}, the math of its tasks takes 1/k, their bytes come as before.  ``split``: ``longest``, the task with the
    most math becomes two of half the size, or an op, each task of which does; a second half goes to the SM with the least math
    in that op and layer.  ``in_sequence``: an op (o_proj for attention); in each layer what runs beside it and what leads to it
    begins when it is done.  ``sms``: another number of SMs, same tiles; ``policy``: dealt out anew.  ``bandwidth``: k times as
    much.  ``no_prefetch``: an SM asks for the bytes of a task when the task before has ended.  ``kernel_per_op``: each op of
    each layer is launched when the one before has ended.  ``rows``: the step of another batch, whose graph the source holds.
    """

    faster: dict[str, float] = field(default_factory=dict)
    split: str = ""
    in_sequence: str = ""
    sms: int | None = None
    policy: str = ""
    bandwidth: float = 1.0
    no_prefetch: bool = False
    kernel_per_op: bool = False
    rows: int | None = None

    @classmethod
    def of(cls, **change: Any) -> Change:
        """Raises MkvizError for a change that there is not, and for none."""
        known = list(inspect.signature(cls).parameters)
        for name in change:
            if name not in known:
                raise MkvizError(f"whatif: unknown change {name!r}", f"any of {', '.join(known)}")
        made = cls(**change)
        for name, k in [*made.faster.items(), ("bandwidth", made.bandwidth)]:
            if not 0 < k < float("inf"):
                raise MkvizError(f"whatif: {name} times {k}", "more than 0")
        if made == cls():
            raise MkvizError("whatif: nothing is to change", f"any of {', '.join(known)}")
        return made

    @property
    def words(self) -> str:
        found = [f"{op} {k:g} times faster" for op, k in self.faster.items()]
        if self.split:
            found.append("the longest task in two" if self.split == LONGEST else f"every {self.split} task in two")
        if self.in_sequence:
            found.append(f"what runs beside {self.in_sequence} after it")
        if self.sms is not None:
            found.append(f"{self.sms} SMs")
        if self.policy:
            found.append(f"policy {self.policy}")
        if self.bandwidth != 1:
            found.append(f"{self.bandwidth:g} times the bandwidth")
        if self.no_prefetch:
            found.append("no prefetch across tasks")
        if self.kernel_per_op:
            found.append("a kernel per op")
        if self.rows is not None:
            found.append(f"{self.rows} row{'s' * (self.rows != 1)}")
        return ", ".join(found)

    @property
    def about_bytes(self) -> bool:
        """Whether it cannot be told without a machine whose memory was measured."""
        return self.bandwidth != 1 or self.no_prefetch

    def stalls_matter(self, case: Case) -> bool:
        """Whether it is another change where tasks that read wait for bytes in what counts as their math."""
        reads = case.graph.bytes > 0
        if any(reads[case.graph.op == op_of(case.graph, op)].any() for op in self.faster):
            return True
        return bool(reads.any()) and (self.bandwidth != 1 or self.sms not in (None, case.schedule.sms))

    def on(self, case: Case, stalled: bool = False) -> Case:
        """The changed case (but for ``rows``).  ``stalled``: all the math of tasks that read is waiting for bytes at an SM's
        share of the bandwidth, so that it becomes shorter with that share and with nothing else.

        Raises MkvizError for what cannot be done to the case.
        """
        rank = case.rank if self.split or self.in_sequence else np.arange(len(case.graph))
        reads = case.graph.bytes > 0
        if stalled:
            longer = (1 if self.sms is None else self.sms / case.schedule.sms) / self.bandwidth
            math = np.where(reads, np.maximum(1, np.ceil(case.costs.math * longer)), case.costs.math).astype(np.int64)
            case = replace(case, costs=replace(case.costs, math=math))
        for op, k in self.faster.items():
            mine = (case.graph.op == op_of(case.graph, op)) & ~(stalled & reads)
            math = np.where(mine, np.maximum(1, np.ceil(case.costs.math / k)), case.costs.math).astype(np.int64)
            case = replace(case, costs=replace(case.costs, math=math))
        if self.split:
            case, rank = _split(case, rank, self.split)
        if self.in_sequence:
            graph, old = in_sequence(case.graph, self.in_sequence), case.schedule
            sm = old.sm_of(len(graph))
            case = replace(case, graph=graph, schedule=dealt(graph, sm, rank, sm < 0, old.sms, old.policy))
        if self.sms is not None or self.policy:
            case = _dealt_anew(case, case.schedule.sms if self.sms is None else self.sms, self.policy)
        machine = replace(case.machine, bandwidth=case.machine.bandwidth * self.bandwidth)
        return replace(case, machine=machine, prefetch=not self.no_prefetch, kernel_per_op=self.kernel_per_op)


def _split(case: Case, rank: np.ndarray, what: str) -> tuple[Case, np.ndarray]:
    graph, costs, old = case.graph, case.costs, case.schedule
    tasks = np.array([int(np.argmax(costs.math))]) if what == LONGEST else np.flatnonzero(graph.op == op_of(graph, what))
    sm = old.sm_of(len(graph)).astype(np.int64)
    halves, origin = split(graph, tasks)
    math = costs.math[origin]
    math[len(graph) :] = np.maximum(1, math[tasks] // 2)
    math[tasks] = np.maximum(1, math[tasks] - math[tasks] // 2)
    sm, load = sm[origin], {}
    for new in range(len(graph), len(halves)):  # second halves
        if sm[new] < 0:
            continue
        group = int(halves.layer[new]), int(halves.op[new])
        if group not in load:
            mine = (graph.layer == group[0]) & (graph.op == group[1]) & (sm[: len(graph)] >= 0)
            load[group] = np.bincount(sm[: len(graph)][mine], math[: len(graph)][mine], old.sms)
        sm[new] = int(np.argmin(load[group]))
        load[group][sm[new]] += math[new]
    rank = 2 * rank[origin]
    rank[len(graph) :] += 1
    costs = replace(costs.of(origin), math=math)
    schedule = dealt(halves, sm, rank, sm < 0, old.sms, old.policy)
    return replace(case, graph=halves, costs=costs, beside=case.beside[origin], schedule=schedule), rank


def _dealt_anew(case: Case, sms: int, policy: str) -> Case:
    if not policy and case.schedule.policy not in POLICIES:
        what = f"the schedule is of policy {case.schedule.policy!r}, which deals nothing out anew"
        raise MkvizError(what, f"name a policy: one of {', '.join(POLICIES)}")
    policy = policy or case.schedule.policy
    machine = replace(case.machine, sms=max(sms, case.machine.sms)) if sms >= 1 else case.machine
    takes = inspect.signature(POLICIES[policy]).parameters if policy in POLICIES else {}
    options = {"machine": machine} if "machine" in takes else {}
    return replace(case, machine=machine, schedule=make_schedule(case.graph, sms, policy, **options))
