"""Sweep: goes once through the steps of a large capture, part by part on all cores, in memory that does not grow with it.

A part is a range of steps.  A worker takes the steps of one part, ascending, each as columns of its records; what the workers
of all parts found is put together by whoever swept.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np

from mkviz.errors import MkvizError
from mkviz.faults import FAULTS_OF_LANES, Faults, in_turn
from mkviz.record import FLAG_BYTES_LAST, KIND_MASK, KIND_TASK
from mkviz.step_bytes import TraceBytes
from mkviz.step_records import refuse_endless, stand_in
from mkviz.trace import Trace
from mkviz.trace.schema import TABLES

if TYPE_CHECKING:
    from mkviz.graph import Graph

NEEDED = ("sm", "task", "flags", "begin", "end")  # of every step, beside what a worker asks for


@dataclass(frozen=True, eq=False)
class Swept:
    """A step: its number, SMs and graph (an id in ``Sweep.graphs``), its bounds ``since`` and ``until`` (ns) and ``lost``
    records, of which ``strays`` name an SM or task that is not there, as in :class:`mkviz.step_records.StepRecords`.

    ``columns`` hold the records of one step or several, its own from row ``first`` to before ``stop``; ``order``: rows of the
    good ones, those of tasks by SM, begin and end, others anywhere.
    """

    number: int
    graph: int
    sms: int
    since: int
    until: int
    lost: int
    strays: int
    columns: dict[str, np.ndarray]
    first: int
    stop: int
    order: np.ndarray

    def column(self, name: str) -> np.ndarray:
        """Times that were not asked for are those of begin."""
        return self.columns.get(name, self.columns["begin"])


class Worker(Protocol):
    def add(self, step: Swept) -> None: ...


W = TypeVar("W", bound=Worker)


class Sums(Protocol):
    """What an analysis does with a sweep: it reads ``columns``, and puts together what its workers found."""

    columns: Iterable[str]

    def worker(self) -> Worker: ...
    def found(self, workers: list) -> Any: ...


class _Together:
    def __init__(self, workers: list[Worker]):
        self.workers = workers

    def add(self, step: Swept) -> None:
        for worker in self.workers:
            worker.add(step)


class Sweep:
    """Of all steps of a trace, or of ``steps`` (numbers).

    ``table``: step, graph, begin, end and lost of each step, i64, ascending; as the sweep goes, they are widened by the
    records.  ``graphs``: (graph, SMs) by id; -1: what stands in for those that the trace does not have.  Raises MkvizError for
    a step that is not there.
    """

    def __init__(self, trace: Trace, steps: int | Sequence[int] | np.ndarray | None = None):
        self._trace, names = trace, ("step", "graph", "begin", "end", "lost", "records")
        table = trace.table("steps", names)
        found = {name: table[name].to_numpy().astype(np.int64) for name in names}
        order = np.argsort(found["step"], kind="stable")
        order = order[np.append(np.diff(found["step"][order]) > 0, True)[: len(order)]]  # of a step that is told twice the last
        self._all = steps is None
        if steps is not None:
            wanted = np.unique(np.atleast_1d(np.asarray(steps, np.int64)))
            if len(missing := np.setdiff1d(wanted, found["step"])):
                raise MkvizError(f"step {missing[0]} is not there", "a step that the source holds")
            order = order[np.isin(found["step"][order], wanted)]
        self.table = {name: values[order] for name, values in found.items()}
        self._records = self.table.pop("records")
        graphs, unknown = trace.graphs, np.setdiff1d(self.table["graph"], list(trace.graphs))
        self.graphs = {i: (graph, schedule.sms) for i, (graph, schedule) in graphs.items()}
        if len(unknown):
            graph, schedule = stand_in(trace)
            self.graphs[-1] = graph, schedule.sms
        self._bytes = TraceBytes(trace, (graph for graph, _ in self.graphs.values()))
        self._bounded = bool((self.table["end"] > self.table["begin"]).all())  # else a step begins with its first claim

    def ops(self) -> dict[str, int]:
        """{op: index} of the graphs of all steps, in the order in which steps have them."""
        ids, first = np.unique(self.table["graph"], return_index=True)
        names = [op for i in ids[np.argsort(first)].tolist() for op in self.graph_of(i)[0].ops]
        return {op: i for i, op in enumerate(dict.fromkeys(names))}

    def graph_of(self, graph_id: int) -> tuple[Graph, int]:
        """(graph, SMs) of a step whose table names this graph."""
        return self.graphs[graph_id if graph_id in self.graphs else -1]

    def bytes_of(self, step: Swept) -> np.ndarray:
        """i64 per task of its graph: what it reads in this step, if it runs."""
        return self._bytes.of(step.number, self.graphs[step.graph][0])

    def run(self, make: Callable[[], W], columns: Iterable[str] = (), threads: int = 0) -> list[W]:
        """The workers of all parts, ascending; ``columns`` of records, beside NEEDED, are read for them; ``threads``: how many
        share the work (default: one a core).

        Raises MkvizError for a damaged trace, and for a step whose SM time does not fit 63 bits.
        """
        columns = list(dict.fromkeys([*NEEDED, *columns, *([] if self._bounded else ["claim"])]))
        threads = threads or os.cpu_count() or 1
        parts = split(self._records, threads)
        if not parts:
            return [make()]
        apart = [Trace(self._trace.storage, self._trace.meta) for _ in parts]  # open files are not shared among threads
        with ThreadPoolExecutor(threads) as pool:
            return list(pool.map(lambda trace, rows: self._part(trace, rows, columns, make()), apart, parts))

    def all_of(self, analyses: Sequence[Sums], threads: int = 0) -> list:
        """What several analyses find, of records that are read once.  Raises as ``run`` does."""
        columns = [name for one in analyses for name in one.columns]
        workers = self.run(lambda: _Together([one.worker() for one in analyses]), columns, threads)
        return [one.found([worker.workers[i] for worker in workers]) for i, one in enumerate(analyses)]

    def _part(self, trace: Trace, rows: range, names: list[str], worker: W) -> W:
        number = self.table["step"]
        row, span = rows.start, (int(number[rows[0]]), int(number[rows[-1]]))
        last = span[0] - 1
        for columns in _whole_steps(trace.columns(names, span)):
            step = columns["step"]
            starts = np.flatnonzero(np.append(True, step[1:] != step[:-1]))
            for first, stop in zip(starts.tolist(), [*starts[1:].tolist(), len(step)], strict=True):
                while row < rows.stop and number[row] < step[first]:
                    worker.add(self._step(row, NO_RECORDS, 0, 0))
                    row += 1
                if row < rows.stop and number[row] == step[first]:
                    worker.add(self._step(row, columns, first, stop))
                    row += 1
                elif self._all or step[first] <= last:  # else nobody asked for it
                    raise trace.disordered(int(step[first]))
                last = step[first]
        for rest in range(row, rows.stop):
            worker.add(self._step(rest, NO_RECORDS, 0, 0))
        return worker

    def _step(self, row: int, columns: dict[str, np.ndarray], first: int, stop: int) -> Swept:
        from mkviz.sweep_kernels import survey

        number, graph, begin, end, lost = (int(self.table[name][row]) for name in ("step", "graph", "begin", "end", "lost"))
        graph = graph if graph in self.graphs else -1
        of, sms = self.graphs[graph]
        c, bounds = columns, np.array([begin, end], np.int64)
        strays, plain = survey(c["sm"], c["task"], c["flags"], c["begin"], c["end"], c.get("claim", c["begin"]), first, stop,
                               sms, len(of), bounds)  # fmt: skip
        since, until = bounds.tolist()
        refuse_endless(number, since, until, sms)
        for name, value in (("begin", since), ("end", until), ("lost", lost + strays)):
            self.table[name][row] = value
        order = np.arange(first, stop) if plain else _ordered(c, first, stop, sms, len(of))
        return Swept(number, graph, sms, since, until, lost + strays, strays, c, first, stop, order)


class Lanes:
    """The lane times of one step after the other, in arrays that are used again; adds up the faults of all of them.

    ``times``, ``ptr``, ``left``, ``open_end``: those of :func:`mkviz.sweep_kernels.lane_times` of the step that was taken last.
    """

    def __init__(self, graphs: dict[int, tuple[Graph, int]]):
        self._seen = {i: np.zeros(len(graph), np.int64) for i, (graph, _) in graphs.items()}
        self._bytes = {i: bool(graph.bytes.any()) for i, (graph, _) in graphs.items()}
        self._in_turn = {i: in_turn(graph) for i, (graph, _) in graphs.items()}
        self._counted = np.zeros(4, np.int64)
        self._times = np.empty((0, 0), np.int64)
        self._faults = Faults()

    def take(self, step: Swept) -> bool:
        """Whether it has sound records and no lost ones."""
        from mkviz.sweep_kernels import LANE_TIMES, lane_times

        faults, n = self._faults, len(step.order)
        faults.steps += 1
        faults.lossy += step.lost > 0
        faults.counts["lost"] += step.lost
        faults.counts["strays"] += step.strays
        if not (faults.bytes or self._bytes[step.graph]):
            told = step.columns["flags"][step.order] & (KIND_MASK | FLAG_BYTES_LAST)
            faults.bytes = bool((told == KIND_TASK | FLAG_BYTES_LAST).any())
        faults.bytes |= self._bytes[step.graph]
        if self._times.shape[1] <= n:
            self._times = np.empty((LANE_TIMES, 2 * n + 1), np.int64)
        self.ptr, self.left = np.empty(step.sms + 1, np.int64), np.empty(step.sms, np.int64)
        self.open_end = np.empty(step.sms, np.bool_)
        c = step.column
        count = lane_times(
            c("sm"), c("task"), c("flags"), c("ready"), c("begin"), c("end"), c("publish"), step.order, step.since, step.until,
            step.sms, self._in_turn[step.graph], self._seen[step.graph], faults.steps, self._counted, self._times, self.ptr,
            self.left, self.open_end,
        )  # fmt: skip
        self.times = self._times[:, :count]
        return count > 0 and not step.lost

    @property
    def faults(self) -> Faults:
        for name, count in zip(FAULTS_OF_LANES, self._counted.tolist(), strict=True):
            self._faults.counts[name] = count
        return self._faults


def joined_faults(lanes: Iterable[Lanes]) -> Faults:
    out = Faults()
    for more in (one.faults for one in lanes):
        out.steps, out.lossy, out.bytes = out.steps + more.steps, out.lossy + more.lossy, out.bytes or more.bytes
        out.counts = {name: count + more.counts[name] for name, count in out.counts.items()}
    return out


def split(records: np.ndarray, count: int) -> list[range]:
    """At most ``count`` ranges of steps with about as many ``records`` each."""
    until = np.cumsum(records + 1)
    if not len(until):
        return []
    ends = np.unique(np.searchsorted(until, until[-1] * np.arange(1, count + 1) / count))
    ends = np.unique(np.minimum(ends, len(until) - 1)) + 1
    return [range(a, b) for a, b in zip([0, *ends[:-1].tolist()], ends.tolist(), strict=True)]


def parts_of(trace: Trace, count: int) -> list[tuple[int, int]]:
    """At most ``count`` ranges of the numbers of steps (first, last) with about as many records each."""
    table = trace.table("steps", ["step", "records"])
    number, records = (table[name].to_numpy().astype(np.int64) for name in ("step", "records"))
    order = np.argsort(number, kind="stable")
    return [(int(number[order[rows[0]]]), int(number[order[rows[-1]]])) for rows in split(records[order], count)]


def _ordered(columns: dict[str, np.ndarray], first: int, stop: int, sms: int, tasks: int) -> np.ndarray:
    """Rows of records within ``sms`` and ``tasks``, by SM, begin and end."""
    c = {name: columns[name][first:stop] for name in ("sm", "begin", "end", "task")}
    order = np.lexsort((c["end"], c["begin"], c["sm"]))
    return first + order[(c["sm"][order] < sms) & (c["task"][order] < tasks)]


def _whole_steps(pieces: Iterator[dict[str, np.ndarray]]) -> Iterator[dict[str, np.ndarray]]:
    """The same columns, cut so that no step lies in two pieces; only what lay in two is copied."""
    rest: dict[str, np.ndarray] | None = None  # of one step
    for piece in pieces:
        step, start = piece["step"], 0
        if rest is not None:
            start = int(np.searchsorted(step, rest["step"][0], "right"))
            if start:
                rest = {name: np.concatenate([values, piece[name][:start]]) for name, values in rest.items()}
            if start == len(step):
                continue
            yield _fixed(rest)
        cut = int(np.searchsorted(step, step[-1]))
        if cut > start:
            yield _fixed({name: values[start:cut] for name, values in piece.items()})
        rest = {name: values[cut:] for name, values in piece.items()}
    if rest is not None:
        yield _fixed(rest)


def _fixed(columns: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The same, read-only as what Arrow hands out: kernels are compiled for one of the two."""
    out = {name: values.view() for name, values in columns.items()}
    for values in out.values():
        values.flags.writeable = False
    return out


NO_RECORDS = _fixed({field.name: np.zeros(0, field.type.to_pandas_dtype()) for field in TABLES["records"]})
