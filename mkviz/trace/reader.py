"""Trace: a recording on disk, opened lazily."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from mkviz.errors import MkvizError
from mkviz.graph import Graph
from mkviz.protocols import RequestInfo, Row, Sink, StepInfo, TokenInfo
from mkviz.record import EVENT
from mkviz.schedule import Schedule
from mkviz.trace import schema
from mkviz.trace.selection import Selection
from mkviz.trace.storage import Storage, open_storage, write_zip


class Trace:
    """What a :class:`TraceWriter` left.  Opening reads ``meta.json`` only; tables are read when they are asked for.

    ``meta``: all that ``meta.json`` holds.  ``tasks counters steps rows routes requests tokens clocks records`` are the tables
    of :mod:`mkviz.trace.schema` (``pyarrow.Table``).  Times are ns on the trace's clock.
    """

    def __init__(self, storage: Storage, meta: dict):
        self.storage, self.meta, self.path = storage, meta, storage.path
        self._files: dict[str, pq.ParquetFile] = {}

    @classmethod
    def open(cls, path: str | Path) -> Trace:
        """A folder or a zip file of one; of a recording that still runs, what it has flushed.

        Raises MkvizError when there is nothing, it is no trace, or a newer mkviz wrote it.
        """
        storage = open_storage(path)
        try:
            with storage.open(schema.META) as file:
                meta = json.loads(file.read())
        except (OSError, ValueError) as error:
            raise MkvizError(f"trace {path}: {schema.META} cannot be read ({error})", "get the trace again") from error
        if not isinstance(meta, dict) or meta.get("format") != schema.FORMAT:
            raise MkvizError(f"{path} is not a trace: its {schema.META} says so", f"'format' must be {schema.FORMAT!r}")
        if not isinstance(meta.get("schema"), int) or not 1 <= meta["schema"] <= schema.VERSION:
            writer = meta.get("versions", {}).get("mkviz", "?")
            raise MkvizError(f"trace {path} has schema {meta.get('schema')}, this mkviz reads up to {schema.VERSION}",
                             f"upgrade mkviz (mkviz {writer} wrote it)")  # fmt: skip
        return cls(storage, meta)

    # what it is

    @property
    def kind(self) -> str:
        """One of ``KINDS``; what was measured then is ``recorded`` now."""
        return "recorded" if self.meta["kind"] == "measured" else self.meta["kind"]

    @property
    def label(self) -> str:
        """For every view: ``recorded (cpu)``, ``recorded on NVIDIA H200``, ``simulated …``."""
        if self.meta["kind"] == "measured":
            return "recorded" + self.meta["label"].removeprefix("measured")
        return self.meta["label"]

    @property
    def complete(self) -> bool:
        """False while it is being recorded, and for ever when the writer was cut short."""
        return self.meta["complete"]

    @property
    def lost(self) -> tuple[int, int]:
        """(records, steps) that were executed and are not in the trace; those of incomplete steps are included."""
        return self.meta["lost"]["records"], self.meta["lost"]["steps"]

    @property
    def sms(self) -> int:
        """Number of SMs that the schedules are for."""
        return max((g["sms"] for g in self.meta["graphs"].values()), default=0)

    # tables

    def table(self, name: str, columns: Sequence[str] | None = None) -> pa.Table:
        """A table, whole, or only some of its columns."""
        if name not in schema.TABLES:
            raise MkvizError(f"trace table {name!r}", f"one of {', '.join(schema.TABLES)}")
        parts = [self._read(file, columns=columns) for file in self._segments(name)]
        if parts:
            return pa.concat_tables(parts).unify_dictionaries()
        empty = schema.TABLES[name].empty_table()
        return empty.select(columns) if columns else empty

    tasks = property(lambda self: self.table("tasks"))
    counters = property(lambda self: self.table("counters"))
    records = property(lambda self: self.table("records"))
    steps = property(lambda self: self.table("steps"))
    rows = property(lambda self: self.table("rows"))
    routes = property(lambda self: self.table("routes"))
    requests = property(lambda self: self.table("requests"))
    tokens = property(lambda self: self.table("tokens"))
    clocks = property(lambda self: self.table("clocks"))

    @cached_property
    def graphs(self) -> dict[int, tuple[Graph, Schedule]]:
        """{id: (graph, schedule)}, exactly as they were recorded."""
        if not self.meta["graphs"]:
            return {}
        tasks, counters = self.tasks, self.counters
        out = {}
        for key, header in self.meta["graphs"].items():
            mine = [t.filter(pc.field("graph") == int(key)) for t in (tasks, counters)]
            out[int(key)] = schema.graph_of_tables(*mine, header)
        return out

    # records

    def events(self, steps=None, time=None, sms=None, ops=None) -> np.ndarray:
        """EVENT[k], by step, then SM, then begin; reads only the row groups that can hold them.

        ``steps``: a step, a range, or a sequence; ``time``: (from, to) in ns, events of which any part lies within;
        ``sms``: an SM or a sequence; ``ops``: the name of an op or a sequence of names.
        """
        parts = list(self.batches(Selection.of(self, steps, time, sms, ops)))
        return np.concatenate(parts) if parts else np.zeros(0, EVENT)

    def batches(self, selection: Selection | None = None) -> Iterator[np.ndarray]:
        """All events or those of a selection in pieces, each of one row group."""
        selection = selection or Selection()
        for file in self._segments("records"):
            for group in range(file.num_row_groups):
                if selection.may_hold(file.metadata.row_group(group)):
                    events = schema.events_of_table(self._read(file, group))
                    if (mask := selection.mask(events)) is not None:
                        events = events[mask]
                    if len(events):
                        yield events

    def columns(self, names: Sequence[str], steps: tuple[int, int] | None = None) -> Iterator[dict[str, np.ndarray]]:
        """The named columns of the records, in pieces, each of one row group; ``steps`` (first, last): only what is of those.
        Needs no memory but for the piece, and no copy where all of it is wanted."""
        span = Selection() if steps is None else Selection(steps=np.array(steps, np.int64))
        names = list(dict.fromkeys(["step", *names]))
        for file in self._segments("records"):
            for group in range(file.num_row_groups):
                if steps is not None and not span.may_span(file.metadata.row_group(group)):
                    continue
                table = self._read(file, group, names)
                found = {name: table[name].to_numpy() for name in names}
                if steps is not None and len(table):
                    inside = (found["step"] >= steps[0]) & (found["step"] <= steps[1])
                    if not inside.all():
                        found = {name: values[inside] for name, values in found.items()}
                if len(found["step"]):
                    yield found

    def walk(self, selection: Selection) -> Iterator[tuple[StepInfo, np.ndarray]]:
        """(step, its events) of a selection, ascending; steps of which it holds no event come with none."""
        infos = {info.step: info for info in self.infos()}
        none = np.zeros(0, EVENT)
        for step, events in _by_step(self.batches(selection)):
            if step not in infos:
                raise self.disordered(step)
            while (first := next(iter(infos))) < step:
                info = infos.pop(first)
                if selection.has_step(info):
                    yield info, none
            yield infos.pop(step), events
        yield from ((info, none) for info in infos.values() if selection.has_step(info))

    def replay(self, sink: Sink, steps=None, time=None, sms=None, ops=None, since: int | None = None) -> None:
        """Tell a sink all that the trace holds, or of a selection as for ``events``: ``steps`` and ``time`` choose steps and
        tokens, ``sms`` and ``ops`` only thin the records; lost are then those of the steps.  Of steps before ``since`` all but
        themselves and their records is told.  The sink is not closed."""
        selection, told = Selection.of(self, steps, time, sms, ops), {}
        for graph_id, (graph, schedule) in self.graphs.items():
            sink.graph(graph_id, graph, schedule)
        for info, events in _ahead(self.walk(selection if since is None else selection.since(self, since))):
            sink.step(info, events)
            told[info.step] = info.lost
        for token in self.tokens.to_pylist():
            if token["step"] in told or selection.everything:
                sink.token(TokenInfo(**token))
        for request in self.requests.to_pylist():
            sink.request(RequestInfo(**request))
        sink.lost(*(self.lost if selection.everything else (sum(told.values()), 0)))

    def infos(self) -> list[StepInfo]:
        """All steps, ascending, with their rows and routes."""
        infos = {
            s["step"]: StepInfo(s["step"], s["graph"], s["begin"], s["end"], lost=s["lost"]) for s in self.steps.to_pylist()
        }
        for r in self.rows.to_pylist():
            infos[r.pop("step")].rows.append(Row(**r))
        for r in self.routes.to_pylist():
            infos[r["step"]].routes.append((r["layer"], r["slot"], r["expert"], r["rows"]))
        return [infos[step] for step in sorted(infos)]

    # other traces

    def slice(self, path: str | Path, steps=None, time=None, sms=None, ops=None, overwrite: bool = False) -> Trace:
        """Write a part of it (as for ``replay``) as a trace of its own and open that.  ``meta["slice"]`` says what was cut."""
        from mkviz.trace.merge import write_slice

        return write_slice(self, path, overwrite, steps=steps, time=time, sms=sms, ops=ops)

    @staticmethod
    def merge(traces: Sequence[Trace | str | Path], path: str | Path, overwrite: bool = False) -> Trace:
        """Write several traces as one and open that; see :func:`mkviz.trace.merge.write_merged`."""
        from mkviz.trace.merge import write_merged

        return write_merged([t if isinstance(t, Trace) else Trace.open(t) for t in traces], path, overwrite)

    def zip(self, path: str | Path | None = None, overwrite: bool = False) -> Path:
        """Pack it into one file (``NAME.mkt.zip`` beside it, unless ``path`` says where), which opens as it is."""
        out = self.path.with_name(self.path.name + ".zip") if path is None else Path(path)
        if out.exists() and not overwrite:
            raise MkvizError(f"{out} exists", "choose another name, or ask for it to be overwritten")
        write_zip(self.storage, [schema.META, *self._segment_names()], out)
        return out

    # files

    def _segment_names(self, table: str = "") -> list[str]:
        """Of one table or of all: those that ``meta.json`` counts.  Later ones belong to a flush that did not end."""

        def counts(name: str) -> bool:
            kind, _, number = name.removesuffix(".parquet").rpartition("-")
            return number.isdigit() and int(number) < self.meta["flushes"] and kind in ([table] if table else schema.TABLES)

        return [name for name in self.storage.names() if counts(name)]

    def _segments(self, table: str) -> Iterator[pq.ParquetFile]:
        names = self._segment_names(table)
        found, expected = 0, self.meta["rows"].get(table, 0)
        for name in names:
            if name not in self._files:
                try:
                    self._files[name] = pq.ParquetFile(self.storage.open(name))
                except (OSError, KeyError, pa.ArrowException) as error:
                    raise self._damaged(name, error) from error
            found += self._files[name].metadata.num_rows
            yield self._files[name]
        if found != expected:
            raise MkvizError(f"trace {self.path}: table {table} has {found} rows, {schema.META} counts {expected}",
                             "a segment is missing; get the trace again")  # fmt: skip

    def _read(self, file: pq.ParquetFile, group: int | None = None, columns: Sequence[str] | None = None) -> pa.Table:
        try:
            columns = list(columns) if columns else None
            return file.read(columns) if group is None else file.read_row_group(group, columns)
        except (OSError, pa.ArrowException) as error:
            name = next(n for n, f in self._files.items() if f is file)
            raise self._damaged(name, error) from error

    def disordered(self, step: int) -> MkvizError:
        """For records of a step that came already, comes too late or is not in the table of steps."""
        return MkvizError(f"trace {self.path}: records of step {step} are not where its table of steps has them",
                          "write steps ascending, each once")  # fmt: skip

    def _damaged(self, name: str, error: Exception) -> MkvizError:
        return MkvizError(f"trace {self.path}: segment {name} is damaged ({str(error).splitlines()[0]})", "get the trace again")


def _by_step(batches: Iterator[np.ndarray]) -> Iterator[tuple[int, np.ndarray]]:
    """(step, its events): a step may lie across row groups and segments, but steps are never mixed."""
    step, parts = None, []
    for events in batches:
        edges = np.flatnonzero(np.diff(events["step"])) + 1
        for part in np.split(events, edges):
            if part["step"][0] != step:
                if parts:
                    yield step, _joined(parts)
                step, parts = int(part["step"][0]), []
            parts.append(part)
    if parts:
        yield step, _joined(parts)


def _ahead(pieces: Iterator[tuple[StepInfo, np.ndarray]]) -> Iterator[tuple[StepInfo, np.ndarray]]:
    """The same, each read on a thread while the one before is told."""
    with ThreadPoolExecutor(1) as pool:
        coming = pool.submit(next, pieces, None)
        while (piece := coming.result()) is not None:
            coming = pool.submit(next, pieces, None)
            yield piece


def _joined(parts: list[np.ndarray]) -> np.ndarray:
    """Most steps lie in one row group: those are not copied."""
    return parts[0] if len(parts) == 1 else np.concatenate(parts)
