"""What a step takes beyond the time of its bytes, by what held it."""

from __future__ import annotations

from mkviz.dashboard.units import duration, percent
from mkviz.errors import MkvizError
from mkviz.findings.finding import Finding
from mkviz.reading import Reading
from mkviz.table import Table
from mkviz.waterfall import BYTES, waterfall


def of_waterfall(reading: Reading) -> Finding:
    """Of the step of median time among those asked for."""
    if reading.one is None:
        raise MkvizError("each of these steps lost records: what held them cannot be told", "steps that are whole")
    if reading.machine is None:
        raise MkvizError("nobody measured this machine's memory", "a source of a machine that was, such as an NVIDIA H200")
    found = waterfall(reading.snapshot_or_trace(), reading.one, reading.machine)
    whole = found.makespan
    most = sorted((row for row in found.by_cause() if row[2] > 0), key=lambda row: -row[2])[:2]
    beyond = " and ".join(f"{cause} {duration(lost)} ({percent(lost / whole)})" for cause, _, lost in most)
    answer = f"Step {found.step} takes {duration(whole)}. Reading its bytes, {found.read}, takes {duration(found.floor)}"
    if found.floor > whole:
        answer += ": more than the step, so that not all of them came from memory."
    else:
        answer += f" of that ({percent(found.floor / whole)})"
        answer += f"; what it takes beyond is above all {beyond}." if most else "."
    table = Table({"": "", "time": "ns", "share": "of 1", "on the path": "ns", "most of it": ""})
    table.values.append([BYTES, found.floor, found.floor / whole, None, None])
    for cause, path, lost in found.by_cause():
        ops = ", ".join(f"{op} {duration(ns)}" for op, ns in found.most(cause))
        table.values.append([cause, lost, lost / whole, path, ops or None])
    table.values.append(["step", whole, 1.0, whole, None])
    notes = list(found.notes)
    if found.since_last is not None:
        notes.append(f"and {duration(found.since_last)} since the step before, which are no part of it")
    return Finding(reading.label, answer, [found.plot], {f"parts of step {found.step}": table}, notes, {}, found.to_json())
