"""Tables: what a range holds, in rows: its ops, its longest waits, its steps, and what held the step in its middle."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from mkviz import lod
from mkviz.blame import blame_of
from mkviz.dashboard import probe
from mkviz.dashboard.request_table import requests
from mkviz.findings.path import waterfall
from mkviz.slack import free_of_step, waited_for
from mkviz.step_records import steps_of
from mkviz.table import Table

if TYPE_CHECKING:
    from mkviz.dashboard.scene import Scene

TOP_WAITS = 20
CUT = "the trace holds only some of its records (cut by {}): idle time cannot be told from what was left out"
MAX_STEPS = 100  # of a range, the newest, that are listed or searched for waits


def ops(scene: Scene, x0: float, x1: float) -> Table:
    """Per op: tasks that touch the range, their time in it, its share of the time of all tasks, bytes, and bytes over time."""
    total = lod.summary(scene.snapshot, scene.tables, x0, x1)
    all_time = float(total.busy.sum()) or 1.0
    columns = {"op": "", "tasks": "", "time": "ns", "share": "of 1", "read": "bytes", "GB/s per SM": "GB/s"}
    values = [
        [scene.snapshot.ops[k], int(total.count[k]), float(total.busy[k]), float(total.busy[k]) / all_time, int(total.bytes[k]),
         float(total.bytes[k] / total.busy[k]) if total.busy[k] else None]
        for k in np.argsort(-total.busy, kind="stable") if total.count[k]
    ]  # fmt: skip
    return Table(columns, values)


def waits(scene: Scene, x0: float, x1: float) -> Table:
    """The tasks in the range that their lanes waited for longest, what they waited on and who let them wait, how much of the
    wait was exposed (all of it: a hidden one is slack), and the slack of the producer before the last one."""
    snapshot, found = scene.snapshot, []
    table = Table({"task": "", "waited on": "", "last raised by": "", "exposed": "ns", "slack before": "ns"})
    if snapshot.cut:
        return replace(table, caption=CUT.format(snapshot.cut))
    for step in snapshot.steps_in(x0, x1)[-MAX_STEPS:]:
        rows, lane, free = free_of_step(snapshot, int(step))
        ready, begin = snapshot.ready[rows] - snapshot.origin, snapshot.begin[rows] - snapshot.origin
        long = np.where((begin < x1) & (ready > x0), ready - free, 0)
        for at in np.argsort(-long, kind="stable")[:TOP_WAITS]:
            if long[at] > 0:
                hit = probe.Hit("task", int(lane[at]), int(step), rows.start + int(at), float(free[at]))
                found.append((int(long[at]), hit))
    found = sorted(found, key=lambda pair: -pair[0])[:TOP_WAITS]
    for long, hit in found:
        graph, task = snapshot.graph_of(hit.step), int(snapshot.task[hit.row])
        what, culprit = probe.blame(snapshot, hit)
        spare = waited_for(snapshot, hit.step, hit.row, hit.free).next_slack  # at most so much does a faster culprit gain
        table.values.append([f"{graph.label(task)} · SM {hit.lane}", what, culprit or None, long, spare])
        table.goes_to.append((int(snapshot.steps["step"][hit.step]), task))
    return table


def steps(scene: Scene, x0: float, x1: float) -> Table:
    """The steps that touch the range, newest first: time, tasks recorded, records lost."""
    snapshot, table = scene.snapshot, Table({"step": "", "time": "ns", "tasks": "", "lost": ""})
    for at in snapshot.steps_in(x0, x1)[-MAX_STEPS:][::-1]:
        row = snapshot.steps[at]
        count = int(snapshot.lane_ptr[at, -1] - snapshot.lane_ptr[at, 0])
        table.values.append([int(row["step"]), int(row["end"] - row["begin"]), count, int(row["lost"])])
        table.goes_to.append((int(row["step"]), -1))
    return table


def why(scene: Scene, x0: float, x1: float) -> Table:
    """The blame path of the step in the middle of the range, by cause and op; each row leads to its longest segment's task."""
    snapshot = scene.snapshot
    touching = snapshot.steps_in(x0, x1)
    if snapshot.cut or not len(touching):
        caption = CUT.format(snapshot.cut) if snapshot.cut else "no step in it"
        return Table({"cause": "", "op": "", "time": "ns", "share": "of 1"}, caption=caption)
    steps, middle = snapshot.steps[touching], snapshot.origin + (x0 + x1) / 2
    away = np.maximum(np.maximum(steps["begin"] - middle, middle - steps["end"]), 0)
    step = next(iter(steps_of(snapshot, int(steps["step"][np.argmin(away)]))))
    return waterfall(blame_of(step, chain=False))


TABLES = {"ops": ops, "waits": waits, "steps": steps, "why": why, "requests": requests}
