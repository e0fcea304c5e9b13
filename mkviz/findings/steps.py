"""How long all steps took, and why some take longer than others."""

from __future__ import annotations

from functools import partial

from mkviz.dashboard.units import duration, percent, signed
from mkviz.diff import Diff, diff
from mkviz.errors import MkvizError
from mkviz.findings.finding import Finding, rows_of
from mkviz.many_steps import LEAST, many_steps
from mkviz.reading import Reading
from mkviz.table import Table

TOP = 12


def of_steps(reading: Reading) -> Finding:
    """Of all steps of the source, or of those asked for where these are several."""
    asked = reading.steps if 1 < len(reading.steps) < len(reading.times.times) and not reading.notes else None
    found = many_steps(reading.snapshot_or_trace(), asked)
    groups, outliers = found.groups(), found.outliers()
    if not len(groups):
        return Finding(reading.label, "There is no whole step.", [], {}, found.notes, found.faults)
    first = groups.iloc[0]
    p50, p99, least, most = (duration(first[name]) for name in ("p50", "p99", "min", "max"))
    answer = f"{first['steps']:,} steps of {first['group']}" if first["steps"] > 1 else f"One step of {first['group']}: {p50}"
    if first["steps"] >= LEAST:
        answer += f": half of them within {p50}, 99 % within {p99}"
    elif first["steps"] > 1:
        answer += f", {least} to {most}"
    if first["steps"] > 1:
        answer += f"; the slowest, step {first['worst']}, takes {percent(first['max'] / first['p50'] - 1)} more than the middle"
    answer += "."
    if first["drifts"]:
        answer += f" They drift: {signed(first['drift'])} per 1000 steps."
    table = Table({"steps of": "", "steps": "n", "p50": "ns", "p90": "ns", "p99": "ns", "slowest": "ns", "which": "",
                   "outliers": "n", "drift per 1000": "+ns"})  # fmt: skip
    names = ("group", "steps", "p50", "p90", "p99", "max", "worst", "outliers", "drift")
    table.values.extend(rows_of(groups.head(TOP), *names))
    table.goes_to.extend((int(worst), -1) for worst in groups["worst"].head(TOP))
    tables = {"kinds of steps; a row leads to the slowest": table}
    if len(outliers):
        rows = outliers.head(TOP).assign(z=outliers["z"].astype(float).round(1))
        out = Table({"step": "", "time": "ns", "more than typical": "+ns", "z": "", "cause": "", "op": ""})
        out.values.extend(rows_of(rows, "step", "ns", "over", "z", "cause", "op"))
        out.goes_to.extend((int(step), -1) for step in rows["step"])
        tables["steps that stand out"] = out
    figures = {"groups": [dict(zip(groups.columns, row, strict=True)) for row in rows_of(groups, *groups.columns)],
               "outliers": len(outliers)}  # fmt: skip
    return Finding(reading.label, answer, [partial(found.plot, 0)], tables, found.notes, found.faults, figures)


def of_diff(a: Reading, b: Reading) -> Finding:
    """The change from a's median step to b's."""
    if a.label == b.label and a.times.times.shape == b.times.times.shape and list(a.steps) == list(b.steps):
        raise MkvizError("both sides are the same steps of the same source", "another source or other steps to compare with")
    found = diff(a.snapshot_or_trace(), b.snapshot_or_trace(), a.steps, b.steps)
    share = found.change / found.a.ns if found.a.ns else 0.0
    sides = " → ".join(f"step {s.step} ({duration(s.ns)})" for s in (found.a, found.b))
    path = found.waterfall()
    answer = f"{sides}: {signed(found.change)}, {share:+.1%}".replace("-", "−")
    if len(path) and path["change"].iloc[0]:
        top = path.iloc[0]
        answer += f"; the largest change is {f'{top.cause} {top.op}'.strip()}, {signed(top.change)} on the blame path"
    doubt = "" if found.certain else "; it may be chance" if found.enough else "; of so few steps that may be chance"
    label = found.a.label if found.a.label == found.b.label else f"{found.a.label} → {found.b.label}"
    notes = list(dict.fromkeys([*a.notes, *b.notes, *found.notes]))
    return Finding(label, answer + doubt + ".", [partial(found.plot, "path")], _tables(found), notes, found.faults,
                   {"a": found.a.ns, "b": found.b.ns, "change": found.change, "certain": found.certain,
                    "step_a": found.a.step, "step_b": found.b.step})  # fmt: skip


def _tables(found: Diff) -> dict[str, Table]:
    causes = Table({"cause": "", "op": "", "a": "ns", "b": "ns", "change": "+ns"})
    causes.values.extend(rows_of(found.waterfall().head(TOP), "cause", "op", "a", "b", "change"))
    tasks = found.frame().head(TOP)
    named = [name for name in ("op", "layer", "slot", "tile") if name in tasks]
    values = ("compute_a", "compute_b", "idle_a", "idle_b", "change")
    units = dict(zip(("work, a", "work, b", "idle before, a", "idle before, b", "change"), ("ns",) * 4 + ("+ns",), strict=True))
    rows = Table({**dict.fromkeys(named, ""), **units})
    rows.values.extend([[None if v == -1 else v for v in row[: len(named)]] + row[len(named) :]
                        for row in rows_of(tasks, *named, *values)])  # fmt: skip
    if found.by_task and found.a.label == found.b.label:
        rows.goes_to.extend((found.b.step, int(task)) for task in tasks["task_b"])
    return {"by cause, on the blame path": causes, "tasks that changed most" if found.by_task else "ops and layers": rows}
