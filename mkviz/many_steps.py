"""Many steps: how long they took, whether they drift, which ones stand out and why; docs/analyses.md has the formulae."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from mkviz.accounting import KINDS, Account, account
from mkviz.errors import MkvizError
from mkviz.faults import FAULTS
from mkviz.robust import drift, z_scores
from mkviz.step_records import shape_of
from mkviz.store import Snapshot

if TYPE_CHECKING:
    import pandas as pd
    from bokeh.plotting import figure

    from mkviz.protocols import Source
    from mkviz.trace import Trace

TIMES = np.dtype([(name, "<i8") for name in ("step", "graph", "rows", "prefill", "begin", "ns", "lost")])
"""A step: number, graph, rows, rows of prefill, when it began and how long it took (ns), records lost."""
STANDS_OUT = 3.5  # robust z beyond which a step is an outlier
LEAST = 8  # steps of a group below which none drifts or stands out
EXPLAINED = 20  # outliers, the farthest ones, whose records are read for their causes
Shape = tuple[int, int, int]


@dataclass(eq=False)
class ManySteps:
    """``times`` TIMES[n], ascending by step; ``graphs``: names by id.  Steps of one graph with as many rows, and as many of
    prefill, form a group, and only such are compared.  Steps that lost records have no time that can be trusted: they are in
    ``frame`` and in no figure.

    Outliers are compared with the ``typical`` step of their group, the one of median time unless another is named.  ``causes``:
    of those that are explained, their number and that step's, and of both ns by kind, and by kind and op.
    """

    label: str
    times: np.ndarray
    graphs: dict[int, str]
    faults: dict[str, int]
    notes: list[str] = field(default_factory=list)
    causes: list[dict] = field(default_factory=list)
    named: dict[Shape, int] = field(default_factory=dict)

    @cached_property
    def shapes(self) -> dict[Shape, np.ndarray]:
        """Rows of ``times`` by (graph, rows, rows of prefill), those of steps without lost records, most steps first."""
        whole = np.flatnonzero((self.times["lost"] == 0) & (self.times["ns"] >= 0))
        keys = [self.times[name][whole] for name in ("prefill", "rows", "graph")]
        order = np.lexsort(keys)
        new = np.any([np.diff(key[order]) != 0 for key in keys], axis=0)
        parts = np.split(whole[order], np.flatnonzero(new) + 1) if len(whole) else []
        groups = [(tuple(int(self.times[name][rows[0]]) for name in ("graph", "rows", "prefill")), rows) for rows in parts]
        return dict(sorted(groups, key=lambda group: -len(group[1])))

    @cached_property
    def z(self) -> np.ndarray:
        """f64[n]: robust z of each step in its group; NaN for steps that lost records or have too few of their kind."""
        out = np.full(len(self.times), np.nan)
        for rows in self.shapes.values():
            if len(rows) >= LEAST:
                out[rows] = z_scores(self.times["ns"][rows])
        return out

    def name(self, shape: Shape) -> str:
        """``North Mini Code · 8 rows``."""
        graph, rows, prefill = shape
        words = [self.graphs.get(graph, f"graph {graph}")]
        if rows:
            words.append(f"{rows} row{'s' * (rows > 1)}" + (f", {prefill} of prefill" if prefill else ""))
        return " · ".join(words)

    def typical(self, shape: Shape) -> int:
        """The number of the step of a group that its outliers are compared with."""
        if shape in self.named:
            return self.named[shape]
        rows = self.shapes[shape]
        ns = self.times["ns"][rows]
        return int(self.times["step"][rows[np.flatnonzero(ns == np.percentile(ns, 50, method="inverted_cdf"))[0]]])

    def frame(self) -> pd.DataFrame:
        """A row for each step: step, group, begin (ns since the first one began), ns, lost, z, outlier."""
        import pandas as pd

        group = np.full(len(self.times), "", object)
        for shape, rows in self.shapes.items():
            group[rows] = self.name(shape)
        since = self.times["begin"] - self.times["begin"].min() if len(self.times) else self.times["begin"]
        return pd.DataFrame({
            "step": self.times["step"], "group": group, "begin": since, "ns": self.times["ns"], "lost": self.times["lost"],
            "z": self.z, "outlier": np.abs(np.nan_to_num(self.z)) > STANDS_OUT,
        })  # fmt: skip

    def groups(self) -> pd.DataFrame:
        """A row for each group, most steps first: steps, min, p50, p90, p99, max (ns of steps that happened), ``worst`` (the
        step of max), outliers; ``drift``, ns per 1000 of its steps, with the 95 % interval ``low`` to ``high`` (NaN: too few)
        and whether it ``drifts``: 0 is not within."""
        import pandas as pd

        out = []
        for shape, rows in self.shapes.items():
            ns = self.times["ns"][rows]
            p = np.percentile(ns, (0, 50, 90, 99, 100), method="inverted_cdf")
            slope, low, high = (1000 * v for v in drift(ns)) if len(rows) >= LEAST else (np.nan,) * 3
            out.append({
                "group": self.name(shape), "steps": len(rows), **dict(zip(("min", "p50", "p90", "p99", "max"), p, strict=True)),
                "worst": self.times["step"][rows[np.argmax(ns)]], "outliers": int((np.abs(self.z[rows]) > STANDS_OUT).sum()),
                "drift": slope, "low": low, "high": high, "drifts": bool(low > 0 or high < 0),
            })  # fmt: skip
        names = ("group", "steps", "min", "p50", "p90", "p99", "max", "worst", "outliers", "drift", "low", "high", "drifts")
        return pd.DataFrame(out, columns=list(names))

    def outliers(self) -> pd.DataFrame:
        """A row for each step that stands out, farthest first: step, group, ns, z, ``over`` (ns beyond the typical
        step).  Of the explained ones (others: NA) also ``typical``, the number of that step; how much more SM time of each kind
        they have, ns, together ``over`` x SMs; ``cause``, the kind that changed most in their direction, and the ``op`` whose
        share of that is largest."""
        import pandas as pd

        rows = self.frame().rename_axis("row").reset_index()
        rows = rows[rows["outlier"]].sort_values("z", key=np.abs, ascending=False, kind="stable")
        ns = dict(zip(self.times["step"].tolist(), self.times["ns"].tolist(), strict=True))
        typical = np.zeros(len(self.times), np.int64)  # by row: graphs may share a name
        for shape, of in self.shapes.items():
            typical[of] = ns[self.typical(shape)]
        rows["over"] = rows["ns"] - typical[rows["row"]]
        causes = pd.DataFrame([self._cause(cause) for cause in self.causes], columns=["step", "typical", *KINDS, "cause", "op"])
        return rows[["step", "group", "ns", "z", "over"]].merge(causes, on="step", how="left").convert_dtypes()

    def _cause(self, cause: dict) -> dict:
        of, than = cause["kinds"], cause["typical_kinds"]
        grew = {kind: of[kind] - than[kind] for kind in KINDS}
        sign = 1 if sum(grew.values()) >= 0 else -1
        most = max(KINDS, key=lambda kind: sign * grew[kind])
        ops = {op: cause["ops"].get((most, op), 0) - cause["typical_ops"].get((most, op), 0)
               for kind, op in cause["ops"] | cause["typical_ops"] if kind == most}  # fmt: skip
        op = max(ops, key=lambda op: sign * ops[op], default="")
        return {"step": cause["step"], "typical": cause["typical"], **grew, "cause": most, "op": op}

    def plot(self, group: int = 0, dark: bool = False) -> figure:
        """Step times of a group (0: the one of most steps) over step numbers, its median, its p99, and what stands out."""
        from mkviz import plots

        if not self.shapes:
            none = np.zeros(0)
            return plots.points(none, none, none > 0, [], plots.Head("time of steps", self.label, self.notes), dark)
        if not 0 <= group < len(self.shapes):
            raise MkvizError(f"group {group}", f"0 to {len(self.shapes) - 1}")
        shape, rows = list(self.shapes.items())[group]
        x, ns = self.times["step"][rows], self.times["ns"][rows].astype(float)
        ends = x[[0, -1]]
        lines = [(f"p{p}", ends, np.full(2, np.percentile(ns, p, method="inverted_cdf"))) for p in (50, 99)]
        head = plots.Head(f"time of steps · {self.name(shape)}", self.label, self.notes)
        return plots.points(x, ns, np.abs(np.nan_to_num(self.z[rows])) > STANDS_OUT, lines, head, dark)


def many_steps(source: Snapshot | Source | Trace | str | Path, steps=None) -> ManySteps:
    """The times of all steps of a source, or of some (``steps``: one or several).  Reads the records of outliers only, and of
    the steps of median time that they are compared with.

    Raises MkvizError for a step that is not there.
    """
    if isinstance(source, str | Path):
        from mkviz.trace import Trace

        source = Trace.open(source)
    label = getattr(source, "label", "")
    if hasattr(source, "snapshot"):
        source = source.snapshot()  # one, for times and records alike
    times, graphs = times_of(source)
    if steps is not None:
        wanted = np.unique(np.atleast_1d(steps))
        if len(missing := np.setdiff1d(wanted, times["step"])):
            raise MkvizError(f"step {missing[0]} is not there", "a step that the source holds")
        times = times[np.isin(times["step"], wanted)]
    return of_times(label, times, graphs, source)


def times_of(source: Snapshot | Source | Trace) -> tuple[np.ndarray, dict[int, str]]:
    """TIMES of all steps of a source, and the names of its graphs by id."""
    if hasattr(source, "snapshot"):
        source = source.snapshot()
    times = _of_snapshot(source) if isinstance(source, Snapshot) else _of_trace(source)
    return times, {i: graph.name for i, (graph, _) in source.graphs.items()}


def of_times(
    label: str, times: np.ndarray, graphs: dict[int, str], source=None, kept: set[int] | None = None,
    named: dict[Shape, int] | None = None,
) -> ManySteps:  # fmt: skip
    """The same of TIMES in any order.  ``source`` has the records of all these steps, or of those ``kept``; ``named``: the
    typical steps of groups."""
    times, faults = times[np.argsort(times["step"], kind="stable")], dict.fromkeys(FAULTS, 0)
    found = ManySteps(label, times, graphs, faults | {"lost": int(times["lost"].sum())}, named=named or {})
    if not len(times):
        found.notes.append("no steps")
    for count, words in (
        (int((times["lost"] > 0).sum()), "lost records and {is} in no figure"),
        (int(((times["lost"] == 0) & (times["ns"] < 0)).sum()), "{end} before {it} {begin} and {is} in no figure"),
    ):
        if count:
            one = {"is": "is", "end": "ends", "it": "it", "begin": "begins"}
            many = {"is": "are", "end": "end", "it": "they", "begin": "begin"}
            found.notes.append(f"of {len(times)} steps {count} {words.format(**(one if count == 1 else many))}")
    if twice := len(times) - len(np.unique(times["step"])):
        found.notes.append(f"{twice} step numbers come more than once")
    if source is not None:
        _explain(found, source, kept)
    return found


def _explain(found: ManySteps, source, kept: set[int] | None) -> None:
    order = np.argsort(-np.abs(np.nan_to_num(found.z)), kind="stable")
    out = order[np.abs(np.nan_to_num(found.z[order])) > STANDS_OUT]
    if kept is not None:
        out = out[np.isin(found.times["step"][out], list(kept))]
    if len(out) > EXPLAINED:
        found.notes.append(f"of {len(out)} outliers the {EXPLAINED} farthest have causes")
    typical = np.zeros(len(found.times), np.int64)
    for shape, rows in found.shapes.items():
        typical[rows] = found.typical(shape)
    pairs = [(int(found.times["step"][row]), int(typical[row])) for row in out[:EXPLAINED]]
    pairs = [pair for pair in pairs if kept is None or pair[1] in kept]
    if not pairs:
        return
    try:
        told = account(source, sorted({step for pair in pairs for step in pair}))
    except MkvizError as error:
        found.notes.append(f"no causes: {error}")
        return
    found.faults = {name: max(count, told.faults[name]) for name, count in found.faults.items()}
    kinds, ops = _by_step(told)
    found.causes = [
        {"step": step, "typical": than, "kinds": kinds[step], "typical_kinds": kinds[than], "ops": ops[step],
         "typical_ops": ops[than]}
        for step, than in pairs
    ]  # fmt: skip


def _by_step(told: Account) -> tuple[dict[int, dict[str, int]], dict[int, dict[tuple[str, str], int]]]:
    """ns by kind, and by kind and op, of each step."""
    frame = told.frame("step", "op")
    kinds, ops = {}, {}
    for step, rows in frame.groupby("step"):
        kinds[int(step)] = {kind: int(rows[kind].sum()) for kind in KINDS}
        ops[int(step)] = {(kind, op): int(ns) for kind in KINDS for op, ns in zip(rows["op"], rows[kind], strict=True)}
    return kinds, ops


def _of_snapshot(snapshot: Snapshot) -> np.ndarray:
    out = np.zeros(len(snapshot.steps), TIMES)
    for name in ("step", "graph", "begin", "lost"):
        out[name] = snapshot.steps[name]
    out["ns"] = snapshot.steps["end"] - snapshot.steps["begin"]
    shapes = np.array([shape_of(info) for info in snapshot.infos], np.int64).reshape(-1, 3)
    out["rows"], out["prefill"] = shapes[:, 1], shapes[:, 2]
    return out


def _of_trace(trace: Trace) -> np.ndarray:
    import pyarrow.compute as pc

    table = trace.table("steps", ["step", "graph", "begin", "end", "rows", "lost"])
    columns = {name: table[name].to_numpy().astype(np.int64) for name in table.column_names}
    out = np.zeros(len(table), TIMES)
    for name in ("step", "graph", "begin", "rows", "lost"):
        out[name] = columns[name]
    out["ns"] = columns["end"] - columns["begin"]
    rows = trace.table("rows", ["step", "kind"])
    prefill = rows["step"].to_numpy()[pc.equal(rows["kind"].cast("string"), "prefill").to_numpy()]
    step, count = np.unique(prefill, return_counts=True)
    out = out[np.argsort(out["step"], kind="stable")]
    if len(out):
        out["prefill"][np.minimum(np.searchsorted(out["step"], step), len(out) - 1)] = count
    return out
