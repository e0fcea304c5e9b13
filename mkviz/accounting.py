"""Accounting: where SM time went, every nanosecond of the math role in exactly one kind; docs/analyses.md has the formulae."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from mkviz.errors import MkvizError
from mkviz.record import FLAG_BYTES_LAST, NO_WAIT
from mkviz.step_records import MOST_NS, StepRecords, steps_of

if TYPE_CHECKING:
    import pandas as pd

    from mkviz.protocols import Source
    from mkviz.store import Snapshot
    from mkviz.trace import Trace

KINDS = ("compute", "wait", "starved", "overhead", "tail", "unknown")
KEYS = ("step", "sm", "op", "layer")
ENTRY = np.dtype([("step", "<i8"), ("sm", "<i4"), ("op", "<i4"), ("layer", "<i4"), *((kind, "<i8") for kind in KINDS)])
"""SM time (ns) of a step, SM, op and layer, by kind.  ``op`` is an index into ``Account.ops``; -1, with layer -1, for what
belongs to no task: the tail of a lane, and the unknown after its last sound record."""


@dataclass
class Account:
    """``sm_time``: the sum over steps of makespan x SMs, ns; the entries' kinds add up to exactly that.

    ``faults`` counts records, nothing of which is dropped in silence: *lost* (their steps are unknown as a whole), *strays*
    among them (no such SM or task), *broken* (end missing or before begin, or a time that did not fit), *repeated* (a task's
    second record in a step), *overlapping* (begun before the task before it had ended: the shared time counts once) and
    *clipped* (not all within their step).  ``notes`` says what the trace cannot tell.
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
        import pandas as pd

        for key in by:
            if key not in KEYS:
                raise MkvizError(f"accounting by {key!r}", f"any of {', '.join(KEYS)}")
        frame = pd.DataFrame({name: self.entries[name] for name in ENTRY.names})
        frame["op"] = np.array([*self.ops, ""], object)[self.entries["op"]]
        out = (
            frame.groupby(list(by), sort=True)[list(KINDS)].sum().reset_index() if by else frame[list(KINDS)].sum().to_frame().T
        )
        out["sm_time"] = out[list(KINDS)].sum(axis=1)
        return out


def account(source: Snapshot | Source | Trace | str | Path, steps=None) -> Account:
    """Account for all steps of a snapshot, a source, a trace or the trace at a path, or for some (``steps``: one or several).

    Raises MkvizError for a trace that was cut to some SMs, ops or times (idle cannot be told from left out there), a step that
    is not there, and SM time beyond 2^63 ns.
    """
    if isinstance(source, str | Path):
        from mkviz.trace import Trace

        source = Trace.open(source)
    _refuse_thinned(source)
    ops: list[str] = []
    parts, faults = [], dict.fromkeys(("lost", "strays", "broken", "repeated", "overlapping", "clipped"), 0)
    sm_time = count = 0
    waits = bytes_told = False
    for step in steps_of(source, steps):
        ops += [op for op in step.graph.ops if op not in ops]
        parts.append(_entries(step, np.array([ops.index(op) for op in step.graph.ops], np.int32)))
        for name, records in _faults(step).items():
            faults[name] += records
        sm_time, count = sm_time + step.sm_time, count + 1
        waits |= len(step.graph.wait_counter) > 0 or bool((step.events["last_wait"] != NO_WAIT).any())
        bytes_told |= bool(step.graph.bytes.any()) or bool((step.events["flags"] & FLAG_BYTES_LAST).any())
    if sm_time > MOST_NS:
        raise MkvizError(f"{count} steps of {sm_time} ns of SM time", "fewer steps, of 2^63 ns together")
    notes = []
    if not count:
        notes.append("no steps")
    elif not waits:
        notes.append("no dependencies: wait is what was idle until ready, whatever it was idle for")
    if count and not bytes_told:
        notes.append("no bytes: what starved is counted as overhead")
    entries = np.concatenate(parts) if parts else np.zeros(0, ENTRY)
    return Account(getattr(source, "label", ""), count, sm_time, tuple(ops), entries, faults, notes)


def _refuse_thinned(source) -> None:
    meta = getattr(source, "meta", {})
    for part in (meta, *meta.get("merged", [])):
        for name in ("time", "sms", "ops"):
            if (part.get("slice") or {}).get(name):
                raise MkvizError(f"the trace holds only some of its records (cut by {name})", "a trace of whole steps")


def charge(step: StepRecords) -> dict[str, np.ndarray]:
    """ns of each kind but tail, i64 per record: its own compute and what its lane did between the task before and it.

    Only for a step without lost records.
    """
    at = step.lanes
    idle = np.maximum(at.begin - at.free, 0) * at.sound
    told = np.where(at.doubt, 0, idle)
    wait = np.clip(at.ready - at.free, 0, told)
    starved = (step.events["flags"] & FLAG_BYTES_LAST) != 0
    return {
        "compute": np.maximum(at.end - np.maximum(at.begin, at.free), 0) * at.sound,
        "wait": wait,
        "starved": np.where(starved, told - wait, 0),
        "overhead": np.where(starved, 0, told - wait),
        "unknown": idle - told,
    }


def _entries(step: StepRecords, op_of: np.ndarray) -> np.ndarray:
    rest = np.zeros(step.sms, ENTRY)  # of each lane, what belongs to no task
    rest["step"], rest["sm"], rest["op"], rest["layer"] = step.step, np.arange(step.sms), -1, -1
    if step.lost:
        rest["unknown"] = step.makespan
        return rest
    after = step.makespan - step.lanes.left
    rest["tail"], rest["unknown"] = np.where(step.lanes.open_end, 0, after), np.where(step.lanes.open_end, after, 0)
    task, graph = step.events["task"], step.graph
    keys = np.stack([step.events["sm"].astype(np.int64), op_of[graph.op[task]], graph.layer[task]], axis=1)
    keys, group = np.unique(keys, axis=0, return_inverse=True)
    out = np.zeros(len(keys), ENTRY)
    out["step"] = step.step
    out["sm"], out["op"], out["layer"] = keys.T
    for kind, ns in charge(step).items():
        np.add.at(out[kind], group.reshape(-1), ns)
    return np.concatenate([out, rest])


def _faults(step: StepRecords) -> dict[str, int]:
    at, events = step.lanes, step.events
    outside = (events["begin"] < step.begin) | (events["end"] > step.end) | (events["begin"] > step.end)
    return {
        "lost": step.lost,
        "strays": step.strays,
        "broken": int(step.broken.sum()),
        "repeated": int(step.repeated.sum()),
        "overlapping": int((at.sound & (at.begin < at.free)).sum()),
        "clipped": int(outside.sum()),
    }
