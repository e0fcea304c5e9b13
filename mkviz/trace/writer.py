"""TraceWriter: the sink that writes a trace while it is being recorded."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import shlex
import shutil
import sys
import threading
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import mkviz
from mkviz.errors import MkvizError
from mkviz.protocols import KINDS, RequestInfo, StepInfo, TokenInfo
from mkviz.trace import schema

if TYPE_CHECKING:
    from mkviz.clocks import Clocks
    from mkviz.graph import Graph
    from mkviz.schedule import Schedule

ROW_GROUP = 1 << 16  # rows that a reader can skip at once
BACKLOG = 8  # segments' worth of records that may wait for a slow disk before ``step`` waits too
LONGEST = 30.0  # seconds between flushes of a long recording
_IDS = ("task", "counter", "order", "load_order")  # of 32 bits: nearly every row has its own, a dictionary would not help
_GROWING = ("steps", "rows", "routes", "requests", "tokens")


class TraceWriter:
    """Writes what it is told into the folder ``path``, from a thread of its own; a sink (:class:`mkviz.protocols.ClockSink`).

    Segments are written whole under another name and renamed, then ``meta.json`` is replaced and makes them count: whenever the
    process dies, the trace up to the last flush is readable and marked incomplete.  A flush happens after
    ``segment_records`` records, and after ``segment_seconds`` seconds or a hundredth of the time recorded so far (30 s at
    most).

    A full disk, or anything else that keeps it from writing, ends the trace and nothing else: what was written stays readable,
    later calls do nothing, ``error`` holds the reason in one line.

    ``kind``: one of ``KINDS``; ``device``: ``cpu`` or the GPU's name; ``label``: more words for people, begins with the kind;
    ``command``: what made the trace (this process's command line); ``about``: further entries of ``meta.json``.
    Raises MkvizError when ``path`` exists (unless ``overwrite``, and then only a trace is replaced) or cannot be created.
    """

    def __init__(self, path: str | Path, *, kind: str, device: str = "", label: str = "", overwrite: bool = False,
                 command: str | None = None, about: dict | None = None, segment_records: int = 1 << 18,
                 segment_seconds: float = 1.0):  # fmt: skip
        if kind not in KINDS:
            raise MkvizError(f"trace kind {kind!r}", f"one of {', '.join(KINDS)}")
        self.path = Path(path)
        self.error = ""
        self.segment_records, self.segment_seconds = segment_records, segment_seconds
        label = label or schema.label_of(kind, device)
        self._meta = {
            "format": schema.FORMAT, "schema": schema.VERSION, "kind": kind, "device": device,
            "label": label if label.startswith(kind) else f"{kind}: {label}", "complete": False, "error": "",
            "recording": uuid.uuid4().hex, "created": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            "command": _command() if command is None else command,
            "versions": {"mkviz": mkviz.__version__, "python": platform.python_version(), "numpy": np.__version__,
                         "pyarrow": pa.__version__, "platform": platform.platform()},
            "clock": {"error_ns": None}, "lost": {"records": 0, "steps": 0}, "flushes": 0, "rows": {}, "last_step": None,
            "graphs": {}, **(about or {}),
        }  # fmt: skip
        self._clocks, self._anchors = None, 0
        self._tables: list[tuple[str, pa.Table]] = []  # built already
        self._rows: dict[str, list[tuple]] = {name: [] for name in _GROWING}
        self._events: list[np.ndarray] = []
        self._pending = 0
        self._changed = threading.Condition()
        self._ending = self._wanted = self._complete = False
        self._told_lost = self._meta["lost"].copy()
        _parquet(schema.table_of_rows("steps", []))  # pyarrow imports much at first use: now, not while something is recorded
        _create(self.path, self._meta, overwrite)
        self._thread = threading.Thread(target=self._work, name="mkviz-trace", daemon=True)
        self._thread.start()

    # the sink

    def clocks(self, clocks: Clocks) -> None:
        self._clocks = clocks

    def graph(self, graph_id: int, graph: Graph, schedule: Schedule) -> None:
        tasks, counters, header = schema.tables_of_graph(graph_id, graph, schedule)
        header = json.loads(json.dumps(header))
        with self._changed:
            if self._open and self._meta["graphs"].get(str(graph_id)) != header:
                if str(graph_id) in self._meta["graphs"]:
                    raise MkvizError(f"trace {self.path}: a second graph with id {graph_id}", "give every graph its own id")
                self._meta["graphs"][str(graph_id)] = header
                self._tables += [("tasks", tasks), ("counters", counters)]

    def append(self, name: str, table: pa.Table) -> None:
        """More rows of a table, as they are (schema: ``mkviz.trace.schema.TABLES[name]``)."""
        with self._changed:
            if self._open and len(table):
                self._tables.append((name, table))

    def step(self, info: StepInfo, events: np.ndarray) -> None:
        """May wait while the disk is ``BACKLOG`` segments behind."""
        with self._changed:
            self._changed.wait_for(lambda: self._pending < BACKLOG * self.segment_records or not self._open)
            if not self._open:
                return
            self._events.append(events)
            self._pending += len(events)
            self._meta["last_step"] = info.step
            self._rows["steps"].append((info.step, info.graph, info.begin, info.end, len(info.rows), len(events), info.lost))
            self._rows["rows"] += [(info.step, r.row, r.request, r.position, r.token, r.kind) for r in info.rows]
            self._rows["routes"] += [(info.step, *route) for route in info.routes]
            if self._pending >= self.segment_records:
                self._changed.notify_all()

    def token(self, info: TokenInfo) -> None:
        self._append("tokens", (info.request, info.index, info.token, info.text, info.step, info.time))

    def request(self, info: RequestInfo) -> None:
        self._append("requests", (info.request, info.state, info.time, info.prompt_tokens, info.generated, info.prompt,
                                  info.finish_reason, info.label, info.cached))  # fmt: skip

    def lost(self, records: int, steps: int = 0) -> None:
        with self._changed:
            self._meta["lost"]["records"] += records
            self._meta["lost"]["steps"] += steps

    def flush(self) -> None:
        """Return when all that was told before is on its way to the disk and counts."""
        with self._changed:
            self._wanted = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._wanted or not self._open)

    def close(self, complete: bool = True) -> None:
        """Write what is left; ``complete`` says that the recording was not cut short.  Safe to call twice."""
        with self._changed:
            self._complete = complete
            self._ending = True
            self._changed.notify_all()
        self._thread.join()

    def __enter__(self) -> TraceWriter:
        return self

    def __exit__(self, kind, value, traceback) -> None:
        self.close(complete=kind is None)

    # the thread

    @property
    def _open(self) -> bool:
        return not self._ending and not self.error

    def _append(self, table: str, row: tuple) -> None:
        with self._changed:
            if self._open:
                self._rows[table].append(row)

    def _work(self) -> None:
        started = time.monotonic()
        try:
            while not self._ending:
                with self._changed:
                    elapsed = time.monotonic() - started
                    self._changed.wait_for(self._due, max(self.segment_seconds, min(elapsed / 100, LONGEST)))
                    wanted, batch = self._wanted, self._take()
                self._flush(batch)
                with self._changed:
                    self._wanted = self._wanted and not wanted
                    self._changed.notify_all()
            self._flush(self._take())
            self._meta["complete"] = self._complete
            _replace(self.path, self._meta)
        except Exception as error:  # of whatever kind: it must not reach the recording
            self._give_up(error)

    def _due(self) -> bool:
        return self._ending or self._wanted or self._pending >= self.segment_records

    def _take(self) -> tuple[list, dict, list, dict]:
        batch = self._tables, self._rows, self._events, json.loads(json.dumps(self._meta))
        self._tables, self._rows, self._events, self._pending = [], {name: [] for name in _GROWING}, [], 0
        return batch

    def _flush(self, batch: tuple[list, dict, list, dict]) -> None:
        """Write one segment of each table that has news, then let ``meta.json`` count them."""
        built, rows, events, meta = batch
        tables = {name: schema.table_of_rows(name, r) for name, r in rows.items() if r}
        for name in {name for name, _ in built}:
            tables[name] = pa.concat_tables([table for n, table in built if n == name])
        if sum(map(len, events)):
            tables["records"] = schema.table_of_events(np.concatenate(events))
        if self._clocks is not None:
            self._add_clocks(tables, meta)
        if not tables and meta["lost"] == self._told_lost:
            return
        for name, table in tables.items():
            _write(self.path / schema.segment_name(name, meta["flushes"]), _parquet(table))
            meta["rows"][name] = meta["rows"].get(name, 0) + len(table)
        meta["flushes"] += 1
        _replace(self.path, meta)
        self._told_lost = meta["lost"]
        with self._changed:
            self._meta.update({key: meta[key] for key in ("rows", "flushes", "clock")})

    def _add_clocks(self, tables: dict, meta: dict) -> None:
        clocks = self._clocks
        count, new = clocks.count, clocks.since(self._anchors)
        self._anchors = count
        if len(new):
            tables["clocks"] = schema.table_of_rows("clocks", new.tolist())
        meta["clock"] = {"error_ns": clocks.error_ns, "tick_ns": clocks.tick_ns, "cycles_per_ns": clocks.cycles_per_ns,
                         "fixed": clocks.fixed}  # fmt: skip

    def _give_up(self, error: Exception) -> None:
        with self._changed:
            reason = getattr(error, "strerror", None) or f"{type(error).__name__}: {error}"
            kept = f"{self._meta['rows'].get('steps', 0)} steps are kept"
            self.error = f"trace {self.path} stopped: {reason}; {kept}"
            self._take()
            self._changed.notify_all()
        with contextlib.suppress(OSError):  # no room even for the reason: the trace says incomplete as it stands
            _replace(self.path, {**self._meta, "error": self.error})


def _command() -> str:
    """This process's command line, without the folders of this machine in front of the program."""
    program = Path(sys.argv[0])
    name = ["python", "-m", program.parent.name] if program.name == "__main__.py" else [program.name]
    return shlex.join([*name, *sys.argv[1:]])


def _create(path: Path, meta: dict, overwrite: bool) -> None:
    """Make the folder appear with its ``meta.json`` in it, at one moment."""
    if path.exists() and not (path.is_dir() and not any(path.iterdir())):
        if not overwrite:
            raise MkvizError(f"trace {path} exists", "choose another name, or ask for it to be overwritten")
        if not (path / schema.META).is_file():
            raise MkvizError(f"{path} is not a trace", "only a trace is overwritten; choose another name")
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        part.mkdir()
        _replace(part, meta)
        if path.exists():
            shutil.rmtree(path)
        part.rename(path)
    except OSError as error:
        shutil.rmtree(part, ignore_errors=True)
        raise MkvizError(f"trace {path} cannot be created: {error.strerror}", "choose a folder that can be written") from error


def _parquet(table: pa.Table) -> pa.Buffer:
    """Times, numbers and ids as small differences (neighbours are near each other), what repeats and words as dictionaries."""
    stream = pa.BufferOutputStream()
    numbers = [f.name for f in table.schema if pa.types.is_int64(f.type) or f.name in _IDS]
    others = [f.name for f in table.schema if f.name not in numbers]
    pq.write_table(table, stream, row_group_size=ROW_GROUP, compression="zstd", use_dictionary=others,
                   column_encoding=dict.fromkeys(numbers, "DELTA_BINARY_PACKED"))  # fmt: skip
    return stream.getvalue()


def _write(path: Path, data: pa.Buffer | bytes) -> None:
    """The file is there whole or not at all."""
    part = path.with_name(f".{path.name}.part")
    try:
        part.write_bytes(data)
        os.replace(part, path)
    except OSError:
        part.unlink(missing_ok=True)
        raise


def _replace(path: Path, meta: dict) -> None:
    _write(path / schema.META, json.dumps(meta, indent=1).encode())
