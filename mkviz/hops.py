"""Hops: every wait of every task: which counter it was for, who came last there, how long the lane stood idle for it (exposed)
or how much later it could have come (slack); docs/analyses.md has the formulae."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from mkviz.accounting import charge
from mkviz.errors import MkvizError
from mkviz.step_records import StepRecords, steps_of

if TYPE_CHECKING:
    import pandas as pd

    from mkviz.protocols import Source
    from mkviz.store import Snapshot
    from mkviz.trace import Trace

COLUMNS = ("step", "counter", "op", "layer", "task", "sm", "producer_op", "producer", "producer_sm", "met", "ready", "hop",
           "exposed", "slack")  # fmt: skip
KEYS = COLUMNS[:9]


@dataclass
class Hops:
    """``columns``: an array for each of COLUMNS, a row for each wait of a recorded task; times i64 ns since the step began.

    ``met``: publish of the ``producer`` (a task; -1: none has a record) whose arrival met the wait.  Of the waits of a task the
    one met last has the ``hop`` (from met to ready) and all that was ``exposed``; the others have 0 and 0.  ``slack``: how much
    later the producer could have published without the task beginning later, were hand-overs instant.
    """

    label: str
    columns: dict[str, np.ndarray]
    notes: list[str] = field(default_factory=list)

    def frame(self) -> pd.DataFrame:
        """The columns; ``met``, ``hop`` and ``slack`` are NA where no producer has a record."""
        import pandas as pd

        out = pd.DataFrame(self.columns)
        for name in ("met", "hop", "slack"):
            out[name] = out[name].astype("Int64").mask(out["producer"] < 0)
        return out

    def by(self, *keys: str) -> pd.DataFrame:
        """A row for each value of ``keys`` (any of KEYS), most exposed first: ``waits``; ``exposed``, those of them for which
        a lane stood idle, ``ns`` in all, and ``p50``, ``p90``, ``max`` of one; ``slack``, the least of the others (NA without).
        Percentiles are waits that happened.  Raises MkvizError for another key or none."""
        import pandas as pd

        if not keys or not set(keys) <= set(KEYS):
            raise MkvizError(f"hops by {', '.join(keys) or 'nothing'}", f"one or several of {', '.join(KEYS)}")
        rows = self.frame()
        shown = rows[rows["exposed"] > 0].groupby(list(keys))["exposed"]
        out = pd.DataFrame({"waits": rows.groupby(list(keys)).size()})
        out["exposed"], out["ns"] = shown.size(), shown.sum()
        for name, q in (("p50", 0.5), ("p90", 0.9), ("max", 1.0)):
            out[name] = shown.agg(lambda ns, q=q: int(np.percentile(ns, 100 * q, method="inverted_cdf")))
        out = out.fillna(0).astype(np.int64)
        out["slack"] = rows[rows["exposed"] == 0].groupby(list(keys))["slack"].min()
        return out.sort_values("ns", ascending=False, kind="stable").reset_index()


def hops(source: Snapshot | Source | Trace | str | Path, steps=None) -> Hops:
    """The waits of all steps of a source, or of some (``steps``: one or several); steps that lost records are left out, as
    ``notes`` tells.

    Raises MkvizError for a step that is not there.
    """
    if isinstance(source, str | Path):
        from mkviz.trace import Trace

        source = Trace.open(source)
    parts, lossy = [], 0
    for step in steps_of(source, steps):
        if step.lost:
            lossy += 1
        else:
            parts.append(_of_step(step))
    of, verb = len(parts) + lossy, "is" if lossy == 1 else "are"
    notes = [f"of {of} steps {lossy} lost records and {verb} left out"] if lossy else []
    columns = {name: np.concatenate([part[name] for part in parts]) for name in COLUMNS} if parts else {
        name: np.zeros(0, np.int64) for name in COLUMNS}  # fmt: skip
    if not len(columns["step"]):
        notes.append("no dependencies")
    return Hops(getattr(source, "label", ""), columns, notes)


def _of_step(step: StepRecords) -> dict[str, np.ndarray]:
    graph, at = step.graph, step.lanes
    task = np.repeat(np.arange(len(graph)), np.diff(graph.wait_ptr))
    kept = step.row_of[task] >= 0
    task, counter, by = task[kept], graph.wait_counter[kept], step.met_by[kept]
    row, told, wait = step.row_of[task], by >= 0, charge(step)["wait"]
    if not len(task):
        return {name: np.zeros(0, np.int64) for name in COLUMNS}
    met = np.where(told, step.published[by], -1)
    first = np.append(True, task[1:] != task[:-1])
    latest = np.maximum.reduceat(met, np.flatnonzero(first))[np.cumsum(first) - 1]
    lasts = np.flatnonzero(met == latest)
    last = np.zeros(len(task), bool)
    last[lasts[np.unique(task[lasts], return_index=True)[1]]] = True  # of several met at once the first
    ops, names = np.array([*graph.ops, ""], object), np.array([*graph.counters], object)
    producer = np.where(told, step.events["task"][by].astype(np.int64), -1)
    return {
        "step": np.full(len(task), step.step), "counter": names[counter], "op": ops[graph.op[task]],
        "layer": graph.layer[task].astype(np.int64), "task": task, "sm": step.events["sm"][row].astype(np.int64),
        "producer_op": ops[np.where(told, graph.op[producer].astype(np.int64), -1)], "producer": producer,
        "producer_sm": np.where(told, step.events["sm"][by].astype(np.int64), -1), "met": met, "ready": at.ready[row],
        "hop": np.where(last & told, np.maximum(at.ready[row] - met, 0), 0), "exposed": np.where(last, wait[row], 0),
        "slack": np.where(told, np.maximum(at.free[row], latest) - met, 0),
    }  # fmt: skip
