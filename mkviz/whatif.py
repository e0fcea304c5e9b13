"""What if: a recorded step replayed as it was, and then under another schedule or other costs; docs/analyses.md has the rules.

The unchanged replay comes first and its error stands beside every prediction: beyond BOUND nothing is predicted, and a change
that is not larger than the error is said to be indistinguishable from it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mkviz.accounting import KINDS, charge, refuse_thinned
from mkviz.blame import CAUSES, blame_of
from mkviz.costs_fit import FittedStep, fit_step
from mkviz.costs_model import OpCosts
from mkviz.errors import MkvizError
from mkviz.machine import H200, Machine, named_in
from mkviz.step_records import StepRecords, shape_of, steps_of
from mkviz.store import Snapshot
from mkviz.whatif_case import Case
from mkviz.whatif_change import Change

if TYPE_CHECKING:
    import pandas as pd
    from bokeh.plotting import figure

    from mkviz.graph import Graph
    from mkviz.protocols import Source, StepInfo
    from mkviz.schedule import Schedule
    from mkviz.trace import Trace

BOUND = 0.05  # error of the unchanged replay, as a share of the recorded step, beyond which nothing is predicted
HELD_OUT = 3  # steps on which the costs by op are judged


@dataclass(frozen=True, eq=False)
class Prediction:
    """Of one step.  ``fitted``: the step and its unchanged replay; ``after``: the records of the changed one; ``margin``: the
    error that the change is to be compared with, as a share.

    ``stalled``: ns that the changed step takes if all that counts as math of tasks that read is waiting for bytes; the truth is
    between the two.  None where that makes no difference, or the costs are known.
    """

    fitted: FittedStep
    after: StepRecords
    margin: float
    stalled: int | None = None

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
    def doubt(self) -> str:
        """What to say behind the change."""
        found = "" if self.told else f": not distinguishable from the error of {self.margin:.2%}"
        other = self.stalled_change
        if other is None:
            return found
        bound = "much" if abs(other) > abs(self.change) else "little"
        return f"{found}, or as {bound} as {other:+.1%} if all math of tasks that read is waiting for bytes"

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
            "blame": rows("cause", self.causes()), "sm_time": rows("kind", self.kinds()),
        }  # fmt: skip


@dataclass(frozen=True)
class WhatIf:
    """``predictions``, one a step, ascending.  ``held_out``: (step, error) of the costs by op, fitted to these steps, on whole
    steps of the source that are not among them, at most HELD_OUT."""

    label: str
    change: Change
    predictions: list[Prediction]
    held_out: list[tuple[int, float]]
    notes: list[str] = field(default_factory=list)

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
        return {"label": self.label, "change": self.change.words, "bound": BOUND, "held_out": held_out, "notes": self.notes,
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
            lines.append(f"costs by op, fitted to these steps, on others: {found}")
        return "\n".join([*lines, *self.notes])


def whatif(source: Snapshot | Source | Trace | str | Path, steps=None, machine: Machine | None = None, **change: Any) -> WhatIf:
    """Replay steps of a source (one or several numbers; default: the whole step of median time) under a changed schedule or
    other costs; ``change``: the fields of :class:`mkviz.whatif_change.Change`.

    ``machine``: what the steps ran on; by default the one that the source's label names.  Without one, bytes count as part of
    each task's time, and changes that are about bytes are refused.

    Raises MkvizError for a change that cannot be made, a step that is not there or not whole, a source without graph, a trace
    that was cut to some SMs, ops or times, and where the unchanged replay is further from the record than BOUND.
    """
    wanted, of = Change.of(**change), _Read.of(source)
    machine = machine or named_in(of.label)
    if machine is None and wanted.about_bytes:
        raise MkvizError(f"{of.label or 'the source'} names no machine whose memory was measured",
                         "machine=Machine(...), or a change that is not about bytes")  # fmt: skip
    found = list(of.fitted(of.median() if steps is None else steps, machine, BOUND))
    model = OpCosts.fit(found)
    held_out = of.held_out(model, {fitted.step.step for fitted in found}, machine)
    predictions = [_predict(fitted, wanted, of.graphs, model, held_out) for fitted in found]
    notes = [] if machine else ["no measured machine: bytes are part of each task's time, a launch takes none"]
    notes += of.spread({fitted.step.step for fitted in found})
    if wanted.rows is not None and len({fitted.case.graph.hash for fitted in found}) == 1:
        notes.append("costs by op are fitted to steps of one batch: what more rows add to a task, they cannot show")
    return WhatIf(of.label, wanted, predictions, held_out, notes)


@dataclass(frozen=True)
class _Read:
    """What is asked of a snapshot, a source or a trace."""

    steps: Snapshot | Trace
    label: str
    simulated: bool
    infos: list[StepInfo]
    graphs: dict[int, tuple[Graph, Schedule]]

    @classmethod
    def of(cls, source) -> _Read:
        if isinstance(source, str | Path):
            from mkviz.trace import Trace

            source = Trace.open(source)
        refuse_thinned(source)
        label, simulated = getattr(source, "label", ""), getattr(source, "kind", "") == "simulated"
        if hasattr(source, "snapshot"):
            source = source.snapshot()
        infos = source.infos if isinstance(source, Snapshot) else source.infos()
        return cls(source, label, simulated, infos, source.graphs)

    def whole(self) -> list[StepInfo]:
        return [info for info in self.infos if info.lost == 0 and info.graph in self.graphs and info.end > info.begin]

    def median(self) -> int:
        """The first of the whole steps that takes their median time."""
        infos = self.whole()
        if not infos:
            raise MkvizError("there is no whole step with a graph", "a source of which a step lost no record")
        ns = [info.end - info.begin for info in infos]
        return infos[ns.index(int(np.percentile(ns, 50, method="inverted_cdf")))].step

    def spread(self, used: set[int]) -> list[str]:
        """For each of these steps that has others of its shape, in words how their times differ from its."""
        whole, out = self.whole(), []
        for one in (info for info in whole if info.step in used):
            ns = [info.end - info.begin for info in whole if shape_of(info) == shape_of(one) and info.step != one.step]
            if ns:
                low, high = (n / (one.end - one.begin) - 1 for n in (min(ns), max(ns)))
                took = f"took {low:+.1%} to {high:+.1%}" if len(ns) > 1 else f"took {low:+.1%}"
                out.append(f"{len(ns):,} other step{'s' * (len(ns) > 1)} of its kind {took} against step {one.step}, unchanged")
        return out

    def fitted(self, steps, machine: Machine | None, bound: float) -> Iterator[FittedStep]:
        """Steps with their costs; raises MkvizError for one whose replay's error is beyond ``bound``."""
        graph_of = {info.step: info.graph for info in self.infos}
        for step in steps_of(self.steps, steps):
            if graph_of[step.step] not in self.graphs or not len(step.graph.wait_counter):
                raise MkvizError(f"step {step.step} has no dependencies", "a trace that tells what waits for what")
            schedule = self.graphs[graph_of[step.step]][1]
            if machine is None:
                step = replace(step, graph=replace(step.graph, bytes=np.zeros_like(step.graph.bytes)))
            fitted = fit_step(
                step, schedule, machine or _unmeasured(schedule), simulated=self.simulated and machine is not None
            )
            if abs(fitted.error) > bound:
                replayed = fitted.case.replay.makespan
                raise MkvizError(
                    f"step {step.step}: recorded {step.makespan} ns, replayed unchanged {replayed} ns, error "
                    f"{fitted.error:+.1%}, beyond {bound:.0%}",
                    "another step: what the replay does not know of this one may be larger than what would change",
                )
            yield fitted

    def held_out(self, model: OpCosts, used: set[int], machine: Machine | None) -> list[tuple[int, float]]:
        others = [info.step for info in self.whole() if info.step not in used][:HELD_OUT]
        found = self.fitted(others, machine, np.inf) if others else []
        return [(step.step.step, model.error(step)) for step in found if model.knows(step)]


def _unmeasured(schedule: Schedule) -> Machine:
    """For devices that nobody measured: everything is in the recorded times."""
    return replace(H200, name="unmeasured", sms=schedule.sms, publish_ns=0, hop_ns=0, feed_ns=0, claim_ns=0, launch_ns=0)


def _predict(fitted: FittedStep, change: Change, graphs, model: OpCosts, held_out: list[tuple[int, float]]) -> Prediction:
    margin, case = abs(fitted.error), fitted.case
    if change.rows is not None:
        graph, schedule = _of_rows(graphs, change.rows, case.graph)
        beside = np.isin(np.array(graph.ops)[graph.op], np.array(case.graph.ops)[np.unique(case.graph.op[case.beside])])
        case = Case(graph, schedule, case.machine, model.of(graph), beside)
        margin = max([margin, *(abs(error) for _, error in held_out), abs(model.error(fitted))])
    stalled = None
    if not fitted.exact and change.stalls_matter(case):
        stalled = change.on(case, stalled=True).replay.makespan
    return Prediction(fitted, change.on(case).records, margin, stalled)


def _of_rows(graphs: dict[int, tuple[Graph, Schedule]], rows: int, like: Graph) -> tuple[Graph, Schedule]:
    """The graph for ``rows`` rows, of several the one with as many attention splits."""
    found = [pair for pair in graphs.values() if pair[0].meta.get("rows") == rows]
    if not found:
        known = sorted({graph.meta["rows"] for graph, _ in graphs.values() if "rows" in graph.meta})
        raise MkvizError(f"the source holds no graph for {rows} rows", f"one of {', '.join(map(str, known))}")
    return next((pair for pair in found if pair[0].meta.get("splits") == like.meta.get("splits")), found[0])


def _kinds(step: StepRecords) -> dict[str, int]:
    found = {kind: int(ns.sum()) for kind, ns in charge(step).items()}
    return {**found, "tail": int((step.makespan - step.lanes.left).sum())}
