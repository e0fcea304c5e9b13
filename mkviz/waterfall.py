"""Waterfall: what a step takes beyond the time of its bytes, by what held it meanwhile; docs/analyses.md has the rules.

The blame path says what held the step at each moment, the landings how much came from memory at that moment.  What memory
could have brought and did not is charged to what held the step, so that the time of the bytes and all charges are the makespan.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from mkviz.blame import CAUSES, blame_of
from mkviz.busy import landed_in
from mkviz.dashboard.units import decimal
from mkviz.errors import MkvizError
from mkviz.landings import landings
from mkviz.machine import Machine
from mkviz.ring_fill import stages_told
from mkviz.step_records import StepRecords, steps_of

if TYPE_CHECKING:
    import pandas as pd
    from bokeh.plotting import figure

    from mkviz.protocols import Source
    from mkviz.store import Snapshot
    from mkviz.trace import Trace

BYTES = "its bytes"


@dataclass(frozen=True)
class Waterfall:
    """Of one step.  ``bytes`` at ``bandwidth`` (bytes/s) take ``floor`` ns; ``charges``: (cause, op, ns on the blame path, ns
    lost of them), most lost first.  ``floor`` and what is lost add up to ``makespan``.  Of a cause and op under which memory
    brought more than the bandwidth says (a cache helped), the loss is below 0.  ``since_last`` ns: from the end of the step
    before in the source, which a new launch or the kernel's own turn takes; None where that step is not there."""

    label: str
    step: int
    makespan: int
    bytes: int
    bandwidth: float
    charges: list[tuple[str, str, int, float]]
    since_last: int | None = None
    notes: list[str] = field(default_factory=list)

    @property
    def floor(self) -> float:
        return self.bytes * 1e9 / self.bandwidth

    @property
    def read(self) -> str:
        """What the floor is made of, in words."""
        return f"{decimal(self.bytes, 2)} at {self.bandwidth / 1e12:.2f} TB/s"

    def by_cause(self) -> list[tuple[str, int, float]]:
        """(cause, ns on the blame path, ns lost), in the order of ``mkviz.blame.CAUSES``; causes that held it at no time are
        left out."""
        sums = {cause: [0, 0.0] for cause in CAUSES}
        for cause, _, path, lost in self.charges:
            sums[cause][0] += path
            sums[cause][1] += lost
        return [(cause, path, lost) for cause, (path, lost) in sums.items() if path]

    def most(self, cause: str) -> list[tuple[str, float]]:
        """(op, ns lost under a cause), most first: of ops that lost more than 0.5 % of the makespan there, four at most."""
        return [(op, ns) for of, op, _, ns in self.charges if of == cause and op and ns > 0.005 * self.makespan][:4]

    def parts(self) -> list[tuple[str, float]]:
        """(BYTES or a cause, ns), in the order of ``by_cause``; together the makespan."""
        return [(BYTES, self.floor), *((cause, lost) for cause, _, lost in self.by_cause())]

    def frame(self) -> pd.DataFrame:
        """The charges: cause, op, ``path`` and ``lost`` in ns, and ``share``, what is lost of the makespan."""
        import pandas as pd

        out = pd.DataFrame(self.charges, columns=["cause", "op", "path", "lost"])
        return out.assign(share=out["lost"] / self.makespan)

    def plot(self, dark: bool = False) -> figure:
        """The parts one below the other, each from where the one before it ended, down to the step."""
        from mkviz import plots

        rows = [(name, name, ns) for name, ns in self.parts()]
        head = plots.Head(f"parts of step {self.step}", self.label, self.notes)
        return plots.waterfall(rows, "step", head, "time", dark, shares=True)

    def to_json(self) -> dict:
        """Times in ns, bandwidth in bytes/s."""
        names = ("label", "step", "makespan", "bytes", "bandwidth", "floor", "since_last", "notes")
        rows = [dict(zip(("cause", "op", "path", "lost"), row, strict=True)) for row in self.charges]
        return {name: getattr(self, name) for name in names} | {"charges": rows}

    def to_text(self) -> str:
        whole = self.makespan

        def line(name: str, ns: float, more: str = "") -> str:
            return f"{name:<10}{ns / 1e3:>z10.1f} µs{ns / whole:>z8.1%}{more}"

        lines = [self.label, f"step {self.step}, {whole / 1e3:.1f} µs", line(BYTES, self.floor, f"   {self.read}")]
        for cause, path, lost in self.by_cause():
            most = ", ".join(f"{op} {ns / 1e3:.1f}" for op, ns in self.most(cause))
            lines.append(line(cause, lost, f"   of {path / 1e3:.1f} on the path" + (f": {most}" if most else "")))
        if self.since_last is not None:
            lines.append(f"and {self.since_last / 1e3:.1f} µs since the step before")
        return "\n".join([*lines, *self.notes])


def waterfall(
    source: Snapshot | Source | Trace | str | Path, step: int | None = None, machine: Machine | None = None
) -> Waterfall:
    """Of a step (its number; default: the whole one of median time).  ``machine``: by default what the source's label names.

    Raises MkvizError for a step that is not there, lost records, takes no time or reads nothing, for a source whose machine
    nobody measured, and for a trace that was cut to some SMs, ops or times.
    """
    from mkviz.replayable import Replayable

    of = Replayable.of(source, machine)
    step = of.median() if step is None else step
    if of.machine is None:
        raise MkvizError(f"{of.label or 'the source'} names no machine whose memory was measured", "machine=Machine(...)")
    for records in steps_of(of.steps, step):
        before = [info.end for info in of.infos if info.step == step - 1]
        found = waterfall_of(records, of.machine, of.label)
        return replace(found, since_last=records.begin - before[0] if before else None)
    raise MkvizError(f"step {step} is not there", "a step that the source holds")


def waterfall_of(step: StepRecords, machine: Machine, label: str = "") -> Waterfall:
    """The same of one step's records.  The ring has as many chunks as its readings tell, else as many as the machine says."""
    if step.lost:
        raise MkvizError(f"step {step.step} lost {step.lost} records", "a whole step")
    if not step.makespan:
        raise MkvizError(f"step {step.step} takes no time", "a step that does")
    found, stages = blame_of(step, chain=False), stages_told(step.events["fill"])
    came = landings(step, stages * machine.chunk_bytes if stages else machine.ring_bytes)
    if not came.bytes:
        raise MkvizError(f"step {step.step} reads no bytes that its graph counts", "a step that does")
    segments = found.segments
    landed = landed_in([(0, came)], 0, np.append(segments["begin"], step.makespan).astype(np.int64))
    lost = (segments["end"] - segments["begin"]) - landed * (1e9 / machine.bandwidth)
    sums: dict[tuple[str, str], list[float]] = {}
    for begin, end, cause, task, ns in zip(*(segments[n].tolist() for n in ("begin", "end", "cause", "task")), lost.tolist(),
                                           strict=True):  # fmt: skip
        op = step.graph.ops[step.graph.op[task]] if task >= 0 else ""
        charge = sums.setdefault((CAUSES[cause], op), [0, 0.0])
        charge[0] += end - begin
        charge[1] += ns
    charges = sorted(((*key, int(path), ns) for key, (path, ns) in sums.items()), key=lambda row: (-row[3], *row[:2]))
    notes = [] if came.dated else ["no reading of a ring of known size: bytes count evenly while their task runs"]
    return Waterfall(label, step.step, step.makespan, came.bytes, machine.bandwidth, charges, notes=notes)
