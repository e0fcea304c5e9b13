"""Verdict: what bounds a step, in sentences that are computed from its blame path and from what its ops read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from mkviz.busy import until
from mkviz.dashboard.units import duration, percent

if TYPE_CHECKING:
    from mkviz.blame import Blame
    from mkviz.machine import Machine
    from mkviz.step_records import StepRecords

NEAR = 0.85  # share of the measured bandwidth from which on an op counts as bound by it
MEANS = {  # of the causes of a blame path
    "compute": "compute", "publish": "publish", "hop": "hop (handing over)", "starved": "starved (waiting for bytes)",
    "overhead": "overhead (idle although ready)", "tail": "tail", "unknown": "unknown",
}  # fmt: skip


@dataclass(frozen=True)
class Verdict:
    """``cause`` has the largest ``share`` of the path, most of it (``op_share`` of the step) by ``op``; ``rate``: bytes/s that
    this op read while it ran on any SM, None without bytes.  ``text``: the sentences."""

    cause: str
    share: float
    op: str
    op_share: float
    rate: float | None
    text: str

    def to_json(self) -> dict:
        return {name: getattr(self, name) for name in ("cause", "share", "op", "op_share", "rate", "text")}


def verdict(path: Blame, step: StepRecords, machine: Machine | None) -> Verdict:
    """Of a step and its blame path."""
    total = path.makespan or 1
    if not path.makespan:
        return Verdict("unknown", 0.0, "", 0.0, None, f"Step {path.step} takes no time.")
    causes = sorted(path.totals.items(), key=lambda item: -item[1])
    (cause, ns), (next_cause, next_ns) = causes[:2]
    op, op_ns = _most(path, cause)
    rate = rate_of(step, op) if cause == "compute" else None
    above_all = f", above all {_of(cause)}{op} ({percent(op_ns / total)})" if op else ""
    text = [f"Step {path.step} takes {duration(total)}; {percent(ns / total)} of it is {MEANS[cause]}{above_all}."]
    if rate is not None and machine:
        share, all_rate = rate / machine.bandwidth, rate_of(step, op, beside=True)
        reach = f"{percent(share)} of what the {machine.name} was measured to reach"
        if share < NEAR <= all_rate / machine.bandwidth:
            bound = f"with what else reads then it is {all_rate / 1e12:.2f} TB/s, and memory bounds them"
        else:
            bound = "memory bounds it" if share >= NEAR else "memory does not bound it"
        text.append(f"While {op} runs, it reads {rate / 1e12:.2f} TB/s, {reach}: {bound}.")
    if next_ns:
        name, most = _most(path, next_cause)
        above_all = f", above all {_of(next_cause)}{name} ({percent(most / total)})" if name else ""
        text.append(f"Next is {MEANS[next_cause]}, {percent(next_ns / total)}{above_all}.")
    chain = path.critical if len(path.graph.wait_counter) else None
    bounds = [(path.floor, "what its bytes take"), (chain, "its longest chain of dependencies")]
    bounds = sorted(((least, words) for least, words in bounds if least is not None), reverse=True)
    if bounds:
        told = f"{duration(bounds[0][0])} ({percent(bounds[0][0] / total)}), {bounds[0][1]}"
        rest = "".join(f"; {words} is {duration(least)} ({percent(least / total)})" for least, words in bounds[1:])
        text.append(f"Unless its tasks or the memory become faster, no schedule takes less than {told}{rest}.")
    return Verdict(cause, ns / total, op, op_ns / total, rate, " ".join(text))


def rate_of(step: StepRecords, op: str, beside: bool = False) -> float | None:
    """bytes/s that an op read in a step, over the time during which at least one of its tasks ran; None without bytes.
    ``beside``: with the bytes of other ops in that time, those of a task evenly from its begin to its end."""
    task = step.events["task"]
    mine = step.lanes.sound & (step.graph.op[task] == step.graph.ops.index(op)) if op in step.graph.ops else np.zeros(0, bool)
    size = int(step.bytes[task[mine]].sum()) if mine.any() else 0
    if not size:
        return None
    begin, end = step.lanes.begin[mine], step.lanes.end[mine]
    edges = np.unique(np.concatenate([begin, end]))
    running = np.diff(until(begin, end, edges)) > 0
    if not running.any():
        return None
    active = np.append(0, np.cumsum(np.diff(edges) * running))  # at each edge, ns in which the op ran so far
    if beside:
        others = step.lanes.sound & (step.graph.op[task] != step.graph.ops.index(op)) & (step.lanes.end > step.lanes.begin)
        begin, end = step.lanes.begin[others], step.lanes.end[others]
        within = np.interp(end, edges, active) - np.interp(begin, edges, active)
        size += float((step.bytes[task[others]] * within / (end - begin)).sum())
    return size / int(active[-1]) * 1e9


def _most(path: Blame, cause: str) -> tuple[str, int]:
    return next(((op, ns) for of, op, _, ns in path.largest() if of == cause and op), ("", 0))


def _of(cause: str) -> str:
    return {"compute": "", "publish": "by ", "unknown": "before "}.get(cause, "before ")
