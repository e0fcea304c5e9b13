"""Tally: the sums behind summary and accounting of a large capture, in bounded memory, part by part on all cores.

A part is a range of steps; the tallies of parts add up, whether threads, processes or other machines made them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from mkviz.accounting import ENTRY, KINDS, NOTES, ROLES, Account
from mkviz.errors import MkvizError
from mkviz.faults import FAULTS, Faults
from mkviz.record import FLAG_BYTES_LAST, NO_WAIT
from mkviz.step_records import MOST_NS, refuse_endless, stand_in
from mkviz.trace import Trace
from mkviz.trace.schema import TABLES

if TYPE_CHECKING:
    from mkviz.graph import Graph
    from mkviz.summary import OpTotals

COLUMNS = ("step", "claim", "ready", "begin", "end", "publish", "task", "sm", "flags", "last_wait")
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
    threads = threads or os.cpu_count() or 1
    parts = parts_of(trace, threads, steps)
    if not parts:
        return _Part(trace, (0, -1), full).add_all()
    apart = [Trace(trace.storage, trace.meta) for _ in parts]  # open files are not shared among threads
    for one in apart:
        one.graphs = trace.graphs
    with ThreadPoolExecutor(threads) as pool:
        tallies = list(pool.map(lambda one, part: _Part(one, part, full).add_all(), apart, parts))
    total = tallies[0]
    for more in tallies[1:]:
        total += more
    return total


def parts_of(trace: Trace, count: int, steps: tuple[int, int] | None = None) -> list[tuple[int, int]]:
    """At most ``count`` ranges of steps (first, last) with about as many records each."""
    table = trace.table("steps", ["step", "records"])
    number, records = table["step"].to_numpy(), table["records"].to_numpy().astype(np.int64)
    if steps is not None:
        inside = (number >= steps[0]) & (number <= steps[1])
        number, records = number[inside], records[inside]
    order = np.argsort(number, kind="stable")
    number, until = number[order], np.cumsum(records[order] + 1)
    if not len(number):
        return []
    ends = np.unique(np.searchsorted(until, until[-1] * np.arange(1, count + 1) / count))
    ends = np.minimum(ends, len(number) - 1)
    firsts = np.append(0, ends[:-1] + 1)
    return [(int(number[a]), int(number[b])) for a, b in zip(firsts, ends, strict=True) if a <= b]


class _Part:
    """Adds up a range of steps of a trace."""

    def __init__(self, trace: Trace, steps: tuple[int, int], full: bool):
        self.trace, self.steps, self.full = trace, steps, full
        table = trace.steps
        table = {name: table[name].to_numpy().astype(np.int64) for name in ("step", "graph", "begin", "end", "lost")}
        inside = np.flatnonzero((table["step"] >= steps[0]) & (table["step"] <= steps[1]))
        inside = inside[np.argsort(table["step"][inside], kind="stable")]
        self.table = {name: values[inside] for name, values in table.items()}
        graphs = trace.graphs
        if any(g not in graphs for g in np.unique(self.table["graph"]).tolist()):
            graphs = graphs | {-1: stand_in(trace)}
        self.graphs = {i: (graph, schedule.sms) for i, (graph, schedule) in graphs.items()}
        ops = [*dict.fromkeys(op for graph, _ in self.graphs.values() for op in graph.ops)]
        self.place = {op: i for i, op in enumerate(ops)}
        groups: dict[tuple[str, int], int] = {}
        self.of_graph = {i: self._tables(graph, groups) for i, (graph, _) in self.graphs.items()}
        sms = max([sms for _, sms in self.graphs.values()], default=0)
        count = len(groups) + 1
        self.total = Tally(
            [*groups, ("", -1)], sms, np.zeros((sms if full else 1, count, len(KINDS) + len(ROLES)), np.int64),
            {name: np.zeros(count, np.int64) for name in OF_TASKS}, {}, 0, 0, 0, 0, dict.fromkeys(FAULTS, 0),
            dict.fromkeys(FAULTS, 0), False, False, self.table,
        )  # fmt: skip
        self.unread = set() if full else {"publish"}
        if all(len(graph.wait_counter) for graph, _ in self.graphs.values()):
            self.unread.add("last_wait")  # it says whether there are waits where no graph does
        self.told = {i: (len(graph.wait_counter) > 0, bool(graph.bytes.any())) for i, (graph, _) in self.graphs.items()}
        self.active = np.zeros(len(ops), np.int64)
        self.seen = {i: np.zeros(len(graph), np.int64) for i, (graph, _) in self.graphs.items()}
        self.work = np.empty((0, 0), np.int64)
        self.counted = np.zeros((2, 4), np.int64)  # broken, repeated, overlapping, clipped; of whole steps, of lossy ones

    def _tables(self, graph: Graph, groups: dict[tuple[str, int], int]) -> tuple[np.ndarray, ...]:
        """(group, op, bytes) of each task."""
        key = graph.op.astype(np.int64) * (1 << 16) + graph.layer
        _, first, of = np.unique(key, return_index=True, return_inverse=True)
        names = [(graph.ops[graph.op[t]], int(graph.layer[t])) for t in first.tolist()]
        group = np.array([groups.setdefault(name, len(groups)) for name in names], np.int64)[of.reshape(-1)]
        return group, np.array([self.place[op] for op in graph.ops], np.int64)[graph.op], graph.bytes.astype(np.int64)

    def add_all(self) -> Tally:
        row = 0
        names = [name for name in COLUMNS if name not in self.unread]
        for columns in _whole_steps(self.trace.columns(names, self.steps)):
            step = columns["step"]
            starts = np.flatnonzero(np.append(True, step[1:] != step[:-1]))
            for first, stop in zip(starts.tolist(), [*starts[1:].tolist(), len(step)], strict=True):
                while self.table["step"][row] < step[first]:
                    self._add(row, columns, 0, 0)
                    row += 1
                self._add(row, columns, first, stop)
                row += 1
        for rest in range(row, len(self.table["step"])):
            self._add(rest, NO_RECORDS, 0, 0)
        total = self.total
        names = ("broken", "repeated", "overlapping", "clipped")
        for faults, counted in zip((total.whole_faults, total.lossy_faults), self.counted.tolist(), strict=True):
            faults.update(zip(names, counted, strict=True))
        total.active = {op: int(self.active[i]) for op, i in self.place.items()}
        return total

    def _add(self, row: int, columns: dict[str, np.ndarray], first: int, stop: int) -> None:
        from mkviz.tally_kernels import WORK, add_step, survey

        total, c = self.total, columns
        publish = c["claim" if "publish" in self.unread else "publish"]
        begin, end, lost = (int(self.table[name][row]) for name in ("begin", "end", "lost"))
        graph_id = int(self.table["graph"][row])
        graph_id = graph_id if graph_id in self.of_graph else -1
        sms = self.graphs[graph_id][1]
        group, op, size = self.of_graph[graph_id]
        bounds = np.array([begin, end], np.int64)
        strays, plain = survey(
            c["sm"], c["task"], c["flags"], c["begin"], c["end"], c["claim"], first, stop, sms, len(group), bounds
        )
        since, until = bounds.tolist()
        refuse_endless(int(self.table["step"][row]), since, until, sms)
        total.records += stop - first
        total.steps += 1
        total.sm_time += (until - since) * sms
        waits, bytes_ = self.told[graph_id]
        total.waits = total.waits or waits or bool((c["last_wait"][first:stop] != NO_WAIT).any())
        total.bytes = total.bytes or bytes_ or bool((c["flags"][first:stop] & FLAG_BYTES_LAST).any())
        lossy = lost + strays > 0
        for name, value in (("begin", since), ("end", until), ("lost", lost + strays)):
            self.table[name][row] = value
        faults = total.lossy_faults if lossy else total.whole_faults
        faults["lost"] += lost + strays
        faults["strays"] += strays
        sums, of_tasks = total.sums[: sms if self.full else 1], total.of_tasks
        active = self.active
        if lossy:  # all of it is unknown; only its records' faults are of interest
            total.lossy += 1
            sums[:, -1, KINDS.index("unknown")] += (until - since) * (1 if self.full else sms)
            sums, active = np.zeros_like(sums), np.zeros_like(active)
            of_tasks = {name: np.zeros_like(values) for name, values in of_tasks.items()}
        order = np.arange(first, stop) if plain else _ordered(c, first, stop, sms, len(group))
        if self.work.shape[1] < len(order):
            self.work = np.empty((WORK, 2 * len(order)), np.int64)
        add_step(
            c["sm"], c["task"], c["flags"], c["claim"], c["ready"], c["begin"], c["end"], publish, order, since, until,
            sms, self.full, group, op, size, len(self.active), sums, of_tasks["tasks"], of_tasks["skipped"], of_tasks["bytes"],
            active, self.counted[int(lossy)], self.seen[graph_id], total.steps, self.work,
        )  # fmt: skip


def _ordered(columns: dict[str, np.ndarray], first: int, stop: int, sms: int, tasks: int) -> np.ndarray:
    """Rows of records within ``sms`` and ``tasks``, by SM, begin and end."""
    c = {name: columns[name][first:stop] for name in ("sm", "begin", "end", "task")}
    order = np.lexsort((c["end"], c["begin"], c["sm"]))
    return first + order[(c["sm"][order] < sms) & (c["task"][order] < tasks)]


def _whole_steps(pieces: Iterator[dict[str, np.ndarray]]) -> Iterator[dict[str, np.ndarray]]:
    """The same columns, cut so that no step lies in two pieces."""
    rest: dict[str, np.ndarray] | None = None
    for piece in pieces:
        if rest is not None:
            piece = {name: np.concatenate([rest[name], values]) for name, values in piece.items()}
        cut = int(np.searchsorted(piece["step"], piece["step"][-1]))
        rest = {name: values[cut:] for name, values in piece.items()}
        if cut:
            yield {name: _fixed(values[:cut]) for name, values in piece.items()}
    if rest is not None:
        yield {name: _fixed(values) for name, values in rest.items()}


def _fixed(values: np.ndarray) -> np.ndarray:
    """The same, read-only as what Arrow hands out: kernels are compiled for one of the two."""
    values = values.view()
    values.flags.writeable = False
    return values


NO_RECORDS = {field.name: _fixed(np.zeros(0, field.type.to_pandas_dtype())) for field in TABLES["records"]}
