"""Where SM time went, and what the SMs did over time."""

from __future__ import annotations

from functools import partial

import numpy as np

from mkviz.accounting import KINDS, account
from mkviz.busy import occupancy
from mkviz.dashboard.units import duration, percent, size
from mkviz.findings.finding import Finding, rows_of
from mkviz.reading import Reading
from mkviz.table import Table

OPS = 12  # of a table, those of most time


def of_accounting(reading: Reading, by: str = "op") -> Finding:
    """``by``: op, layer, sm or step."""
    found = account(reading.snapshot_or_trace(), reading.steps)
    total, kinds = found.sm_time or 1, found.totals
    most = sorted(kinds, key=lambda kind: -kinds[kind])
    shares = ", ".join(f"{percent(kinds[kind] / total)} {kind}" for kind in most if kinds[kind])
    answer = f"Of {duration(found.sm_time)} of SM time in {_steps(found.steps)}: {shares or 'none'}."
    rows = found.frame(by)
    rows = rows.sort_values("sm_time", ascending=False, kind="stable").head(OPS)
    if by in ("op", "layer"):
        rows[by] = rows[by].astype(object).where(~rows[by].isin(["", -1]), "(no task)")
    table = Table({by: "", **dict.fromkeys(KINDS, "ns"), "share": "of 1"})
    table.values.extend([*row[:-1], row[-1] / total] for row in rows_of(rows, by, *KINDS, "sm_time"))
    roles = found.roles()
    hands = Table({"role": "", "had a task in hand": "ns", "share": "of 1"})
    hands.values.extend([role, int(roles[role].iloc[0]), float(roles[role].iloc[0]) / total]
                        for role in ("loader", "feeder", "math", "storer"))  # fmt: skip
    figures = {"steps": found.steps, "sm_time": found.sm_time, "kinds": kinds}
    return Finding(reading.label, answer, [partial(found.plot, by)], {f"by {by}": table, "by role": hands},
                   [*reading.notes, *found.notes], found.faults, figures)  # fmt: skip


def of_occupancy(reading: Reading) -> Finding:
    found = occupancy(reading.snapshot_or_trace(), reading.steps, machine=reading.machine)
    span = int(found.width.sum())
    mean = found.busy.sum() / span
    answer = f"On average {mean:.1f} of {found.sms} SMs work"
    notes = [*reading.notes, *found.notes]
    figures = {"mean_busy": float(mean), "sms": found.sms, "span": span, "read": found.read, "ceiling": found.ceiling}
    if found.read:
        rate = found.read / span
        figures["gb_s"] = rate
        answer += f"; {size(found.read)} are read at {rate:,.0f} GB/s"
        if found.ceiling:
            share = percent(rate * 1e9 / found.ceiling)
            answer += f", {share} of the {found.ceiling / 1e9:,.0f} that the {reading.machine.name} was measured to reach"
            notes += _beyond(found.rate())
    order = np.argsort(-found.busy.sum(axis=1), kind="stable")[:OPS]
    table = Table({"op": "", "SM time": "ns", "busy SMs, mean": "", "of all": "of 1"})
    for i in order:
        ns = int(found.busy[i].sum())
        table.values.append([found.ops[i], ns, round(ns / span, 2), ns / span / max(found.sms, 1)])
    plots = [found.plot, *([found.plot_bytes] if found.read else [])]
    return Finding(reading.label, answer + ".", plots, {"by op": table}, notes, found.faults, figures)


def _beyond(rate) -> list[str]:
    """Words where bytes land faster than the ceiling: none of that is cut off."""
    over = rate[rate["share"] > 1]
    if not len(over):
        return []
    long = duration(int((over["end"] - over["begin"]).sum()))
    most = f"{over['gb_s'].max():,.0f} GB/s"
    return [f"for {long} in all bytes land faster than the ceiling, at up to {most}: a cache gives more than memory, and a "
            "ceiling is what one benchmark reached"]  # fmt: skip


def _steps(n: int) -> str:
    return f"{n:,} step{'s' * (n != 1)}"
