"""Who waited for whom, and how the waves of ops end."""

from __future__ import annotations

from functools import partial

import numpy as np

from mkviz.dashboard.units import duration, percent
from mkviz.findings.finding import Finding, rows_of
from mkviz.hops import hops
from mkviz.reading import Reading
from mkviz.table import Table
from mkviz.wave_tails import tails

TOP = 10


def of_waits(reading: Reading) -> Finding:
    found = hops(reading.snapshot_or_trace(), reading.steps)
    by_counter, by_pair = found.by("counter"), found.by("producer_op", "op")
    total = int(found.columns["exposed"].sum())
    waits, stood = len(found.columns["exposed"]), int((found.columns["exposed"] > 0).sum())
    if not waits:
        answer = "This source names no dependencies: who waited for whom cannot be told."
    elif not stood:
        answer = f"None of {waits:,} waits held an SM up."
    else:
        first = by_pair.iloc[0]
        pair = f"{first['op']} for {first['producer_op']}" if first["producer_op"] else f"{first['op']} for what has no record"
        answer = (f"SMs stood idle for {stood:,} of {waits:,} waits, {duration(total)} of SM time; most of it "
                  f"({percent(first['ns'] / total)}) {pair}, {duration(first['p50'])} each in the middle.")  # fmt: skip
    units = {"waits": "n", "exposed": "n", "in all": "ns", "p50": "ns", "p90": "ns", "longest": "ns", "least slack": "ns"}
    names = ("waits", "exposed", "ns", "p50", "p90", "max", "slack")
    counters = Table({"waited for": "", **units})
    counters.values.extend(rows_of(by_counter.head(TOP), "counter", *names))
    longest = _longest(found)
    counters.goes_to.extend(longest[name] for name in by_counter["counter"].head(TOP))
    pairs = Table({"who waited": "", "for": "", **units})
    pairs.values.extend(rows_of(by_pair.head(TOP), "op", "producer_op", *names))
    notes = [*reading.notes, *(note if note != "no dependencies" else "no dependencies: waits cannot be named"
                               for note in found.notes)]  # fmt: skip
    return Finding(reading.label, answer, [partial(found.plot, "exposed")] if stood else [],
                   {"most waited for": counters, "who waited for whom": pairs} if waits else {}, notes, found.faults,
                   {"waits": waits, "exposed": stood, "ns": total})  # fmt: skip


def _longest(found) -> dict[str, tuple[int, int]]:
    """(step, task) of the longest exposed wait for each counter."""
    counter, exposed = found.columns["counter"], found.columns["exposed"]
    order = np.lexsort((exposed, counter))
    last = order[np.append(counter[order][1:] != counter[order][:-1], True)] if len(order) else order
    return {found.names["counter"][counter[i]]: (int(found.columns["step"][i]), int(found.columns["task"][i])) for i in last}


def of_tails(reading: Reading) -> Finding:
    found = tails(reading.snapshot_or_trace(), reading.steps)
    if not len(found.waves):
        return Finding(reading.label, "No task was recorded whole: there are no waves.", [], {},
                       [*reading.notes, *found.notes], found.faults)  # fmt: skip
    rows = found.by("op").head(TOP)
    idle, area = int(found.waves["tail_idle"].sum()), int(found.waves["area"].sum())
    filled = int(found.waves["tail_filled"].sum())
    first = rows.iloc[0]
    answer = f"SMs that had finished their part of an op stood idle for {duration(idle)} until its last task ended"
    if idle:
        answer += f", most of it in {first['op']} ({percent(first['tail_idle'] / idle)})"
    answer += f"; other work filled {percent(filled / (idle + filled))} of that time." if idle + filled else "."
    table = Table({"op": "", "waves": "n", "tasks": "n", "slots left empty": "of 1", "idle in the tail": "ns",
                   "filled": "of 1"})  # fmt: skip
    for op, groups, tasks, loss, tail, fill in rows_of(rows, "op", "groups", "tasks", "loss", "tail_idle", "tail_filled"):
        table.values.append([op, groups, tasks, loss, tail, fill / (tail + fill) if tail + fill else None])
        table.goes_to.append(_latest(found, op))
    last = Table({"op": "", "SM": "", "came last": "n", "late, in all": "ns"})
    last.values.extend(rows_of(found.last().head(TOP), "op", "sm", "times", "late"))
    figures = {"tail_idle": idle, "tail_filled": filled, "area": area}
    return Finding(reading.label, answer, [partial(found.plot, "op")], {"by op": table, "who came last": last},
                   [*reading.notes, *found.notes], found.faults, figures)  # fmt: skip


def _latest(found, op: str) -> tuple[int, int]:
    """(step, task) that finished last in the wave of an op whose tail left most time idle."""
    of = found.ops.index(op)
    mine = found.waves[found.waves["op"] == of]
    wave = mine[np.argmax(mine["tail_idle"])]
    f = found.finishers
    f = f[(f["rank"] == 0) & (f["op"] == of) & (f["step"] == wave["step"]) & (f["layer"] == wave["layer"])]
    return int(wave["step"]), int(f["task"][0]) if len(f) else -1
