"""Diff: why the steps of one source take longer than those of another: the change of the median step by cause, to the
nanosecond, and the tasks that changed most; docs/analyses.md has the formulae."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from mkviz.accounting import KINDS, account, charge, refuse_thinned
from mkviz.blame import blame_of
from mkviz.errors import MkvizError
from mkviz.faults import Faults
from mkviz.many_steps import ManySteps, of_times, times_of
from mkviz.robust import FEWEST, median_interval
from mkviz.step_records import steps_of

if TYPE_CHECKING:
    import pandas as pd
    from bokeh.plotting import figure

    from mkviz.graph import Graph
    from mkviz.protocols import Source
    from mkviz.store import Snapshot
    from mkviz.trace import Trace

MOST_STEPS = 200  # of a side whose records are read, evenly among those that are compared
IDENTITY = ("op", "layer", "slot", "tile", "copy")  # ``copy`` counts tasks that agree in all else


@dataclass(frozen=True, eq=False)
class Side:
    """One of the two: ``steps`` (numbers) that are compared, of which ``step`` takes ``ns``, the median; ``low`` to ``high``:
    its 95 % interval, or all there is of fewer than 6 steps.  ``read``: steps whose records tell of tasks."""

    label: str
    group: str
    steps: np.ndarray
    step: int
    ns: int
    low: int
    high: int
    sms: int
    read: int


@dataclass
class Diff:
    """``path``: (cause, op, ns of a, ns of b) on the blame paths of the two median steps, ``kinds``: (kind, op, ns, ns) of
    their SM time; what a side does not have is 0.  ``tasks``: columns, a row for each task (or op and layer, where ``by_task``
    is False): medians of its steps' ns.  ``faults`` of the records of both sides, summed.
    """

    a: Side
    b: Side
    path: list[tuple[str, str, int, int]]
    kinds: list[tuple[str, str, int, int]]
    tasks: dict[str, np.ndarray]
    by_task: bool
    faults: dict[str, int]
    notes: list[str] = field(default_factory=list)

    @property
    def change(self) -> int:
        """ns by which b's median step takes longer."""
        return self.b.ns - self.a.ns

    @property
    def certain(self) -> bool:
        """Whether the 95 % intervals of the medians lie apart; never of a side that has too few steps for one."""
        return self.enough and (self.a.high < self.b.low or self.b.high < self.a.low)

    @property
    def enough(self) -> bool:
        """Whether both sides have enough steps for an interval of their median."""
        return min(len(self.a.steps), len(self.b.steps)) >= FEWEST

    def waterfall(self) -> pd.DataFrame:
        """cause, op, a, b, change (ns) on the blame path, largest change first; the changes add up to ``change``."""
        return _changes(self.path, "cause")

    def accounting(self) -> pd.DataFrame:
        """kind, op, a, b, change (ns of SM time), largest change first, and ``per_sm``: b over its SMs less a over its own
        (ns); these add up to ``change``."""
        out = _changes(self.kinds, "kind")
        return out.assign(per_sm=out["b"] / self.b.sms - out["a"] / self.a.sms)

    def frame(self) -> pd.DataFrame:
        """The tasks, or ops and layers, largest change first: what they are; ``compute_a``, ``compute_b``, ``idle_a``,
        ``idle_b`` (idle: wait, starved and overhead before them), and ``change`` of both (ns; a missing side counts as 0)."""
        import pandas as pd

        out = pd.DataFrame(self.tasks)
        return out.sort_values("change", key=np.abs, ascending=False, kind="stable", ignore_index=True)

    def plot(self, by: str = "path", dark: bool = False) -> figure:
        """The change from a to b as a waterfall, ``by`` path (blame) or accounting (SM time per SM)."""
        from mkviz import plots

        if by not in ("path", "accounting"):
            raise MkvizError(f"diff by {by!r}", "path or accounting")
        rows = self.waterfall() if by == "path" else self.accounting()
        cause, ns = ("cause", "change") if by == "path" else ("kind", "per_sm")
        bars = [(f"{c} {op}".strip(), c, float(n)) for c, op, n in zip(rows[cause], rows["op"], rows[ns], strict=True) if n]
        label = self.a.label if self.a.label == self.b.label else f"{self.a.label} → {self.b.label}"
        head = plots.Head("change of the median step", label, self.notes)
        what = "time of the median step" + ("" if by == "path" else ", by SM time")
        return plots.waterfall(bars, "b", head, what, dark, start=("a", self.a.ns))

    def to_json(self, top: int = 20) -> dict:
        """Times in ns."""
        sides = {name: {"label": s.label, "group": s.group, "steps": len(s.steps), "step": s.step, "ns": s.ns, "low": s.low,
                        "high": s.high, "sms": s.sms, "read": s.read}
                 for name, s in (("a", self.a), ("b", self.b))}  # fmt: skip
        tables = {"waterfall": self.waterfall(), "accounting": self.accounting(), "tasks": self.frame().head(top)}
        told = {name: getattr(self, name) for name in ("change", "certain", "enough", "by_task", "faults", "notes")}
        rows = {name: table.astype(object).where(table.notna(), None).to_dict("records") for name, table in tables.items()}
        return {**sides, **told, **rows}


def diff(
    a: Snapshot | Source | Trace | str | Path, b: Snapshot | Source | Trace | str | Path, steps_a=None, steps_b=None
) -> Diff:
    """Compare two sources, or two groups of steps of one (``steps_a``, ``steps_b``: one or several).

    Without steps, those of the shape (rows, rows of prefill) are compared that both have most steps of.  Steps that lost
    records are left out.  Raises MkvizError for a side without a whole step, a step that is not there and a trace that was cut
    to some SMs, ops or times.
    """
    from mkviz.trace import Trace

    sources = [Trace.open(source) if isinstance(source, str | Path) else source for source in (a, b)]
    labels, wanted, notes = [getattr(source, "label", "") for source in sources], (steps_a, steps_b), []
    for source in sources:
        refuse_thinned(source)
    sources = [source.snapshot() if hasattr(source, "snapshot") else source for source in sources]
    series = [of_times(label, *times_of(source)) for label, source in zip(labels, sources, strict=True)]
    rows = _comparable(series, wanted, notes)
    read = [_read(*side) for side in zip(labels, sources, series, rows, ("a", "b"), strict=True)]
    for side in read:
        notes += side.notes
    tasks, by_task, words = _align(*read)
    notes += words
    faults = {name: count + read[1].faults.counts[name] for name, count in read[0].faults.counts.items()}
    path, kinds = (_joined(getattr(read[0], name), getattr(read[1], name)) for name in ("path", "kinds"))
    return Diff(read[0].side, read[1].side, path, kinds, tasks, by_task, faults, list(dict.fromkeys(notes)))


def _changes(rows: list[tuple[str, str, int, int]], name: str) -> pd.DataFrame:
    import pandas as pd

    out = pd.DataFrame(rows, columns=[name, "op", "a", "b"])
    out["change"] = out["b"] - out["a"]
    return out.sort_values("change", key=np.abs, ascending=False, kind="stable", ignore_index=True)


def _joined(a: dict[tuple[str, str], int], b: dict[tuple[str, str], int]) -> list[tuple[str, str, int, int]]:
    return [(*key, a.get(key, 0), b.get(key, 0)) for key in dict.fromkeys([*a, *b]) if a.get(key) or b.get(key)]


def _comparable(series: list[ManySteps], wanted: tuple, notes: list[str]) -> list[np.ndarray]:
    """Of each side the rows of its times that are compared."""
    whole, alike = [], []
    for found, steps in zip(series, wanted, strict=True):
        rows = np.sort(np.concatenate([np.zeros(0, np.int64), *found.shapes.values()]))
        if steps is not None:
            numbers = np.unique(np.atleast_1d(steps))
            if len(missing := np.setdiff1d(numbers, found.times["step"])):
                raise MkvizError(f"step {missing[0]} is not there", "a step that the source holds")
            rows = rows[np.isin(found.times["step"][rows], numbers)]
        if not len(rows):
            raise MkvizError(f"{found.label or 'a source'}: no step to compare", "steps none of whose records are lost")
        whole.append(rows)
        shape, count = np.unique(found.times[["rows", "prefill"]][rows], return_counts=True)
        alike.append(dict(zip(map(tuple, shape.tolist()), count.tolist(), strict=True)))
    common = {shape: min(count, alike[1][shape]) for shape, count in alike[0].items() if shape in alike[1]}
    best = max(common, key=lambda shape: common[shape], default=None)
    out = []
    for found, steps, rows, shapes, name in zip(series, wanted, whole, alike, ("a", "b"), strict=True):
        if steps is None:
            shape = max(shapes, key=lambda shape: shapes[shape]) if best is None else best
            rows = rows[(found.times["rows"][rows] == shape[0]) & (found.times["prefill"][rows] == shape[1])]
            if best is None:
                notes.append("the sources have no steps with as many rows: of each those are compared of which it has most")
        graphs = len(np.unique(found.times["graph"][rows]))
        if graphs > 1 or (steps is not None and len(shapes) > 1):
            notes.append(f"{name}: its steps are of several graphs or shapes")
        out.append(rows)
    return out


@dataclass(eq=False)
class _Read:
    """What a side's records say: by (cause, op) of its median step; by task of its graph medians of ns over its steps."""

    side: Side
    graph: Graph
    path: dict[tuple[str, str], int]
    kinds: dict[tuple[str, str], int]
    compute: np.ndarray
    idle: np.ndarray
    faults: Faults
    notes: list[str]


def _read(label: str, source, series: ManySteps, rows: np.ndarray, name: str) -> _Read:
    numbers, ns = series.times["step"][rows], series.times["ns"][rows]
    at = int(np.flatnonzero(ns == np.percentile(ns, 50, method="inverted_cdf"))[0])
    median, faults, notes = int(numbers[at]), Faults(), []
    graph_id = series.times["graph"][rows[at]]
    same = numbers[series.times["graph"][rows] == graph_id]  # tasks are told apart within one graph
    chosen = np.unique(np.append(same[np.linspace(0, len(same) - 1, min(len(same), MOST_STEPS)).astype(np.int64)], median))
    if len(chosen) < len(numbers):
        notes.append(f"{name}: tasks are those of {len(chosen)} of its {len(numbers)} steps")
    compute, idle = [], []
    for step in steps_of(source, chosen):
        faults.add(step)
        charged, sound = charge(step), step.lanes.sound
        task = step.events["task"][sound]
        for part, kinds in ((compute, ("compute",)), (idle, ("wait", "starved", "overhead"))):
            row = np.full(len(step.graph), np.nan)
            row[task] = sum(charged[kind] for kind in kinds)[sound]
            part.append(row)
        if step.step == median:
            held, of_median = blame_of(step), step
    path = {(cause, op): n for cause, op, _, n in held.largest()}
    frame = account(source, median).frame("op")
    kinds = {(kind, op): int(n) for kind in KINDS for op, n in zip(frame["op"], frame[kind], strict=True)}
    group = series.name(tuple(int(series.times[key][rows[at]]) for key in ("graph", "rows", "prefill")))
    side = Side(label, group, numbers, median, of_median.makespan, *median_interval(ns), of_median.sms, len(chosen))
    notes += [f"{name}: {note}" for note in held.notes if note.startswith("no dependencies")]
    return _Read(side, of_median.graph, path, kinds, _median(compute), _median(idle), faults, notes)


def _median(rows: list[np.ndarray]) -> np.ndarray:
    """f64 per task: the median of the steps in which it has a record, NaN where it has none."""
    table = np.sort(np.array(rows), axis=0)  # NaN last
    count = (~np.isnan(table)).sum(0)
    return table[np.maximum(-(-count // 2) - 1, 0), np.arange(table.shape[1])]


def _align(a: _Read, b: _Read) -> tuple[dict[str, np.ndarray], bool, list[str]]:
    """(columns, whether rows are tasks, notes)."""
    import pandas as pd

    values = ["compute_a", "idle_a", "compute_b", "idle_b"]
    frames = []
    for side, name in ((a, "a"), (b, "b")):
        g = side.graph
        frame = pd.DataFrame({"op": np.array(g.ops, object)[g.op], "layer": g.layer.astype(np.int64),
                              "slot": g.slot.astype(np.int64), "tile": g.tile.astype(np.int64)})  # fmt: skip
        frame["copy"] = frame.groupby(list(IDENTITY[:4])).cumcount()
        frame[f"task_{name}"], frame[f"compute_{name}"], frame[f"idle_{name}"] = np.arange(len(g)), side.compute, side.idle
        frames.append(frame)
    joined = frames[0].merge(frames[1], on=list(IDENTITY), how="outer")
    matched = int(joined[["task_a", "task_b"]].notna().all(axis=1).sum())
    by_task, notes = matched == len(joined), []
    if a.graph.hash != b.graph.hash:
        rest = "aligned by these" if by_task else "compared by op and layer, as sums of their tasks' medians"
        both = f"{matched} of {len(a.graph)} and {len(b.graph)} tasks have the same op, layer, slot and tile"
        notes.append(f"the graphs differ: {both}; {rest}")
    if not by_task:
        counts = joined.groupby(["op", "layer"])[["task_a", "task_b"]].count().add_prefix("count_")
        joined = joined.groupby(["op", "layer"])[values].sum(min_count=1).join(counts).reset_index()
        joined = joined.rename(columns={"count_task_a": "tasks_a", "count_task_b": "tasks_b"})
    else:
        joined = joined.astype({"task_a": np.int64, "task_b": np.int64})
    told = joined[values].fillna(0)
    joined["change"] = told["compute_b"] + told["idle_b"] - told["compute_a"] - told["idle_a"]
    if not by_task:
        joined = joined[["op", "layer", "tasks_a", "tasks_b", *values, "change"]]
    return {name: joined[name].to_numpy() for name in joined.columns}, by_task, notes
