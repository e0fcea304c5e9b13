"""Wave tails: of every op and layer of a step, how its last wave ended: who finished last, how long the other SMs stood idle
until then, and how much of that time other work filled; docs/analyses.md has the formulae."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from mkviz.accounting import is_large, refuse_thinned
from mkviz.busy import until
from mkviz.errors import MkvizError
from mkviz.faults import Faults
from mkviz.step_records import StepRecords, steps_of

if TYPE_CHECKING:
    import pandas as pd
    from bokeh.plotting import figure

    from mkviz.protocols import Source
    from mkviz.store import Snapshot
    from mkviz.trace import Trace

PARTS = tuple(f"{where}_{what}" for where in ("lead", "gap", "tail", "absent") for what in ("idle", "filled"))
TIMES = ("compute", *PARTS, "unknown")
KEYS = ("step", "op", "layer")
WAVE = np.dtype([
    *((name, "<i8") for name in ("step", "op", "layer", "tasks", "sms", "begin", "end", "area", *TIMES)),
])  # fmt: skip
"""An op of a layer in a step: its tasks, the SMs that ran any, when it began and ended (ns since the step began), and where the
``area`` = (end - begin) x all SMs of the step went, ns.  ``op`` is an index into ``WaveTails.ops``."""
FINISHER = np.dtype([(name, "<i8") for name in ("step", "op", "layer", "rank", "task", "sm", "end", "late")])
RANKS = 3  # SMs that finish last, of every wave


@dataclass
class WaveTails:
    """``waves`` WAVE[n]; ``finishers`` FINISHER[m]: of each the RANKS SMs that finished last, with their last task of it, its
    end (ns since the step began) and how ``late`` that was after half of the SMs had finished."""

    label: str
    ops: tuple[str, ...]
    waves: np.ndarray
    finishers: np.ndarray
    faults: dict[str, int]
    notes: list[str] = field(default_factory=list)

    def frame(self) -> pd.DataFrame:
        """The waves, and ``waves``: tasks per SM that ran any, ``loss``: the share of ceil(waves) x SMs slots left empty."""
        out = self._named(self.waves)
        out["waves"], out["loss"] = self.waves["tasks"] / np.maximum(self.waves["sms"], 1), _loss(self.waves)
        return out

    def by(self, *keys: str) -> pd.DataFrame:
        """A row for each value of ``keys`` (any of step, op, layer; none: one row), largest idle tail first: ``groups``, how
        many waves; sums of ``tasks``, ``area`` and of its parts, ns; ``loss``, of all slots together.  Raises MkvizError for
        another key."""
        import pandas as pd

        if not set(keys) <= set(KEYS):
            raise MkvizError(f"tails by {', '.join(keys)}", f"any of {', '.join(KEYS)}")
        rows = self._named(self.waves)
        rows["groups"], rows["slots"] = 1, _slots(self.waves)
        names = ["groups", "tasks", "area", *TIMES, "slots"]
        out = rows.groupby(list(keys), sort=True)[names].sum().reset_index() if keys else pd.DataFrame(rows[names].sum()).T
        out["loss"] = 1 - out["tasks"] / out.pop("slots").clip(lower=1)
        return out.sort_values("tail_idle", ascending=False, kind="stable", ignore_index=True)

    def last(self, *keys: str) -> pd.DataFrame:
        """Who finished last: a row for each value of ``keys`` (of op, layer, task, sm; op and sm unless given), most often
        first: ``times``, and ``late``, ns after half of the SMs had finished, in all."""
        keys = keys or ("op", "sm")
        if not set(keys) <= {"op", "layer", "task", "sm"}:
            raise MkvizError(f"last finishers by {', '.join(keys)}", "any of op, layer, task, sm")
        rows = self._named(self.finishers[self.finishers["rank"] == 0])
        rows["times"] = 1
        out = rows.groupby(list(keys), sort=True)[["times", "late"]].sum().reset_index()
        return out.sort_values(["times", "late"], ascending=False, kind="stable", ignore_index=True)

    def plot(self, by: str = "op", dark: bool = False) -> figure:
        """Where SM time went between begin and end of each op (or layer, or step)."""
        from mkviz import palette, plots

        rows = self.by(by)
        rows["other work"] = sum(rows[name] for name in PARTS if name.endswith("filled"))
        names = {"compute": "compute", "other work": "filled", "lead_idle": "hop", "gap_idle": "wait", "tail_idle": "tail",
                 "absent_idle": "overhead", "unknown": "unknown"}  # fmt: skip
        if by == "op":
            rows = rows.sort_values("area", ascending=False, kind="stable")
        else:
            rows = rows.sort_values(by)
        rows = rows.rename(columns={name: name.replace("_", ", ") for name in names})
        colours = {name.replace("_", ", "): palette.CAUSES[cause] for name, cause in names.items()}
        head = plots.Head("SM time from begin to end of each op and layer", self.label, self.notes)
        return plots.stacked(rows, by, tuple(colours), head, "SM time", dark, colours)

    def _named(self, rows: np.ndarray) -> pd.DataFrame:
        import pandas as pd

        out = pd.DataFrame({name: rows[name] for name in rows.dtype.names})
        out["op"] = np.array([*self.ops, ""], object)[out["op"]]
        return out


def _slots(waves: np.ndarray) -> np.ndarray:
    sms = np.maximum(waves["sms"], 1)
    return -(-waves["tasks"] // sms) * sms


def _loss(waves: np.ndarray) -> np.ndarray:
    return 1 - waves["tasks"] / np.maximum(_slots(waves), 1)


def tails(source: Snapshot | Source | Trace | str | Path, steps=None) -> WaveTails:
    """The waves of all steps of a source, or of some (``steps``: one or several); steps that lost records are left out, as
    ``notes`` tells.

    Raises MkvizError for a trace that was cut to some SMs, ops or times, and for a step that is not there.
    """
    if isinstance(source, str | Path):
        from mkviz.trace import Trace

        source = Trace.open(source)
    refuse_thinned(source)
    label = getattr(source, "label", "")
    if is_large(source, steps):
        from mkviz.wave_sweep import waves_of

        *found, faults = waves_of(source, steps)
        return WaveTails(label, *found, faults.counts, faults.notes(lost="left out"))
    ops: dict[str, int] = {}
    faults, waves, finishers = Faults(), [np.zeros(0, WAVE)], [np.zeros(0, FINISHER)]
    for step in steps_of(source, steps):
        faults.add(step)
        op_of = np.array([ops.setdefault(op, len(ops)) for op in step.graph.ops], np.int64)
        if not step.lost and step.lanes.sound.any():
            of_step, last = _of_step(step, op_of)
            waves.append(of_step)
            finishers.append(last)
    notes = faults.notes(lost="left out")
    return WaveTails(label, tuple(ops), np.concatenate(waves), np.concatenate(finishers), faults.counts, notes)


class _Spent:
    """ns of intervals (lane, start, stop: i64[n]; ascending by lane, then start) of which no two of a lane overlap."""

    def __init__(self, lane: np.ndarray, start: np.ndarray, stop: np.ndarray, apart: int):
        self._start, self._stop, self._apart = start, stop, apart
        self._key, self._length = lane * apart + start, stop - start
        self._before = np.cumsum(self._length) - self._length

    def until(self, lane: np.ndarray, time: np.ndarray) -> np.ndarray:
        """i64: before times on lanes; counted from the first lane on, so that differences on one lane mean something."""
        if not len(self._key):
            return np.zeros(len(lane), np.int64)
        key = lane * self._apart + time
        at = np.searchsorted(self._key, key, "right") - 1
        return np.where(at < 0, 0, self._before[at] + np.clip(key - self._key[at], 0, self._length[at]))

    def everywhere(self, begin: np.ndarray, end: np.ndarray) -> np.ndarray:
        """i64: between times, on all lanes together."""
        return until(self._start, self._stop, end) - until(self._start, self._stop, begin)


def _doubt(step: StepRecords) -> _Spent:
    """The time that the accounting calls unknown."""
    at, sm = step.lanes, step.events["sm"].astype(np.int64)
    rows, ends = np.flatnonzero(at.doubt & at.sound & (at.begin > at.free)), np.flatnonzero(at.open_end)
    lane, start = np.append(sm[rows], ends), np.append(at.free[rows], at.left[ends])
    stop = np.append(at.begin[rows], np.full(len(ends), step.makespan))
    order = np.lexsort((start, lane))
    return _Spent(lane[order], start[order], stop[order], step.makespan + 1)


def _of_step(step: StepRecords, op_of: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    lanes, graph, rows = step.lanes, step.graph, np.flatnonzero(step.lanes.sound)
    sm, task = step.events["sm"][rows].astype(np.int64), step.events["task"][rows].astype(np.int64)
    start = np.maximum(lanes.begin, lanes.free)[rows]
    stop = np.maximum(lanes.end[rows], start)
    busy, doubt = _Spent(sm, start, stop, step.makespan + 1), _doubt(step)
    op, layer = op_of[graph.op[task]], graph.layer[task].astype(np.int64)
    order = np.lexsort((stop, sm, layer, op))  # by wave, then SM, the last of each SM last
    op, layer, sm, task, start, stop = (a[order] for a in (op, layer, sm, task, start, stop))
    new_wave = np.append(True, (op[1:] != op[:-1]) | (layer[1:] != layer[:-1]))
    wave, pair = np.flatnonzero(new_wave), np.flatnonzero(new_wave | np.append(True, sm[1:] != sm[:-1]))
    of_pair = np.cumsum(new_wave)[pair] - 1  # the wave of each pair of wave and SM
    begin, end = np.minimum.reduceat(start, wave), np.maximum.reduceat(stop, wave)
    first, last, on = np.minimum.reduceat(start, pair), np.maximum.reduceat(stop, pair), sm[pair]
    own = np.add.reduceat(stop - start, pair)
    times = (begin[of_pair], first, last, end[of_pair])
    whole = np.diff(times, axis=0)  # until its first task, from there to the end of its last, and from there on
    filled, unknown = (np.diff([spent.until(on, time) for time in times], axis=0) for spent in (busy, doubt))
    whole[1] -= own
    filled[1] -= own
    pairs = np.flatnonzero(np.append(True, of_pair[1:] != of_pair[:-1]))
    out = np.zeros(len(wave), WAVE)
    out["step"], out["op"], out["layer"], out["begin"], out["end"] = step.step, op[wave], layer[wave], begin, end
    out["tasks"], out["sms"] = np.diff(np.append(wave, len(op))), np.diff(np.append(pairs, len(pair)))
    out["area"], out["compute"] = (end - begin) * step.sms, np.add.reduceat(own, pairs)
    for i, where in enumerate(("lead", "gap", "tail")):
        out[f"{where}_filled"] = np.add.reduceat(filled[i], pairs)
        out[f"{where}_idle"] = np.add.reduceat(whole[i] - filled[i] - unknown[i], pairs)
    out["unknown"] = doubt.everywhere(begin, end)
    elsewhere = busy.everywhere(begin, end) - np.add.reduceat(filled.sum(0) + own, pairs)
    unknown_there = out["unknown"] - np.add.reduceat(unknown.sum(0), pairs)
    out["absent_filled"] = elsewhere
    out["absent_idle"] = (step.sms - out["sms"]) * (end - begin) - elsewhere - unknown_there
    return out, _finishers(out, of_pair, on, last, task[np.append(pair[1:], len(op)) - 1])


def _finishers(waves: np.ndarray, of_pair: np.ndarray, sm: np.ndarray, last: np.ndarray, task: np.ndarray) -> np.ndarray:
    """FINISHER of the SMs of each wave (``of_pair``: which), given when the last task of each ended."""
    order = np.lexsort((sm, -last, of_pair))
    of_pair, first = of_pair[order], np.cumsum(waves["sms"]) - waves["sms"]
    half = last[order][first + waves["sms"] // 2]  # latest first: with this one, half of them or more have finished
    rank = np.arange(len(order)) - first[of_pair]
    kept = rank < RANKS
    of_pair, order = of_pair[kept], order[kept]
    out = np.zeros(len(order), FINISHER)
    for name in ("step", "op", "layer"):
        out[name] = waves[name][of_pair]
    out["rank"], out["task"], out["sm"], out["end"] = rank[kept], task[order], sm[order], last[order]
    out["late"] = out["end"] - half[of_pair]
    return out
