"""Accounting: where SM time went, every nanosecond of the math role in exactly one kind; docs/analyses.md has the formulae."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from mkviz.errors import MkvizError
from mkviz.faults import Faults
from mkviz.record import FLAG_BYTES_LAST
from mkviz.step_records import MOST_NS, LaneTimes, StepRecords, steps_of
from mkviz.store import NO_CHUNK, cut_by

if TYPE_CHECKING:
    import pandas as pd
    from bokeh.plotting import figure

    from mkviz.protocols import Source
    from mkviz.store import Snapshot
    from mkviz.trace import Trace

KINDS = ("compute", "wait", "starved", "overhead", "tail", "unknown")
KEYS = ("step", "sm", "op", "layer")
LARGE = 1 << 20  # records: beyond, loading what is compiled for them pays
ROLES = ("loader", "feeder", "storer")  # beside math, whose time the kinds are of
NOTES = {
    "waits": "wait is what was idle until ready, whatever it was idle for",
    "bytes": "what starved is counted as overhead",
    "lost": "unknown as a whole",
}
ROLE_NOTE = ("of loader, feeder and storer, records tell between which stamps they had a task in hand, not how long they "
             "worked; at level 1 bytes count as there at begin")  # fmt: skip
ENTRY = np.dtype([
    ("step", "<i8"), ("sm", "<i4"), ("op", "<i4"), ("layer", "<i4"), *((name, "<i8") for name in (*KINDS, *ROLES)),
])  # fmt: skip
"""SM time (ns) of a step, SM, op and layer, by kind, and how long each other role had one of these tasks in hand.  ``op`` is an
index into ``Account.ops``; -1, with layer -1, for what belongs to no task: the tail of a lane, and the unknown after its last
sound record.  ``step`` is -1 in the sums over all steps of a large capture."""


@dataclass
class Account:
    """``sm_time``: the sum over steps of makespan x SMs, ns; the entries' kinds add up to exactly that.

    ``faults`` counts records (:class:`mkviz.faults.Faults`); ``notes`` says what the trace cannot tell.
    """

    label: str
    steps: int
    sm_time: int
    ops: tuple[str, ...]
    entries: np.ndarray
    faults: dict[str, int]
    notes: list[str] = field(default_factory=list)

    @property
    def totals(self) -> dict[str, int]:
        """ns by kind."""
        return {kind: int(self.entries[kind].sum()) for kind in KINDS}

    def frame(self, *by: str) -> pd.DataFrame:
        """A row for each value of ``by`` (any of step, sm, op, layer; none: one row for all), a column of ns for each kind and
        ``sm_time``, their sum.  What belongs to no task has op ``""`` and layer -1.  Raises MkvizError for another key."""
        out = self._summed(by, KINDS)
        out["sm_time"] = out[list(KINDS)].sum(axis=1)
        return out

    def roles(self, *by: str) -> pd.DataFrame:
        """A row for each value of ``by`` (as in ``frame``), a column for each role: ns for which it had a task in hand, time
        that it shared among several counted once, for the first.  So long did it work at most; only math's is known to be
        work, as ``attrs["notes"]`` tells.  Columns of steps that lost records are 0."""
        out = self._summed(by, ("loader", "feeder", "compute", "storer")).rename(columns={"compute": "math"})
        out.attrs["notes"] = [*self.notes, ROLE_NOTE]
        return out

    def _summed(self, by: tuple[str, ...], names: tuple[str, ...]) -> pd.DataFrame:
        import pandas as pd

        for key in by:
            if key not in KEYS:
                raise MkvizError(f"accounting by {key!r}", f"any of {', '.join(KEYS)}")
        if "step" in by and self.steps and (self.entries["step"] == -1).all():
            raise MkvizError("a large capture is accounted for over all of its steps", "name some of them: account(…, steps=…)")
        frame = pd.DataFrame({name: self.entries[name] for name in (*by, *names)})
        if not by:
            return frame.sum().to_frame().T
        out = frame.groupby(list(by), sort=True)[list(names)].sum().reset_index()
        if "op" in by:
            out["op"] = np.array([*self.ops, ""], object)[out["op"]]
            out = out.sort_values(list(by), kind="stable", ignore_index=True)
        return out

    def plot(self, by: str = "op", dark: bool = False) -> figure:
        """SM time by kind as stacked bars, one for each value of ``by`` (one of step, sm, op, layer); or by ``role``: how long
        each had a task in hand."""
        from mkviz import palette, plots

        if by == "role":
            roles = self.roles()
            held = roles.iloc[0].to_numpy(np.int64)
            rows = roles.T.rename_axis("role").reset_index()[["role"]].assign(held=held, rest=self.sm_time - held)
            rows = rows.rename(columns={"held": "a task in hand", "rest": "none"})
            colours = {"a task in hand": palette.CAUSES["compute"], "none": palette.WAIT}
            head = plots.Head("SM time by role", self.label, roles.attrs["notes"])
            return plots.stacked(rows, "role", tuple(colours), head, "SM time", dark, colours)
        rows = self.frame(by)
        if by == "op":
            rows = rows.sort_values("sm_time", ascending=False, kind="stable").replace({"op": {"": "(no task)"}})
        return plots.stacked(rows, by, KINDS, plots.Head("SM time by kind", self.label, self.notes), "SM time", dark)


def account(source: Snapshot | Source | Trace | str | Path, steps=None) -> Account:
    """Account for all steps of a snapshot, a source, a trace or the trace at a path, or for some (``steps``: one or several).
    All steps of a trace of more than LARGE records are added up at once (:mod:`mkviz.tally`): then there is no frame by step.

    Raises MkvizError for a trace that was cut to some SMs, ops or times (idle cannot be told from left out there), a step that
    is not there, and SM time beyond 2^63 ns.
    """
    if isinstance(source, str | Path):
        from mkviz.trace import Trace

        source = Trace.open(source)
    refuse_thinned(source)
    if steps is None and is_large(source):
        from mkviz.tally import tally

        return tally(source).account(source.label)
    ops: dict[str, int] = {}
    parts, faults, sm_time = [], Faults(), 0
    for step in steps_of(source, steps):
        parts.append(_entries(step, np.array([ops.setdefault(op, len(ops)) for op in step.graph.ops], np.int64)))
        faults.add(step)
        sm_time += step.sm_time
    if sm_time > MOST_NS:
        raise MkvizError(f"{faults.steps} steps of {sm_time} ns of SM time", "fewer steps, of 2^63 ns together")
    notes = faults.notes(**NOTES)
    entries = np.concatenate(parts) if parts else np.zeros(0, ENTRY)
    return Account(getattr(source, "label", ""), faults.steps, sm_time, tuple(ops), entries, faults.counts, notes)


def is_large(source, steps=None, most: int | None = None) -> bool:
    """Whether it is a trace of more than ``most`` records (default: LARGE), or ``steps`` of one have so many."""
    most = LARGE if most is None else most
    large = getattr(source, "meta", {}).get("rows", {}).get("records", 0) > most
    if not large or steps is None:
        return large
    table = source.table("steps", ["step", "records"])
    asked = np.isin(table["step"].to_numpy(), np.atleast_1d(steps))
    return int(table["records"].to_numpy()[asked].sum(dtype=np.int64)) > most


def refuse_thinned(source) -> None:
    """Raises MkvizError for a trace that was cut to some SMs, ops or times, and for a source or a snapshot of one: idle cannot
    be told from left out there."""
    if cut := cut_by(source):
        raise MkvizError(f"the trace holds only some of its records (cut by {cut})", "a trace of whole steps")


def charge(step: StepRecords) -> dict[str, np.ndarray]:
    """ns of each kind but tail, i64 per record: its own compute and what its lane did between the task before and it.

    Only for a step without lost records.
    """
    return charge_lanes(step.lanes, step.events["flags"])


def charge_lanes(at: LaneTimes, flags: np.ndarray) -> dict[str, np.ndarray]:
    """The same of lanes of whichever steps, and the flags (u8) of their records."""
    idle = np.maximum(at.begin - at.free, 0) * at.sound
    told = np.where(at.doubt, 0, idle)
    wait = np.clip(at.ready - at.free, 0, told)
    starved = (flags & FLAG_BYTES_LAST) != 0
    return {
        "compute": np.maximum(at.end - np.maximum(at.begin, at.free), 0) * at.sound,
        "wait": wait,
        "starved": np.where(starved, told - wait, 0),
        "overhead": np.where(starved, 0, told - wait),
        "unknown": idle - told,
    }


def _in_hand(step: StepRecords) -> dict[str, np.ndarray]:
    """Of each other role ns, i64 per record, for which it had the task in hand and none that it took up before: the loader from
    claim until its bytes were there (at level 1: begin), the feeder from ready to begin, the storer from end to publish."""
    at, sm = step.lanes, step.events["sm"].astype(np.int64)
    loads = step.graph.bytes[step.events["task"]] > 0
    spans = {
        "loader": (at.claim, np.where(loads, np.where(step.last_chunk == NO_CHUNK, at.begin, step.landed), 0)),
        "feeder": (at.ready, at.begin),
        "storer": (at.end, step.published),
    }
    out = {}
    for role, (start, stop) in spans.items():
        stop = np.where(at.sound, stop, 0)
        order = np.lexsort((start, sm))
        key = sm[order] * (step.makespan + 1)
        latest = np.maximum.accumulate(stop[order] + key)
        before = np.append(0, latest[:-1])[: len(key)] - key
        ns = np.maximum(stop[order] - np.maximum(start[order], before), 0)
        out[role] = np.zeros(len(sm), np.int64)
        out[role][order] = ns
    return out


def _entries(step: StepRecords, op_of: np.ndarray) -> np.ndarray:
    rest = np.zeros(step.sms, ENTRY)  # of each lane, what belongs to no task
    rest["step"], rest["sm"], rest["op"], rest["layer"] = step.step, np.arange(step.sms), -1, -1
    if step.lost:
        rest["unknown"] = step.makespan
        return rest
    after = step.makespan - step.lanes.left
    rest["tail"], rest["unknown"] = np.where(step.lanes.open_end, 0, after), np.where(step.lanes.open_end, after, 0)
    task, graph = step.events["task"], step.graph
    op, layer = op_of[graph.op[task]], graph.layer[task].astype(np.int64)
    width = int(layer.max(initial=-1)) + 2
    key = (step.events["sm"] * np.int64(op_of.max(initial=0) + 1) + op) * width + layer + 1
    order = np.argsort(key, kind="stable")
    starts = np.flatnonzero(np.append(True, np.diff(key[order]) > 0)[: len(key)])
    first = order[starts]
    out = np.zeros(len(first), ENTRY)
    out["step"], out["sm"], out["op"], out["layer"] = step.step, step.events["sm"][first], op[first], layer[first]
    if len(first):
        for name, ns in (charge(step) | _in_hand(step)).items():
            out[name] = np.add.reduceat(ns[order], starts)
    return np.concatenate([out, rest])
