"""Tally: the sums behind summary and accounting of a large capture, in bounded memory, part by part on all cores.

A part is a range of steps; the tallies of parts add up, whether threads, processes or other machines made them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from mkviz.accounting import ENTRY, KINDS, NOTES, ROLES, Account
from mkviz.errors import MkvizError
from mkviz.faults import FAULTS, FAULTS_OF_LANES, Faults, in_turn
from mkviz.record import FLAG_BYTES_LAST, NO_WAIT
from mkviz.step_records import MOST_NS
from mkviz.sweep import Sweep, Swept
from mkviz.trace import Trace

if TYPE_CHECKING:
    from mkviz.graph import Graph
    from mkviz.summary import OpTotals

OF_TASKS = ("tasks", "skipped", "bytes")


@dataclass
class Tally:
    """Sums over steps.

    ``groups``: (op, layer), the last one ("", -1) of what belongs to no task.  ``sums`` i64[sms, groups, 9]: ns by SM (one row
    of all SMs in a summary's), group and kind or role (accounting's KINDS, then ROLES).  ``of_tasks`` {tasks, skipped, bytes}:
    i64[groups].  ``active``: {op: ns during which at least one of its tasks ran}.  Steps that lost records count in ``steps``,
    ``lossy`` and as unknown only.  ``whole_faults`` are of whole steps, ``lossy_faults`` of the others.  ``table``: step,
    graph, begin, end and lost of each step, i64, ascending, as their records widened them.
    """

    groups: list[tuple[str, int]]
    sms: int
    sums: np.ndarray
    of_tasks: dict[str, np.ndarray]
    active: dict[str, int]
    records: int
    steps: int
    lossy: int
    sm_time: int
    whole_faults: dict[str, int]
    lossy_faults: dict[str, int]
    waits: bool
    bytes: bool
    table: dict[str, np.ndarray]

    def __add__(self, other: Tally) -> Tally:
        groups = [*dict.fromkeys([*self.groups[:-1], *other.groups[:-1]]), ("", -1)]
        place = {group: i for i, group in enumerate(groups)}
        sums = np.zeros((max(len(self.sums), len(other.sums)), len(groups), self.sums.shape[2]), np.int64)
        of_tasks = {name: np.zeros(len(groups), np.int64) for name in OF_TASKS}
        for part in (self, other):
            at = [place[group] for group in part.groups]
            sums[: len(part.sums), at] += part.sums
            for name in OF_TASKS:
                of_tasks[name][at] += part.of_tasks[name]
        counts = {
            name: {k: getattr(self, name).get(k, 0) + getattr(other, name).get(k, 0)
                   for k in [*getattr(self, name), *getattr(other, name)]}
            for name in ("active", "whole_faults", "lossy_faults")
        }  # fmt: skip
        numbers = {name: getattr(self, name) + getattr(other, name) for name in ("records", "steps", "lossy", "sm_time")}
        told = {name: getattr(self, name) or getattr(other, name) for name in ("waits", "bytes")}
        table = {name: np.concatenate([self.table[name], other.table[name]]) for name in self.table}
        order = np.argsort(table["step"], kind="stable")
        table = {name: values[order] for name, values in table.items()}
        return Tally(groups, max(self.sms, other.sms), sums, of_tasks, **counts, **numbers, **told, table=table)

    def account(self, label: str) -> Account:
        """As an accounting whose entries are summed over steps (step -1)."""
        if self.sm_time > MOST_NS:
            raise MkvizError(f"{self.steps} steps of {self.sm_time} ns of SM time", "fewer steps, of 2^63 ns together")
        ops = {op: i for i, op in enumerate(dict.fromkeys(op for op, _ in self.groups[:-1]))}
        sm, group = np.nonzero(self.sums.any(axis=2))
        entries = np.zeros(len(sm), ENTRY)
        entries["step"], entries["sm"] = -1, sm
        entries["op"] = np.array([ops.get(op, -1) for op, _ in self.groups])[group]
        entries["layer"] = np.array([layer for _, layer in self.groups])[group]
        for i, name in enumerate((*KINDS, *ROLES)):
            entries[name] = self.sums[sm, group, i]
        faults = Faults(self.steps, self.lossy, self.waits, self.bytes)
        for name in FAULTS:
            faults.counts[name] = self.whole_faults[name] + self.lossy_faults[name]
        return Account(label, self.steps, self.sm_time, tuple(ops), entries, faults.counts, faults.notes(**NOTES))

    # what a summary asks

    def shares(self) -> dict[str, int]:
        """ns of ``sm_time`` by kind."""
        return dict(zip(KINDS, self.sums.sum(axis=(0, 1)).tolist(), strict=False))

    def faults(self) -> dict[str, int]:
        """Of records of whole steps, and what is lost."""
        return self.whole_faults | {name: self.whole_faults[name] + self.lossy_faults[name] for name in ("lost", "strays")}

    def ops(self, idle: bool) -> dict[str, OpTotals]:
        """Of the ops that ran, most compute first; without ``idle`` their idle times are None."""
        from mkviz.summary import OpTotals

        out: dict[str, OpTotals] = {}
        sums = self.sums.sum(axis=0)
        for i, (op, _) in enumerate(self.groups[:-1]):
            totals = out.setdefault(op, OpTotals(active=self.active[op]))
            for name in OF_TASKS:
                setattr(totals, name, getattr(totals, name) + int(self.of_tasks[name][i]))
            for name in ("compute", "wait", "starved", "overhead"):
                setattr(totals, name, getattr(totals, name) + int(sums[i, KINDS.index(name)]))
        out = {op: totals for op, totals in out.items() if totals.tasks or totals.skipped}
        if not idle:
            out = {op: replace(totals, wait=None, starved=None, overhead=None) for op, totals in out.items()}
        return dict(sorted(out.items(), key=lambda item: -item[1].compute))


def tally(trace: Trace, steps: tuple[int, int] | None = None, full: bool = True, threads: int = 0) -> Tally:
    """The tally of all steps of a trace, or of those from one number to another; ``full``: with what an accounting needs beyond
    a summary, that is by SM, and of loader, feeder and storer; ``threads``: how many share the work (default: one a core).

    Raises MkvizError for a damaged trace and for a step whose SM time does not fit 63 bits.
    """
    number = trace.table("steps", ["step"])["step"].to_numpy()
    sweep = Sweep(trace, None if steps is None else number[(number >= steps[0]) & (number <= steps[1])])
    return sweep.all_of([TallySums(sweep, full)], threads)[0]


class TallySums:
    """What a sweep finds for a tally."""

    def __init__(self, sweep: Sweep, full: bool):
        self._sweep, self._full = sweep, full
        self.columns = ["claim", "ready", *(["publish"] if full else [])]
        if not all(len(graph.wait_counter) for graph, _ in sweep.graphs.values()):
            self.columns.append("last_wait")  # it says whether there are waits where no graph does

    def worker(self) -> _Adder:
        return _Adder(self._sweep, self._full)

    def found(self, workers: list[_Adder]) -> Tally:
        total = workers[0].total
        for more in workers[1:]:
            total += more.total
        return replace(total, table=self._sweep.table)


class _Adder:
    """Adds up steps (a worker of a sweep)."""

    def __init__(self, sweep: Sweep, full: bool):
        self.sweep, self.graphs, self.full = sweep, sweep.graphs, full
        ops = [*dict.fromkeys(op for graph, _ in self.graphs.values() for op in graph.ops)]
        self.place = {op: i for i, op in enumerate(ops)}
        groups: dict[tuple[str, int], int] = {}
        self.of_graph = {i: self._tables(graph, groups) for i, (graph, _) in self.graphs.items()}
        sms = max([sms for _, sms in self.graphs.values()], default=0)
        count = len(groups) + 1
        self._sums = Tally(
            [*groups, ("", -1)], sms, np.zeros((sms if full else 1, count, len(KINDS) + len(ROLES)), np.int64),
            {name: np.zeros(count, np.int64) for name in OF_TASKS}, {}, 0, 0, 0, 0, dict.fromkeys(FAULTS, 0),
            dict.fromkeys(FAULTS, 0), False, False, {name: values[:0] for name, values in sweep.table.items()},
        )  # fmt: skip
        self.in_turn = {i: in_turn(graph) for i, (graph, _) in self.graphs.items()}
        self.told = {i: (len(graph.wait_counter) > 0, bool(graph.bytes.any())) for i, (graph, _) in self.graphs.items()}
        self.active = np.zeros(len(ops), np.int64)
        self.seen = {i: np.zeros(len(graph), np.int64) for i, (graph, _) in self.graphs.items()}
        self.work = np.empty((0, 0), np.int64)
        self.counted = np.zeros((2, 4), np.int64)  # broken, repeated, overlapping, clipped; of whole steps, of lossy ones

    def _tables(self, graph: Graph, groups: dict[tuple[str, int], int]) -> tuple[np.ndarray, ...]:
        """(group, op) of each task."""
        key = graph.op.astype(np.int64) * (1 << 16) + graph.layer
        _, first, of = np.unique(key, return_index=True, return_inverse=True)
        names = [(graph.ops[graph.op[t]], int(graph.layer[t])) for t in first.tolist()]
        group = np.array([groups.setdefault(name, len(groups)) for name in names], np.int64)[of.reshape(-1)]
        return group, np.array([self.place[op] for op in graph.ops], np.int64)[graph.op]

    @property
    def total(self) -> Tally:
        for faults, counted in zip((self._sums.whole_faults, self._sums.lossy_faults), self.counted.tolist(), strict=True):
            faults.update(zip(FAULTS_OF_LANES, counted, strict=True))
        self._sums.active = {op: int(self.active[i]) for op, i in self.place.items()}
        return self._sums

    def add(self, step: Swept) -> None:
        from mkviz.tally_kernels import WORK, add_step

        total, c, own = self._sums, step.column, slice(step.first, step.stop)
        (group, op), size = self.of_graph[step.graph], self.sweep.bytes_of(step)
        since, until, sms, lossy = step.since, step.until, step.sms, step.lost > 0
        total.records += step.stop - step.first
        total.steps += 1
        total.sm_time += (until - since) * sms
        waits, bytes_ = self.told[step.graph]
        total.waits = total.waits or waits or bool((c("last_wait")[own] != NO_WAIT).any())
        total.bytes = total.bytes or bytes_ or bool((c("flags")[own] & FLAG_BYTES_LAST).any())
        faults = total.lossy_faults if lossy else total.whole_faults
        faults["lost"] += step.lost
        faults["strays"] += step.strays
        sums, of_tasks = total.sums[: sms if self.full else 1], total.of_tasks
        active = self.active
        if lossy:  # all of it is unknown; only its records' faults are of interest
            total.lossy += 1
            sums[:, -1, KINDS.index("unknown")] += (until - since) * (1 if self.full else sms)
            sums, active = np.zeros_like(sums), np.zeros_like(active)
            of_tasks = {name: np.zeros_like(values) for name, values in of_tasks.items()}
        if self.work.shape[1] < len(step.order):
            self.work = np.empty((WORK, 2 * len(step.order)), np.int64)
        add_step(
            c("sm"), c("task"), c("flags"), c("claim"), c("ready"), c("begin"), c("end"), c("publish"), step.order, since,
            until, sms, self.in_turn[step.graph], self.full, group, op, size, len(self.active), sums, of_tasks["tasks"],
            of_tasks["skipped"], of_tasks["bytes"], active, self.counted[int(lossy)], self.seen[step.graph], total.steps,
            self.work,
        )  # fmt: skip
