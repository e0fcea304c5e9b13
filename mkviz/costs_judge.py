"""Judged: costs by op, fitted to the steps of one source, against what steps of another took."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from mkviz.costs_fit import FittedStep
from mkviz.costs_model import LENT, NOT_TOLD, OpCosts
from mkviz.costs_spread import Spread
from mkviz.errors import MkvizError
from mkviz.replayable import BOUND, Replayable
from mkviz.step_records import shape_of

if TYPE_CHECKING:
    import pandas as pd
    from bokeh.plotting import figure

    from mkviz.machine import Machine

STEP = ["step", "rows", "prefill", "recorded", "predicted", "spread"]


@dataclass(frozen=True, eq=False)
class JudgedStep:
    """A step that the costs were not fitted to: ``rows``, of which ``prefill``; ns as ``recorded``, as ``predicted`` from means
    by op, and from costs that keep their ``spread`` (:mod:`mkviz.costs_spread`); of each op that ran in it (op, tasks, ns of
    their math as recorded, as predicted)."""

    step: int
    rows: int
    prefill: int
    recorded: int
    predicted: int
    spread: int
    ops: list[tuple[str, int, int, int]]

    @property
    def error(self) -> float:
        return self.predicted / self.recorded - 1

    @property
    def spread_error(self) -> float:
        return self.spread / self.recorded - 1


@dataclass(frozen=True)
class Judged:
    """``costs``: fitted to ``fitted``, (rows, rows of prefill, steps) of each kind of step of the source named ``label``;
    ``steps``: of the source named ``on``, ascending."""

    label: str
    on: str
    costs: OpCosts
    fitted: list[tuple[int, int, int]]
    steps: list[JudgedStep]
    notes: list[str] = field(default_factory=list)

    def frame(self, of: str = "kind") -> pd.DataFrame:
        """``of="kind"``: of each kind of step ``rows``, ``prefill``, ``steps`` and medians: ``recorded``, ``predicted``,
        ``spread`` ns, ``error``, ``spread_error``.  ``"step"``: a row for each step.  ``"op"``: of each kind and op, ``tasks``
        and ns of their math in a step, means of its steps, and ``error``.  Errors are shares of what was recorded."""
        import pandas as pd

        by = ["rows", "prefill"]
        if of == "op":
            rows = [(s.rows, s.prefill, *op) for s in self.steps for op in s.ops]
            out = pd.DataFrame(rows, columns=[*by, "op", "tasks", "recorded", "predicted"])
            out = out.groupby([*by, "op"], sort=False, as_index=False).mean()
            return out.assign(error=out["predicted"] / out["recorded"] - 1)
        if of not in ("kind", "step"):
            raise MkvizError(f"frame of {of!r}", "kind, step or op")
        out = pd.DataFrame([tuple(getattr(s, name) for name in STEP) for s in self.steps], columns=STEP)
        out = out.assign(error=out["predicted"] / out["recorded"] - 1, spread_error=out["spread"] / out["recorded"] - 1)
        if of == "step":
            return out
        grouped = out.groupby(by, sort=False)
        medians = grouped[["recorded", "predicted", "spread", "error", "spread_error"]].median()
        return medians.assign(steps=grouped.size()).reset_index()

    @cached_property
    def worst(self) -> float:
        """The largest error of a kind of step, as a share."""
        return float(self.frame()["error"].abs().max())

    def plot(self, dark: bool = False) -> figure:
        """What was predicted over what was recorded: math of each op, and the steps, with the spread of costs."""
        from mkviz import plots

        rows = [(f"{_words(r.rows, r.prefill)}: {r.op}", r.recorded, r.predicted) for r in self.frame("op").itertuples()]
        rows += [(_words(r.rows, r.prefill), r.recorded, r.spread) for r in self.frame().itertuples()]
        head = plots.Head("costs by op, out of sample", f"{self.label}, judged on {self.on}", self.notes)
        return plots.predicted(rows, head, dark)

    def to_json(self) -> dict:
        """Times in ns, errors as shares."""
        costs = {
            op: {
                "tasks": c.tasks,
                "base": c.base,
                "per_byte": c.per_byte,
                "per_flop": c.per_flop,
                "flops": c.flops,
                "overhead": c.overhead,
                "overhead_per_flop": c.overhead_per_flop,
            }
            for op, c in self.costs.ops.items()
        }
        return {
            "label": self.label, "on": self.on, "fitted": [{"rows": r, "prefill": p, "steps": n} for r, p, n in self.fitted],
            "costs": costs, "kinds": self.frame().to_dict("records"), "steps": self.frame("step").to_dict("records"),
            "ops": self.frame("op").to_dict("records"), "notes": self.notes,
        }  # fmt: skip

    def to_text(self) -> str:
        of = ", ".join(f"{n} step{'s' * (n > 1)} of {_words(rows, prefill)}" for rows, prefill, n in self.fitted)
        lines = [f"costs by op, fitted to {of}, judged on {self.on}"]
        kinds, ops = self.frame(), self.frame("op")
        for kind in kinds.itertuples():
            lines += [
                f"{_words(kind.rows, kind.prefill)}, {kind.steps} step{'s' * (kind.steps > 1)}: "
                f"recorded {kind.recorded / 1e3:.1f} µs, predicted {kind.predicted / 1e3:.1f} µs, error {kind.error:+.1%}; "
                f"with the spread of costs {kind.spread / 1e3:.1f} µs, {kind.spread_error:+.1%}",
                f"  {'math of':<14}{'tasks':>7}{'recorded':>12}{'predicted':>12}{'error':>9}",
            ]
            for op in ops[(ops["rows"] == kind.rows) & (ops["prefill"] == kind.prefill)].itertuples():
                took = f"{op.recorded / 1e3:>12.1f}{op.predicted / 1e3:>12.1f}{op.error:>+9.1%}"
                lines.append(f"  {op.op:<14}{op.tasks:>7.0f}{took}")
        return "\n".join([*lines, *self.notes])


def judge(source, other, steps=None, other_steps=None, machine: Machine | None = None) -> Judged:
    """Fit costs by op to steps of a source, and say how far they are off on those of another: snapshots, sources, traces or
    their paths.  ``steps``, ``other_steps``: which (default: of each kind of step the whole ones nearest to its median time).
    ``machine``: what they ran on, by default what their labels name.

    Raises MkvizError where no step can be replayed within BOUND, or none of the other can be predicted.
    """
    of, on = Replayable.of(source, machine), Replayable.of(other, machine)
    wanted = [info.step for info in of.near_medians()] if steps is None else steps
    if not (fitted := within_bound(of, wanted)):
        raise MkvizError(f"no step of {of.label!r} is replayed within {BOUND:.0%}", "a source with whole steps that are")
    return judge_costs(OpCosts.fit(fitted), fitted, of, on, other_steps)


def judge_costs(costs: OpCosts, fitted: list[FittedStep], of: Replayable, on: Replayable, steps=None) -> Judged:
    """``fitted``: the steps of ``of`` that they were fitted to; ``steps``: those of ``on`` that they are judged on (default:
    some that are not among these, where both are of one recording)."""
    if (of.machine is None) != (on.machine is None):
        raise MkvizError(f"{on.label!r} names {'no' if on.machine is None else 'a'} measured machine, {of.label!r} "
                         f"{'none' if of.machine is None else 'one'}", "traces of the same machine")  # fmt: skip
    found, left, infos = [], 0, {info.step: info for info in on.infos}
    if steps is None:
        numbers = {step.step.step for step in fitted}
        used = {(info.step, info.begin, info.end) for info in of.infos if info.step in numbers}
        unseen = [info for info in on.whole() if (info.step, info.begin, info.end) not in used]
        steps = [info.step for info in on.near_medians(unseen)]
    spread = Spread.of(costs, fitted)
    for step in on.fitted(steps) if len(np.atleast_1d(steps)) else ():
        if costs.knows(step):
            found.append(_judged(spread, step, on.rows(infos[step.step.step])))
        else:
            left += 1
    if not found:
        what = f"no step of {on.label!r} that costs were not fitted to has only ops that ran in {of.label!r}"
        raise MkvizError(what, "another trace of the same model")
    notes = [*of.left_out(), *(on.left_out() if on is not of else [])]
    notes += [f"{left} steps have ops that the costs are not fitted to and are left out"] if left else []
    return Judged(of.label, on.label, costs, kinds_of(fitted, of), found, notes + flops_notes(costs))


def kinds_of(steps: list[FittedStep], of: Replayable) -> list[tuple[int, int, int]]:
    """(rows, rows of prefill, steps) of each kind, few rows first."""
    rows = {info.step: (of.rows(info), shape_of(info)[2]) for info in of.infos}
    return [(*kind, n) for kind, n in sorted(Counter(rows[step.step.step] for step in steps).items())]


def within_bound(of: Replayable, steps: list[int]) -> list[FittedStep]:
    """Those of the steps that a replay reproduces within BOUND."""
    return [step for step in of.fitted(steps) if abs(step.error) <= BOUND] if steps else []


def _judged(spread: Spread, step: FittedStep, rows: int) -> JudgedStep:
    graph, recorded = step.case.graph, step.case.costs.math
    costs = spread.model
    predicted, ops = costs.of(graph, step.work, step.ran).math, []
    for i in np.unique(graph.op[step.ran]).tolist():
        mine = step.ran & (graph.op == i)
        ops.append((graph.ops[i], int(mine.sum()), int(recorded[mine].sum()), int(predicted[mine].sum())))
    return JudgedStep(step.step.step, rows, step.step.shape[2], step.step.makespan, costs.replayed(step),
                      spread.replayed(step), ops)  # fmt: skip


def flops_notes(costs: OpCosts) -> list[str]:
    """What the fitted steps could not tell of other batches."""
    notes = []
    if unknown := [op for op, cost in costs.ops.items() if cost.flops == NOT_TOLD]:
        notes.append(f"what more rows add to tasks of {', '.join(unknown)} no fitted step tells: all have as much to do")
    if lent := [op for op, cost in costs.ops.items() if cost.flops == LENT]:
        notes.append(f"what more rows add to {', '.join(lent)} is taken from the other ops")
    return notes


def _words(rows: int, prefill: int) -> str:
    return f"{rows} row{'s' * (rows != 1)}" + (f", {'all' if prefill == rows else prefill} of prefill" if prefill else "")
