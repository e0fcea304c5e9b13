"""Replayable: a source of which steps are replayed: which of them, and with what costs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from mkviz.accounting import refuse_thinned
from mkviz.costs_fit import FittedStep, fit_step
from mkviz.errors import MkvizError
from mkviz.machine import Machine, named_in
from mkviz.step_records import shape_of, steps_of
from mkviz.store import Snapshot

if TYPE_CHECKING:
    from mkviz.graph import Graph
    from mkviz.protocols import Source, StepInfo
    from mkviz.schedule import Schedule
    from mkviz.trace import Trace

BOUND = 0.05  # error of the unchanged replay, as a share of the recorded step, beyond which nothing is predicted
NEAR = 6  # steps nearest to the median time of their kind that stand for it
MOST_KINDS = 16  # that are stood for: those with most steps


@dataclass(frozen=True)
class Replayable:
    """``steps``: the snapshot or trace; ``machine``: what it was measured on, None where nobody measured that."""

    steps: Snapshot | Trace
    label: str
    simulated: bool
    machine: Machine | None
    infos: list[StepInfo]
    graphs: dict[int, tuple[Graph, Schedule]]

    @classmethod
    def of(cls, source: Snapshot | Source | Trace | str | Path, machine: Machine | None = None) -> Replayable:
        """``machine``: by default the one that the source's label names."""
        if isinstance(source, str | Path):
            from mkviz.trace import Trace

            source = Trace.open(source)
        refuse_thinned(source)
        label, simulated = getattr(source, "label", ""), getattr(source, "kind", "") == "simulated"
        if hasattr(source, "snapshot"):
            source = source.snapshot()
        infos = source.infos if isinstance(source, Snapshot) else source.infos()
        return cls(source, label, simulated, machine or named_in(label), infos, source.graphs)

    def whole(self) -> list[StepInfo]:
        return [info for info in self.infos if info.lost == 0 and info.graph in self.graphs and info.end > info.begin]

    def rows(self, info: StepInfo) -> int:
        """Rows of a step, those of its graph where nobody told."""
        return len(info.rows) or int(self.graphs[info.graph][0].meta.get("rows", 0))

    def median(self) -> int:
        """The first of the whole steps that takes their median time."""
        infos = self.whole()
        if not infos:
            raise MkvizError("there is no whole step with a graph", "a source of which a step lost no record")
        ns = [info.end - info.begin for info in infos]
        return infos[ns.index(int(np.percentile(ns, 50, method="inverted_cdf")))].step

    def near_medians(self, infos: list[StepInfo] | None = None, most: int = NEAR) -> list[StepInfo]:
        """Of each kind of step (graph, rows, rows of prefill) among ``infos`` (default: all whole ones), or of the MOST_KINDS
        with most steps, the ``most`` whose times are nearest to its median, ascending."""
        kinds: dict[tuple, list[StepInfo]] = {}
        for info in self.whole() if infos is None else infos:
            kinds.setdefault(shape_of(info), []).append(info)
        found = []
        for of in sorted(kinds.values(), key=len, reverse=True)[:MOST_KINDS]:
            ns = np.array([info.end - info.begin for info in of])
            found += [of[i] for i in np.argsort(np.abs(ns - np.median(ns)), kind="stable")[:most]]
        return sorted(found, key=lambda info: info.step)

    def left_out(self) -> list[str]:
        """In words, where there are more kinds of steps than are stood for."""
        kinds = len({shape_of(info) for info in self.whole()})
        return [f"of {kinds} kinds of steps of {self.label} the {MOST_KINDS} with most"] if kinds > MOST_KINDS else []

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

    def fitted(self, steps, bound: float = np.inf) -> Iterator[FittedStep]:
        """Steps with their costs; raises MkvizError for one whose replay's error is beyond ``bound``."""
        of = {info.step: info for info in self.infos}
        for step in steps_of(self.steps, steps):
            info = of[step.step]
            if info.graph not in self.graphs or not len(step.graph.wait_counter):
                raise MkvizError(f"step {step.step} has no dependencies", "a trace that tells what waits for what")
            fitted = fit_step(step, self.graphs[info.graph][1], self.machine, info=info, simulated=self.simulated)
            if abs(fitted.error) > bound:
                replayed = fitted.case.replay.makespan
                raise MkvizError(
                    f"step {step.step}: recorded {step.makespan} ns, replayed unchanged {replayed} ns, error "
                    f"{fitted.error:+.1%}, beyond {bound:.0%}",
                    "another step: what the replay does not know of this one may be larger than what would change",
                )
            yield fitted
