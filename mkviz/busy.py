"""Occupancy: how many SMs work on which op, and what they read, over time; docs/analyses.md has the formulae."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from mkviz.accounting import is_large, refuse_thinned
from mkviz.errors import MkvizError
from mkviz.faults import Faults
from mkviz.landings import Landings, landings
from mkviz.machine import Machine, named_in
from mkviz.step_records import steps_of

if TYPE_CHECKING:
    import pandas as pd
    from bokeh.plotting import figure

    from mkviz.protocols import Source
    from mkviz.store import Snapshot
    from mkviz.trace import Trace


@dataclass
class Occupancy:
    """Over bins between ``edges`` (i64[n + 1], ns since ``origin``, the begin of the first step).

    ``busy`` i64[ops, n]: SM time of each op in each bin, ns, exact: together they are the accounting's compute.  ``bytes``
    f64[n]: what landed, ``read`` in all, of which ``dated`` by readings of the ring's fill, the rest evenly while its task ran.
    ``ceiling``: bytes/s that the machine was measured to reach, None where nobody measured it.
    """

    origin: int
    edges: np.ndarray
    ops: tuple[str, ...]
    sms: int
    busy: np.ndarray
    bytes: np.ndarray
    read: int
    dated: float
    label: str = ""
    ceiling: float | None = None
    faults: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @property
    def width(self) -> np.ndarray:
        """i64[n]: ns of each bin."""
        return np.diff(self.edges)

    def frame(self) -> pd.DataFrame:
        """A row for each bin and op that ran in it: begin, end (ns since origin), op, ns (SM time), ``busy`` (mean SMs)."""
        import pandas as pd

        at, op = np.nonzero(self.busy.T)
        ns = self.busy.T[at, op]
        return pd.DataFrame({
            "begin": self.edges[at], "end": self.edges[at + 1], "op": np.array(self.ops, object)[op], "ns": ns,
            "busy": ns / self.width[at],
        })  # fmt: skip

    def rate(self) -> pd.DataFrame:
        """A row for each bin: begin, end (ns since origin), bytes, gb_s, ``share`` of the ceiling (NaN without one)."""
        import pandas as pd

        gb_s = self.bytes / np.maximum(self.width, 1)
        share = gb_s * 1e9 / self.ceiling if self.ceiling else np.full(len(gb_s), np.nan)
        edges = {"begin": self.edges[:-1], "end": self.edges[1:]}
        return pd.DataFrame({**edges, "bytes": self.bytes, "gb_s": gb_s, "share": share})

    def plot(self, dark: bool = False) -> figure:
        """Busy SMs over time, by op."""
        from mkviz import palette, plots

        ran = np.flatnonzero(self.busy.any(axis=1))
        colours = [palette.op_colours(self.ops)[i] for i in ran]
        rows = {self.ops[i]: self.busy[i] / self.width for i in ran}
        head = plots.Head("busy SMs by op", self.label, self.notes)
        return plots.areas(self.edges, rows, colours, head, f"busy SMs of {self.sms}", dark, ("all SMs", self.sms))

    def plot_bytes(self, dark: bool = False) -> figure:
        """What landed over time, in GB/s, beside the ceiling."""
        from mkviz import palette, plots

        line = (f"ceiling {self.ceiling / 1e9:,.0f} GB/s", self.ceiling / 1e9) if self.ceiling else None
        rows = {"bytes landed": self.bytes / np.maximum(self.width, 1)}
        head = plots.Head("bytes that landed", self.label, self.notes)
        return plots.areas(self.edges, rows, [palette.READS[dark]], head, "GB/s", dark, line)


def occupancy(
    source: Snapshot | Source | Trace | str | Path, steps=None, bins: int = 400, machine: Machine | None = None
) -> Occupancy:
    """Over all steps of a source, from the begin of the first to the end of the last, or of some (``steps``: one or several).

    ``machine`` gives the ceiling and the size of the ring; by default the one that the source's label names, if anybody
    measured it.  Steps that lost records are left out, as ``notes`` tells.  Raises MkvizError for a step that is not there.
    """
    if bins < 1:
        raise MkvizError(f"bins {bins}", "1 or more")
    if isinstance(source, str | Path):
        from mkviz.trace import Trace

        source = Trace.open(source)
    label = getattr(source, "label", "")
    machine = machine or named_in(label)
    ring_bytes = machine.ring_bytes if machine else 0
    if is_large(source, steps):
        from mkviz.busy_sweep import binned

        found, faults = binned(source, steps, bins, ring_bytes)
    else:
        found, faults = _binned(source, steps, bins, ring_bytes)
    notes = faults.notes(bytes="there is no rate", lost="left out")
    try:
        refuse_thinned(source)
    except MkvizError as error:
        notes.insert(0, f"{error.what}: SMs at work and bytes are of these only")
    if found.read and not found.dated:
        notes.append("no reading of a ring of known size: bytes count evenly while their task runs")
    elif found.read > found.dated:
        share = f"{1 - found.dated / found.read:.0%}"
        notes.append(f"{share} of the bytes, on SMs without a reading of the ring, count evenly while their task runs")
    ceiling = machine.bandwidth if machine else None
    return replace(found, label=label, ceiling=ceiling, faults=faults.counts, notes=notes)


def _binned(source, steps, bins: int, ring_bytes: int) -> tuple[Occupancy, Faults]:
    """What records say, and what is wrong with them."""
    ops: dict[str, int] = {}
    faults, spans, landed, bounds, sms = Faults(), [], [], [], 0
    for step in steps_of(source, steps):
        faults.add(step)
        bounds.append((step.begin, step.end))
        sms = max(sms, step.sms)
        op_of = np.array([ops.setdefault(op, len(ops)) for op in step.graph.ops], np.uint8)
        if not step.lost:
            begin, end = np.maximum(step.lanes.begin, step.lanes.free), step.lanes.end
            ran = step.lanes.sound & (end > begin)
            op = op_of[step.graph.op[step.events["task"]]]
            spans.append((begin[ran] + step.begin, end[ran] + step.begin, op[ran]))
            landed.append((step.begin, landings(step, ring_bytes)))
    origin, end = (min(b for b, _ in bounds), max(e for _, e in bounds)) if bounds else (0, 0)
    edges = edges_of(origin, end, bins)
    busy = np.zeros((len(ops), len(edges) - 1), np.int64)
    if spans:
        start, stop, op = (np.concatenate(part) for part in zip(*spans, strict=True))
        for i in range(len(ops)):
            busy[i] = np.diff(until(start[op == i] - origin, stop[op == i] - origin, edges))
    read, dated = (sum(getattr(part, name) for _, part in landed) for name in ("bytes", "dated"))
    return Occupancy(origin, edges, tuple(ops), sms, busy, landed_in(landed, origin, edges), read, dated), faults


def edges_of(origin: int, end: int, bins: int) -> np.ndarray:
    """i64[n + 1]: of at most ``bins`` bins from origin to end, ns since origin."""
    if end <= origin:
        return np.array([0, 1])
    return np.unique([(end - origin) * i // bins for i in range(bins + 1)]).astype(np.int64)


def until(start: np.ndarray, stop: np.ndarray, at: np.ndarray) -> np.ndarray:
    """i64 for each time ``at``: ns of all intervals start ... stop (i64) before it, exactly."""
    out = np.zeros(len(at), np.int64)
    for times, sign in ((start, 1), (stop, -1)):
        times = np.sort(times)
        before = np.searchsorted(times, at)
        # sums may wrap around on their way; what is left in the end fits
        out += sign * (at * before - np.append(0, np.cumsum(times))[before])
    return out


def landed_in(parts: list[tuple[int, Landings]], origin: int, edges: np.ndarray) -> np.ndarray:
    """f64[bins]: bytes that landed in each; ``parts``: (when a step began, its landings).  Those before the first edge are in
    the first bin, those after the last one in the last."""
    if not parts:
        return np.zeros(len(edges) - 1)
    start = np.maximum(np.concatenate([part.start + (since - origin) for since, part in parts]), 0.0)
    stop = np.maximum(np.concatenate([part.stop + (since - origin) for since, part in parts]), start + 1e-3)
    rate = np.concatenate([part.size for _, part in parts]) / (stop - start)
    out = np.zeros(len(edges))
    for times, sign in ((start, 1), (stop, -1)):
        order = np.argsort(times)
        before = np.searchsorted(times[order], edges)
        total, moment = (np.append(0, np.cumsum(v[order])) for v in (rate, rate * times))
        out += sign * (edges * total[before] - moment[before])
    out[-1] = np.concatenate([part.size for _, part in parts]).sum()
    return np.maximum(np.diff(out), 0)
