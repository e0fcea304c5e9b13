"""Excerpt: the part of a source that leaves mkviz as a file: whole steps, and the range of them that is looked at."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from mkviz import lod
from mkviz.dashboard.scene import Look, Scene
from mkviz.dashboard.units import duration
from mkviz.errors import MkvizError
from mkviz.store import DEFAULT_BYTES, RECORD_BYTES, STEP, LiveStore, cut_by

if TYPE_CHECKING:
    from mkviz.protocols import Source
    from mkviz.store import Snapshot
    from mkviz.trace import Trace


@dataclass(frozen=True, eq=False)
class Excerpt:
    """The range [``x0``, ``x1``) of a snapshot (ns since its origin), and the label and kind of where it comes from."""

    snapshot: Snapshot
    x0: float
    x1: float
    label: str
    kind: str
    look: Look = field(default_factory=Look)

    @classmethod
    def of_trace(cls, trace: Trace, steps: tuple[int, int] | None = None, span: tuple[float, float] | None = None) -> Excerpt:
        """Steps ``first`` to ``last`` of a trace, or the ``span`` (from, to) in ns since its first step began, or all of it.

        Reads only the steps that it needs.  Raises MkvizError when there are none, or for steps and span at once.
        """
        _one_of(steps, span)
        table = np.sort(_steps_of(trace), order="begin")
        origin = _store(trace, table[:1]).snapshot().origin if len(table) else 0
        chosen = _choose(f"trace {trace.path}", table, origin, steps, span)
        snapshot = replace(_store(trace, chosen).snapshot(), origin=origin)
        x0, x1 = snapshot.extent if span is None else span
        return cls(snapshot, float(x0), float(x1), trace.label, trace.kind)

    @classmethod
    def of_source(
        cls, source: Source, steps: tuple[int, int] | None = None, span: tuple[float, float] | None = None
    ) -> Excerpt:
        """As ``of_trace``, of what a source holds now."""
        _one_of(steps, span)
        snapshot = source.snapshot()
        table = snapshot.steps[np.argsort(snapshot.steps["begin"], kind="stable")]
        chosen = _choose(source.label, table, snapshot.origin, steps, span)
        if span is None:
            span = chosen["begin"].min() - snapshot.origin, chosen["end"].max() - snapshot.origin
        return cls(snapshot, float(span[0]), float(span[1]), source.label, source.kind)

    def __post_init__(self):
        if not -np.inf < self.x0 < self.x1 < np.inf:
            raise MkvizError(f"range: {self.x0:g} to {self.x1:g} ns", "two times, the end after the begin")

    def scene(self, width: int) -> Scene:
        """It as a scene of ``width`` pixels, of all SMs, one lane each."""
        look = replace(self.look, roles=False, sms=None)
        return Scene(self.snapshot, lod.GraphTables(self.snapshot), look, self.x0, self.x1, width)

    @property
    def steps(self) -> np.ndarray:
        """Rows of the snapshot's steps that touch the range."""
        return self.snapshot.steps_in(self.x0, self.x1)

    @property
    def title(self) -> str:
        """Label, graph and SMs, as every view of it says."""
        graph = self.snapshot.graph_of(int(self.steps[-1]) if len(self.steps) else -1)
        whole = "" if self.snapshot.complete else " · incomplete"
        return f"{self.label} · {graph.name} · {self.snapshot.lanes} SMs{whole}"

    @property
    def words(self) -> str:
        """Which steps, how long, and what was lost of the source."""
        numbers = self.snapshot.steps["step"][self.steps]
        which = "no step" if not len(numbers) else f"step {numbers[0]}"
        which += f" to {numbers[-1]}" if len(numbers) > 1 else ""
        lost = self.snapshot.lost_records
        return f"{which} · {duration(self.x1 - self.x0)} · {f'{lost:,} records' if lost else 'no record'} lost".replace(
            ",", " "
        )


def _one_of(steps, span) -> None:
    if steps is not None and span is not None:
        raise MkvizError("steps and a range at once", "one of them")


def _steps_of(trace: Trace) -> np.ndarray:
    """step, begin, end, records i64 of every step."""
    names = ["step", "begin", "end", "records"]
    columns = trace.table("steps", names)
    return np.rec.fromarrays([columns[name].to_numpy().astype(np.int64) for name in names], names=names)


def _choose(whose: str, table: np.ndarray, origin: int, steps, span) -> np.ndarray:
    """The rows of ``table`` (step, begin, end), ascending by begin, that are asked for."""
    if not len(table):
        raise MkvizError(f"{whose} holds no steps", "one with a step")
    if steps is not None:
        first, last = steps
        chosen = table[(table["step"] >= first) & (table["step"] <= last)]
        which = f"step {first}" if first == last else f"step from {first} to {last}"
        remedy = f"from {table['step'].min()} to {table['step'].max()}"
    elif span is not None:
        chosen = table[(table["begin"] - origin < span[1]) & (table["end"] - origin > span[0])]
        which = f"step within {span[0] / 1000:g} to {span[1] / 1000:g} µs"
        remedy = f"a range within 0 to {(table['end'].max() - origin) / 1000:.3f} µs"
    else:
        return table
    if not len(chosen):
        raise MkvizError(f"{whose} holds no {which}", remedy)
    return chosen


def _store(trace: Trace, table: np.ndarray) -> LiveStore:
    """A closed store of the steps of ``table``, large enough for all of them."""
    records, rows = int(table["records"].sum()) / 0.6, len(table) / 0.2  # shares of a LiveStore's bytes that it fills
    needed = 1.1 * (records * RECORD_BYTES + rows * (STEP.itemsize + 8 * (trace.sms + 1)))
    store = LiveStore(trace.label, trace.kind, max(DEFAULT_BYTES, int(needed)), cut_by(trace))
    trace.replay(store, steps=table["step"])
    store.close(trace.complete)
    return store
