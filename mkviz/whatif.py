"""What if: a recorded step replayed as it was, and then under another schedule or other costs; docs/analyses.md has the rules.

The unchanged replay comes first and its error stands beside every prediction: beyond BOUND nothing is predicted, and a change
that is not larger than the error is said to be indistinguishable from it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mkviz.accounting import KINDS, charge
from mkviz.blame import CAUSES, blame_of
from mkviz.costs_fit import UNMEASURED, FittedStep
from mkviz.costs_judge import Judged, flops_notes, judge_costs, within_bound
from mkviz.costs_model import OpCosts
from mkviz.costs_spread import Spread
from mkviz.errors import MkvizError
from mkviz.machine import Machine
from mkviz.replayable import BOUND, Replayable
from mkviz.step_records import StepRecords, shape_of
from mkviz.whatif_case import Case
from mkviz.whatif_change import Change
from mkviz.work import Work

HELD_OUT = 3  # steps of the source itself on which costs by op are judged

if TYPE_CHECKING:
    import pandas as pd
    from bokeh.plotting import figure

    from mkviz.graph import Graph
    from mkviz.protocols import Source, StepInfo
    from mkviz.schedule import Schedule
    from mkviz.store import Snapshot
    from mkviz.trace import Trace


@dataclass(frozen=True, eq=False)
class Prediction:
    """Of one step.  ``fitted``: the step and its unchanged replay; ``after``: the records of the changed one; ``margin``: the
    error that the change is to be compared with, as a share: that of the replay, or for another batch the largest of it, of the
    costs by op on the step itself and of these ``out_of_sample`` (None where nobody judged them there).

    ``stalled``: ns that the changed step takes if all that counts as math of tasks that read is waiting for bytes; the truth is
    between the two.  None where that makes no difference, or the costs are known.  ``grown``: ns that a step of other rows
    takes if all math of ops is for rows of which nobody knows what rows add to it; None where that is known of all.
    """

    fitted: FittedStep
    after: StepRecords
    margin: float
    stalled: int | None = None
    grown: int | None = None
    out_of_sample: float | None = None

    @property
    def step(self) -> int:
        return self.fitted.step.step

    @property
    def before_ns(self) -> int:
        return self.fitted.case.replay.makespan

    @property
    def change(self) -> float:
        """Of the makespan, replay against replay, as a share; below 0: faster."""
        return self.after.makespan / self.before_ns - 1

    @property
    def told(self) -> bool:
        """Whether the change is larger than the error."""
        return abs(self.change) > self.margin

    @property
    def stalled_change(self) -> float | None:
        return None if self.stalled is None else self.stalled / self.before_ns - 1

    @property
    def grown_change(self) -> float | None:
        return None if self.grown is None else self.grown / self.before_ns - 1

    @property
    def doubt(self) -> str:
        """What to say behind the change."""
        found = "" if self.told else f": not distinguishable from the error of {self.margin:.2%}"
        if self.told and self.margin > abs(self.fitted.error):
            where = "out of sample" if self.margin == self.out_of_sample else "on the step itself"
            found = f" (costs by op are off by up to {self.margin:.1%} {where})"
        for other, what in (
            (self.stalled_change, "all math of tasks that read is waiting for bytes"),
            (self.grown_change, "all math grows with the rows where nobody knows what they add"),
        ):
            if other is not None:
                bound = "much" if abs(other) > abs(self.change) else "little"
                found += f", or as {bound} as {other:+.1%} if {what}"
        return found

    def causes(self) -> list[tuple[str, int, int]]:
        """(cause, ns before, ns after) on the blame paths of both replays; they add up to the makespans."""
        before, after = (blame_of(records).totals for records in (self.fitted.case.records, self.after))
        return [(cause, before[cause], after[cause]) for cause in CAUSES]

    def kinds(self) -> list[tuple[str, int, int]]:
        """(kind, ns before, ns after) of SM time, as in the accounting."""
        before, after = (_kinds(records) for records in (self.fitted.case.records, self.after))
        return [(kind, before[kind], after[kind]) for kind in KINDS]

    def to_json(self) -> dict:
        """Times in ns, shares as shares."""

        def rows(name, found):
            return [dict(zip((name, "before", "after"), row, strict=True)) for row in found]

        return {
            "step": self.step, "recorded": self.fitted.step.makespan, "replayed": self.before_ns, "error": self.fitted.error,
            "changed": self.after.makespan, "change": self.change, "margin": self.margin, "told": self.told,
            "if_math_is_stalls": None if self.stalled is None else {"changed": self.stalled, "change": self.stalled_change},
            "if_math_is_rows": None if self.grown is None else {"changed": self.grown, "change": self.grown_change},
            "blame": rows("cause", self.causes()), "sm_time": rows("kind", self.kinds()),
        }  # fmt: skip


@dataclass(frozen=True)
class WhatIf:
    """``predictions``, one a step, ascending; those of other rows are from costs by op that keep their spread.  ``held_out``:
    (step, error) of the costs by op, with their spread where the prediction has it, on steps of the source that they were not
    fitted to: of the same kind, or of the rows that are asked for.  ``judged``: the same on another source."""

    label: str
    change: Change
    predictions: list[Prediction]
    held_out: list[tuple[int, float]]
    notes: list[str] = field(default_factory=list)
    judged: Judged | None = None

    @property
    def costs(self) -> str:
        """What the costs of ``held_out`` are, in words."""
        return "costs by op" if self.change.rows is None else "costs by op with their spread"

    def frame(self, of: str = "blame") -> pd.DataFrame:
        """Per step and cause (``of="blame"``, parts of the makespan) or kind (``of="sm_time"``): ``before``, ``after`` and
        ``change``, ns of the replays."""
        import pandas as pd

        if of not in ("blame", "sm_time"):
            raise MkvizError(f"whatif frame of {of!r}", "blame or sm_time")
        rows = [(p.step, *row) for p in self.predictions for row in (p.causes() if of == "blame" else p.kinds())]
        out = pd.DataFrame(rows, columns=["step", "cause" if of == "blame" else "kind", "before", "after"])
        return out.assign(change=out["after"] - out["before"])

    def plot(self, step: int | None = None, dark: bool = False) -> figure:
        """What changed the makespan of a step (default: the first) by cause, from the unchanged replay to the changed one."""
        from mkviz import plots

        found = [p for p in self.predictions if step in (None, p.step)]
        if not found:
            raise MkvizError(f"step {step} was not replayed", f"one of {', '.join(str(p.step) for p in self.predictions)}")
        p = found[0]
        rows = [(cause, cause, after - before) for cause, before, after in p.causes() if after != before]
        notes = [f"{p.change:+.1%}{p.doubt}; error of the unchanged replay {p.fitted.error:+.2%}", *self.notes]
        head = plots.Head(f"step {p.step}, what if: {self.change.words}", self.label, notes)
        marks = {"recorded": p.fitted.step.makespan}
        return plots.waterfall(rows, "changed", head, "makespan", dark, start=("unchanged", p.before_ns), marks=marks)

    def to_json(self) -> dict:
        held_out = [{"step": step, "error": error} for step, error in self.held_out]
        return {"label": self.label, "change": self.change.words, "bound": BOUND, "costs": self.costs, "held_out": held_out,
                "notes": self.notes,
                "judged": None if self.judged is None else self.judged.to_json(),
                "predictions": [p.to_json() for p in self.predictions]}  # fmt: skip

    def to_text(self) -> str:
        lines = [f"{self.label} · what if: {self.change.words}"]
        for p in self.predictions:
            lines += [
                f"step {p.step}: recorded {p.fitted.step.makespan / 1e3:.1f} µs, replayed unchanged {p.before_ns / 1e3:.1f} µs"
                f", error {p.fitted.error:+.2%}",
                f"changed  {p.after.makespan / 1e3:.1f} µs, {p.change:+.1%}" + p.doubt,
                f"{'':<10}{'before':>12}{'after':>12}{'change':>12}   µs on the blame path",
            ]
            for cause, before, after in p.causes():
                if before or after:
                    lines.append(f"{cause:<10}{before / 1e3:>12.1f}{after / 1e3:>12.1f}{(after - before) / 1e3:>+12.1f}")
        if self.held_out:
            found = ", ".join(f"step {step} {error:+.1%}" for step, error in self.held_out)
            lines.append(f"{self.costs}, on steps that they were not fitted to: {found}")
        return "\n".join([*lines, *self.notes, *([] if self.judged is None else ["", self.judged.to_text()])])


def whatif(source: Snapshot | Source | Trace | str | Path, steps=None, machine: Machine | None = None, judge=None,
           **change: Any) -> WhatIf:  # fmt: skip
    """Replay steps of a source (one or several numbers; default: the whole step of median time) under a changed schedule or
    other costs; ``change``: the fields of :class:`mkviz.whatif_change.Change`.

    ``machine``: what the steps ran on; by default the one that the source's label names.  Without one, bytes count as part of
    each task's time, and changes that are about bytes are refused.  ``judge``: another source, whose steps the costs by op are
    judged on, as :func:`mkviz.costs_judge.judge` does.

    Raises MkvizError for a change that cannot be made, a step that is not there or not whole, a source without graph, a trace
    that was cut to some SMs, ops or times, and where the unchanged replay is further from the record than BOUND.
    """
    wanted, of = Change.of(**change), Replayable.of(source, machine)
    if of.machine is None and wanted.about_bytes:
        raise MkvizError(f"{of.label or 'the source'} names no machine whose memory was measured",
                         "machine=Machine(...), or a change that is not about bytes")  # fmt: skip
    other = None if judge is None else Replayable.of(judge, machine)
    graphs = list(of.graphs.values()) + ([] if other is None else list(other.graphs.values()))
    found = list(of.fitted(of.median() if steps is None else steps, BOUND))
    known, unseen = _fit(of, found, wanted.rows)
    model = OpCosts.fit(known)
    spread = None if wanted.rows is None else Spread.of(model, known)
    others = [step for step in of.fitted(unseen) if model.knows(step)] if unseen else []
    held_out = [(step.step.step, (model if spread is None else spread).error(step)) for step in others]
    judged = None if other is None else judge_costs(model, known, of, other)
    margins = [abs(error) for _, error in held_out]
    if judged is not None:
        margins += [abs(step.spread_error) for step in judged.steps if step.rows == wanted.rows and not step.prefill]
    grown = Spread.of(model.if_flops(), known) if spread is not None and model.not_told else None
    predictions = [_predict(fitted, wanted, graphs, spread, grown, margins) for fitted in found]
    notes = [] if of.machine else ["no measured machine: bytes are part of each task's time, a launch takes none"]
    notes += of.spread({fitted.step.step for fitted in found})
    if wanted.rows is not None:
        most = max(of.rows(info) for info in of.infos if info.step in {step.step.step for step in known})
        graph = _of_rows(graphs, wanted.rows, found[0].case.graph)[0]
        notes += of.left_out() + _rows_notes(model, graph, wanted.rows, most, bool(margins))
    return WhatIf(of.label, wanted, predictions, held_out, notes, judged)


def _predict(fitted: FittedStep, change: Change, graphs, spread: Spread | None, if_flops: Spread | None,
             margins: list[float]) -> Prediction:  # fmt: skip
    """``spread``: costs of a step of other rows, None where none is asked for; ``if_flops``: the other end of what is not told
    of these."""
    margin, case, grown = abs(fitted.error), fitted.case, None
    if spread is not None:
        graph, schedule = _of_rows(graphs, change.rows, case.graph)
        work = Work.of_rows(graph, change.rows)
        beside = np.isin(np.array(graph.ops)[graph.op], np.array(case.graph.ops)[np.unique(case.graph.op[case.beside])])
        read = work.bytes if case.machine.name != UNMEASURED else np.zeros_like(work.bytes)
        every = np.ones(len(graph), bool)
        case = Case(replace(graph, bytes=read), schedule, spread.model.machine, spread.costs(graph, work, every), beside)
        margin = max([margin, *margins, abs(spread.error(fitted))])
        if if_flops is not None:
            grown = change.on(replace(case, costs=if_flops.costs(graph, work, every))).replay.makespan
    stalled = None
    if not fitted.exact and change.stalls_matter(case):
        stalled = change.on(case, stalled=True).replay.makespan
    return Prediction(fitted, change.on(case).records, margin, stalled, grown, max(margins, default=None))


def _rows_notes(model: OpCosts, graph: Graph, rows: int, most: int, judged: bool) -> list[str]:
    """``most``: rows of the steps that the costs are fitted to."""
    notes = ["costs keep their spread: each task is as far from the mean of its op as one like it was in a fitted step, drawn "
             "with a fixed seed", *flops_notes(model)]  # fmt: skip
    words = f"{rows} row{'s' * (rows > 1)}"
    if rows > most:
        notes.append(f"costs are fitted to steps of up to {most} row{'s' * (most > 1)}: what {rows} take is extrapolated")
    if (graph.slot >= 0).any():
        notes.append(f"all expert slots of a step of {words} count as used: rows that share an expert would read less")
    if not judged:
        notes.append(f"nobody judged these costs on a step of {words}: judge them on a source that has some")
    return notes


def _fit(of: Replayable, found: list[FittedStep], rows: int | None) -> tuple[list[FittedStep], list[int]]:
    """(steps that costs by op are fitted to, steps to judge them on): those found, and others of their kind; or, for a step of
    another batch, all kinds of steps but those that decode that batch, and these."""
    used = {step.step.step for step in found}
    others = [info for info in of.whole() if info.step not in used]
    if rows is None:
        shapes = {step.step.shape for step in found}
        return found, _some(of, [info for info in others if shape_of(info) in shapes])
    batch = [info for info in others if of.rows(info) == rows and not shape_of(info)[2]]
    left = {info.step for info in batch}
    more = of.near_medians([info for info in others if info.step not in left])
    return found + within_bound(of, [info.step for info in more]), _some(of, batch)


def _some(of: Replayable, infos: list[StepInfo]) -> list[int]:
    return [info.step for info in of.near_medians(infos, HELD_OUT)][:HELD_OUT]


def _of_rows(graphs: list[tuple[Graph, Schedule]], rows: int, like: Graph) -> tuple[Graph, Schedule]:
    """The smallest graph for ``rows`` rows, of several the one with as many attention splits."""
    known = sorted({graph.meta["rows"] for graph, _ in graphs if "rows" in graph.meta})
    fits = [n for n in known if n >= rows]
    if rows < 1 or not fits:
        right = f"1 to {known[-1]}" if known else "one whose graphs say their rows"
        raise MkvizError(f"the source holds no graph for {rows} rows", right)
    found = [pair for pair in graphs if pair[0].meta.get("rows") == fits[0]]
    return next((pair for pair in found if pair[0].meta.get("splits") == like.meta.get("splits")), found[0])


def _kinds(step: StepRecords) -> dict[str, int]:
    found = {kind: int(ns.sum()) for kind, ns in charge(step).items()}
    return {**found, "tail": int((step.makespan - step.lanes.left).sum())}
