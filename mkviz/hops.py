"""Hops: every wait of every task: which counter it was for, who came last there, how long the lane stood idle for it (exposed)
or how much later it could have come (slack); docs/analyses.md has the formulae."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from mkviz.accounting import charge, is_large, refuse_thinned
from mkviz.errors import MkvizError
from mkviz.faults import Faults
from mkviz.step_records import StepRecords, steps_of

if TYPE_CHECKING:
    import pandas as pd
    from bokeh.plotting import figure

    from mkviz.hop_sums import HopSums
    from mkviz.protocols import Source
    from mkviz.store import Snapshot
    from mkviz.trace import Trace

COLUMNS = ("step", "counter", "op", "layer", "task", "sm", "producer_op", "producer", "producer_sm", "met", "ready", "hop",
           "exposed", "slack")  # fmt: skip
KEYS = COLUMNS[:9]
MOST_KEPT = 5_000_000  # records whose waits are kept one by one, in about 1.5 GB
NAMED = ("counter", "op", "producer_op")  # columns of indices into names
SHOWN_OPS = 12  # that have a colour of their own in the plot


@dataclass
class Hops:
    """``columns``: an array for each of COLUMNS, a row for each wait of a recorded task; times i64 ns since the step began;
    ``counter``, ``op`` and ``producer_op`` are indices (-1: none) into ``names``, by column.

    ``met``: publish of the ``producer`` (a task; -1: none has a record) whose arrival met the wait.  Of the waits of a task the
    one met last has the ``hop`` (from met to ready) and all that was ``exposed``; the others have 0 and 0.  ``slack``: how much
    later the producer could have published without the task beginning later, were hand-overs instant.

    Of more than MOST_KEPT records there are no columns but ``sums`` (:mod:`mkviz.hop_sums`): no frame, and other keys than
    counter, op, layer and producer_op are refused.
    """

    label: str
    columns: dict[str, np.ndarray]
    names: dict[str, list[str]]
    faults: dict[str, int]
    notes: list[str] = field(default_factory=list)
    sums: HopSums | None = None

    def frame(self) -> pd.DataFrame:
        """The columns; ``met``, ``hop`` and ``slack`` are NA where no producer has a record.  Raises MkvizError where there are
        only sums."""
        if self.sums is not None:
            raise MkvizError("the waits of a large capture are added up", "some of its steps: hops(…, steps=…)")
        out = self._frame(COLUMNS)
        for name in ("met", "hop", "slack"):
            out[name] = out[name].astype("Int64").mask(out["producer"] < 0)
        return out

    def by(self, *keys: str) -> pd.DataFrame:
        """A row for each value of ``keys`` (any of KEYS), most exposed first: ``waits``; ``exposed``, those of them for which
        a lane stood idle, ``ns`` in all, and ``p50``, ``p90``, ``max`` of one; ``slack``, the least of the others (NA without).
        Percentiles are waits that happened; of sums p50 and p90 are too low by less than 1/256, and exact below 512 ns.  Raises
        MkvizError for another key or none."""
        import pandas as pd

        self._refuse(keys)
        if self.sums is not None:
            return self.sums.by(keys)
        groups = self._ranked(keys).groupby(list(keys), sort=True)
        group, ns = groups.ngroup().to_numpy(), self.columns["exposed"]
        out = self._named(groups.size().reset_index(name="waits"))
        shown = np.flatnonzero(ns > 0)
        shown = shown[np.lexsort((ns[shown], group[shown]))]
        count = np.bincount(group[shown], minlength=len(out))
        first = np.cumsum(count) - count
        ordered, total = np.append(ns[shown], 0), np.append(0, np.cumsum(ns[shown]))
        out["exposed"], out["ns"] = count, total[first + count] - total[first]
        for name, percent in (("p50", 50), ("p90", 90), ("max", 100)):
            rank = np.maximum(-(-count * percent // 100) - 1, 0)  # as numpy's inverted_cdf
            out[name] = np.where(count, ordered[np.minimum(first + rank, len(shown))], 0)
        hidden = np.flatnonzero((ns == 0) & (self.columns["producer"] >= 0))
        least = np.full(len(out), np.iinfo(np.int64).max)
        np.minimum.at(least, group[hidden], self.columns["slack"][hidden])
        out["slack"] = pd.Series(least, dtype="Int64").mask(least == np.iinfo(np.int64).max)
        return out.sort_values("ns", ascending=False, kind="stable", ignore_index=True)

    def histogram(self, *keys: str, of: str = "exposed") -> pd.DataFrame:
        """How long waits are: a row for each value of ``keys`` (any of KEYS, or none) and each bin, from 2^k to below 2^(k+1)
        ns: ``from``, ``to`` (ns), ``waits``, ``ns`` in all.  ``of``: exposed, hop or slack; waits of 0 ns, and those of which
        none can be told, are in none.  Raises MkvizError for another key or column."""
        if of not in ("exposed", "hop", "slack"):
            raise MkvizError(f"histogram of {of!r}", "one of exposed, hop, slack")
        if keys:
            self._refuse(keys)
        if self.sums is not None:
            return self.sums.histogram(keys, of)
        ns, told = self.columns[of], (self.columns["producer"] >= 0) | (of == "exposed")
        shown = np.flatnonzero(told & (ns > 0))
        rows, ns = self._ranked(keys).iloc[shown], ns[shown]
        power = np.frexp(ns.astype(np.float64))[1].astype(np.int64) - 1
        power -= (1 << power) > ns  # where the float was rounded up
        rows["from"], rows["to"], rows["waits"], rows["ns"] = 1 << power, (1 << power) * 2.0, 1, ns
        return self._named(rows.groupby([*keys, "from", "to"], sort=True)[["waits", "ns"]].sum().reset_index())

    def plot(self, of: str = "exposed", dark: bool = False) -> figure:
        """The histogram of ``of``, by the op that waited; heights are ns in all."""
        from mkviz import palette, plots

        found = self.histogram("op", of=of)
        powers = [int(low).bit_length() - 1 for low in found["from"]]
        bins = [(1 << k, 2 << k) for k in range(min(powers), max(powers) + 1)] if powers else []
        ops = found.groupby("op")["ns"].sum().sort_values(ascending=False).index.tolist()
        place = {low: i for i, (low, _) in enumerate(bins)}
        series = {op: np.zeros(len(bins)) for op in [*ops[:SHOWN_OPS], *(["others"] if len(ops) > SHOWN_OPS else [])]}
        for op, low, ns in zip(found["op"], found["from"], found["ns"], strict=True):
            series[op if op in series else "others"][place[low]] += ns
        colours = [*palette.op_colours(tuple(ops[:SHOWN_OPS])), palette.WAIT][: len(series)]
        words = {"exposed": "exposed time of a wait", "hop": "hop, from the last publish to ready", "slack": "slack of a wait"}
        head = plots.Head(words[of], self.label, self.notes)
        return plots.histogram(bins, series, colours, head, words[of], "all of them together", dark)

    def _refuse(self, keys: tuple[str, ...]) -> None:
        if not keys or not set(keys) <= set(KEYS):
            raise MkvizError(f"hops by {', '.join(keys) or 'nothing'}", f"one or several of {', '.join(KEYS)}")

    def _frame(self, names: tuple[str, ...]) -> pd.DataFrame:
        return self._named(self._ranked(names))

    def _ranked(self, names: tuple[str, ...]) -> pd.DataFrame:
        """Some columns, names as their places among all names in order: to sort a million of these is fast."""
        import pandas as pd

        out = pd.DataFrame({name: self.columns[name] for name in names}, index=range(len(self.columns["step"])))
        for name in set(NAMED) & set(names):
            known = [*self.names[name], ""]
            place = {word: i for i, word in enumerate(sorted(known))}
            out[name] = np.array([place[word] for word in known])[out[name]]
        return out

    def _named(self, ranked: pd.DataFrame) -> pd.DataFrame:
        for name in set(NAMED) & set(ranked.columns):
            ranked[name] = np.array(sorted([*self.names[name], ""]), object)[ranked[name]]
        return ranked


def hops(source: Snapshot | Source | Trace | str | Path, steps=None) -> Hops:
    """The waits of all steps of a source, or of some (``steps``: one or several); steps that lost records are left out, as
    ``notes`` tells.

    Raises MkvizError for a step that is not there and for a trace that was cut to some SMs, ops or times.
    """
    if isinstance(source, str | Path):
        from mkviz.trace import Trace

        source = Trace.open(source)
    refuse_thinned(source)
    label = getattr(source, "label", "")
    if is_large(source, steps, MOST_KEPT):
        from mkviz.hop_sums import hop_sums

        sums, faults = hop_sums(source, steps)
        note = "waits are added up: p50 and p90 are too low by less than 0.4 %" if len(sums.sums) else "no dependencies"
        return Hops(label, {}, {}, faults.counts, [*faults.notes(lost="left out"), note], sums)
    parts, faults = [], Faults()
    counters, ops = _Names(), _Names()
    for step in steps_of(source, steps):
        faults.add(step)
        if not step.lost:
            part, graph = _of_step(step), step.graph
            part["counter"] = counters.of(graph.counters)[part["counter"]]
            part["op"], part["producer_op"] = (ops.of(graph.ops)[part[name]] for name in ("op", "producer_op"))
            parts.append(part)
    notes = faults.notes(lost="left out")
    columns = {name: np.concatenate([part[name] for part in parts]) if parts else np.zeros(0, np.int64) for name in COLUMNS}
    if not len(columns["step"]):
        notes.append("no dependencies")
    names = {"counter": list(counters.known), "op": list(ops.known), "producer_op": list(ops.known)}
    return Hops(label, columns, names, faults.counts, notes)


class _Names:
    """Names of several graphs in one list."""

    def __init__(self):
        self.known: dict[str, int] = {}
        self._last: tuple[tuple[str, ...], np.ndarray] = (), np.array([-1])

    def of(self, own: tuple[str, ...]) -> np.ndarray:
        """i64[n + 1]: the index of each of a graph's names, -1 at the end, for none."""
        if own is not self._last[0]:  # mostly the graph of the step before
            index = [self.known.setdefault(name, len(self.known)) for name in own]
            self._last = own, np.array([*index, -1], np.int64)
        return self._last[1]


def _of_step(step: StepRecords) -> dict[str, np.ndarray]:
    """COLUMNS of one step; counters and ops are indices into those of its graph."""
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
    producer = np.where(told, step.events["task"][by].astype(np.int64), -1)
    return {
        "step": np.full(len(task), step.step), "counter": counter.astype(np.int64), "op": graph.op[task].astype(np.int64),
        "layer": graph.layer[task].astype(np.int64), "task": task, "sm": step.events["sm"][row].astype(np.int64),
        "producer_op": np.where(told, graph.op[producer].astype(np.int64), -1), "producer": producer,
        "producer_sm": np.where(told, step.events["sm"][by].astype(np.int64), -1), "met": met, "ready": at.ready[row],
        "hop": np.where(last & told, np.maximum(at.ready[row] - met, 0), 0), "exposed": np.where(last, wait[row], 0),
        "slack": np.where(told, np.maximum(at.free[row], latest) - met, 0),
    }  # fmt: skip
