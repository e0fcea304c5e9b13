"""Leads: addresses of the timeline's page that show a step or a task."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlencode

from mkviz.dashboard import probe

if TYPE_CHECKING:
    import numpy as np

    from mkviz.store import Snapshot

AROUND = 4  # lengths of a task that are shown on both sides of it, as the key f does
MARGIN = 0.02  # of a step, beside it


def to_task(home: str, source: str, snapshot: Snapshot, step: int, task: int) -> str:
    """The address that pins a task and fits it, or (task -1, or one without a record) shows its step."""
    hit = probe.find(snapshot, step, task) if task >= 0 else None
    if hit is None:
        return to_steps(home, source, snapshot, [step])
    begin, end = (float(column[hit.row]) - snapshot.origin for column in (snapshot.begin, snapshot.end))
    around = AROUND * (end - begin)
    return _address(home, source, min(hit.free, begin) - around, end + around, pin=f"{step}.{task}")


def to_steps(home: str, source: str, snapshot: Snapshot, steps: np.ndarray | list[int]) -> str:
    """The address that shows steps, from the first to the last of them that is kept."""
    kept = [at for at in (snapshot.index_of(int(step)) for step in (min(steps), max(steps))) if at >= 0] if len(steps) else []
    if not kept:
        return home + "?" + urlencode({"source": source})
    begin = float(snapshot.steps["begin"][kept[0]]) - snapshot.origin
    end = float(snapshot.steps["end"][kept[-1]]) - snapshot.origin
    return _address(home, source, begin - MARGIN * (end - begin), end + MARGIN * (end - begin))


def _address(home: str, source: str, x0: float, x1: float, **more: str) -> str:
    return home + "?" + urlencode({"source": source, "range": f"{x0 / 1000:.3f}-{x1 / 1000:.3f}", **more})
