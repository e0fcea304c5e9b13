"""Slices and merges: traces made from traces."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import groupby
from pathlib import Path

import numpy as np

from mkviz.errors import MkvizError
from mkviz.protocols import RequestInfo, StepInfo, TokenInfo
from mkviz.trace import schema
from mkviz.trace.reader import Trace
from mkviz.trace.selection import Selection
from mkviz.trace.writer import TraceWriter


def write_slice(trace: Trace, path: str | Path, overwrite: bool, **selected) -> Trace:
    """See :meth:`Trace.slice`.  Its lost records are those of its steps; ``meta["slice"]["lost"]`` keeps the whole trace's."""
    Selection.of(trace, **selected)  # refuses what cannot be before anything is created
    about = {key: trace.meta[key] for key in ("created", "command", "versions", "clock", "recording")}
    about["slice"] = {"lost": list(trace.lost), **{name: _words(value) for name, value in selected.items()}}

    def fill(writer: TraceWriter) -> None:
        trace.replay(writer, **selected)
        writer.append("clocks", trace.clocks)

    return _write(path, [trace], about, overwrite, fill)


def write_merged(traces: list[Trace], path: str | Path, overwrite: bool) -> Trace:
    """See :meth:`Trace.merge`.

    Parts of one recording (slices) are put together again: what several hold is kept once.  Of other recordings, graphs, steps
    and requests are renumbered where they clash; times stay as they are.  Raises MkvizError when kinds or devices differ,
    because a merged trace has one label.
    """
    if not traces:
        raise MkvizError("merge: no traces", "give at least one")
    for key in ("kind", "device"):
        if len(values := sorted({t.meta[key] for t in traces})) > 1:
            raise MkvizError(f"merge: {key}s differ ({', '.join(values)})", f"merge traces of one {key}")
    recordings: dict[str, list[Trace]] = {}
    for trace in traces:
        recordings.setdefault(trace.meta["recording"], []).append(trace)
    errors = [t.meta["clock"].get("error_ns") for t in traces]
    about = {
        "clock": {"error_ns": None if None in errors else max(errors)},
        "merged": [{key: t.meta.get(key) for key in ("recording", "created", "command", "slice")} for t in traces],
    }
    if len(recordings) == 1:
        about["recording"] = traces[0].meta["recording"]

    def fill(writer: TraceWriter) -> None:
        merged = _Merged(writer)
        for parts in recordings.values():
            merged.add(parts)

    return _write(path, traces, about, overwrite, fill)


class _Merged:
    """Puts one recording after the other into a writer and keeps their numbers apart."""

    def __init__(self, writer: TraceWriter):
        self.writer = writer
        self._graphs: list[tuple] = []  # identities, by id
        self._steps = self._requests = -1  # the highest numbers so far

    def add(self, parts: list[Trace]) -> None:
        graph_ids = self._add_graphs(parts)
        steps = np.concatenate([p.table("steps", ["step"])["step"].to_numpy() for p in parts])
        requests = {r["request"]: None for p in parts for r in p.requests.to_pylist()}
        step_shift = self._shift(self._steps, steps.tolist())
        request_shift = self._shift(self._requests, list(requests))
        lost_in_steps = 0
        for info, events in _together(parts):
            rows = [replace(row, request=row.request + request_shift) for row in info.rows]
            info = replace(info, step=info.step + step_shift, graph=graph_ids.get(info.graph, info.graph), rows=rows)
            events = events.copy()
            events["step"] += step_shift
            self.writer.step(info, events)
            lost_in_steps += info.lost
        for token in _distinct(parts, "tokens"):
            shifted = {"step": token["step"] + step_shift, "request": token["request"] + request_shift}
            self.writer.token(TokenInfo(**{**token, **shifted}))
        for request in _distinct(parts, "requests"):
            self.writer.request(RequestInfo(**{**request, "request": request["request"] + request_shift}))
        self.writer.append("clocks", schema.table_of_rows("clocks", [tuple(r.values()) for r in _distinct(parts, "clocks")]))
        beyond = max(p.lost[0] - sum(p.table("steps", ["lost"])["lost"].to_pylist()) for p in parts)
        self.writer.lost(lost_in_steps + max(0, beyond), max(p.lost[1] for p in parts))
        self._steps = max([self._steps, *(steps + step_shift).tolist()])
        self._requests = max([self._requests, *(r + request_shift for r in requests)])

    def _add_graphs(self, parts: list[Trace]) -> dict[int, int]:
        """{id in the parts: id in the merged trace}; a graph that is there already is used again."""
        ids = {}
        for part in parts:
            for graph_id, (graph, schedule) in part.graphs.items():
                arrays = schedule.order_ptr, schedule.order, schedule.queue, schedule.load_order
                plain = graph.name, graph.hash, graph.meta, schedule.policy, schedule.sms
                identity = plain, [a.tolist() for a in arrays]
                if identity not in self._graphs:
                    self._graphs.append(identity)
                    self.writer.graph(len(self._graphs) - 1, graph, schedule)
                ids[graph_id] = self._graphs.index(identity)
        return ids

    @staticmethod
    def _shift(highest: int, numbers: list[int]) -> int:
        return highest + 1 - min(numbers) if numbers and min(numbers) <= highest else 0


def _together(parts: list[Trace]) -> Iterator[tuple[StepInfo, np.ndarray]]:
    """The steps of parts of one recording, ascending; records that several parts hold once."""
    walks = heapq.merge(*(part.walk(Selection()) for part in parts), key=lambda pair: pair[0].step)
    for _, same in groupby(walks, key=lambda pair: pair[0].step):
        pairs = list(same)
        events = pairs[0][1]
        if len(pairs) > 1:
            events = np.unique(np.concatenate([events for _, events in pairs]))
            events = events[np.lexsort((events["begin"], events["sm"]))]
        yield pairs[0][0], events


def _distinct(parts: list[Trace], table: str) -> Iterator[dict]:
    seen = set()
    for part in parts:
        for row in part.table(table).to_pylist():
            if (key := tuple(row.values())) not in seen:
                seen.add(key)
                yield row


def _write(path, traces: list[Trace], about: dict, overwrite: bool, fill: Callable[[TraceWriter], None]) -> Trace:
    """A trace of the kind and device of ``traces``, complete if they are."""
    if Path(path).exists() and any(Path(path).resolve() == t.path.resolve() for t in traces):
        raise MkvizError(f"trace {path} is what is being read", "choose another name")
    meta = traces[0].meta
    label = meta["label"] if len({t.meta["label"] for t in traces}) == 1 else ""
    writer = TraceWriter(path, kind=meta["kind"], device=meta["device"], label=label, overwrite=overwrite, about=about)
    try:
        fill(writer)
    finally:
        writer.close(complete=all(t.complete for t in traces))
    if writer.error:
        raise MkvizError(writer.error, "make room, or choose another place")
    return Trace.open(path)


def _words(value) -> str | None:
    """A selection in words: ``0..99, 120``; None where nothing was selected."""
    if value is None or isinstance(value, str):
        return value
    values = np.atleast_1d(np.asarray(list(value) if isinstance(value, (range, set)) else value))
    if not np.issubdtype(values.dtype, np.integer):
        return ", ".join(map(str, values.tolist()))
    values = np.unique(values)
    runs = np.split(values, np.flatnonzero(np.diff(values) > 1) + 1) if len(values) else []
    return ", ".join(f"{run[0]}..{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs)
