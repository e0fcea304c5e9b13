"""Request table: the requests of a range, what they waited for and got."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mkviz.dashboard.units import duration
from mkviz.request_times import clock_shift, last_time, percentile, request_times, steps_of
from mkviz.table import Table

if TYPE_CHECKING:
    from mkviz.dashboard.scene import Scene

MOST = 100  # of a range, the newest, that are listed


def requests(scene: Scene, x0: float, x1: float) -> Table:
    """The requests that touch the range, newest first; each row is of the whole request and leads to its first step.  The
    caption has the percentiles of all of them, of the ITL over all their tokens alike."""
    snapshot, shift = scene.snapshot, clock_shift(scene.snapshot)
    low, high = snapshot.origin + shift + x0, snapshot.origin + shift + x1
    everyone = request_times(snapshot)
    found = [t for t in everyone if t.changes[0].time < high and (t.ended is None or t.ended > low)]
    until, steps = last_time(everyone), steps_of(snapshot.infos)
    columns = {"request": "", "state": "", "prompt": "n", "made": "n", "queued": "ns", "TTFT": "ns", "ITL p50": "ns",
               "p99": "ns"}  # fmt: skip
    table = Table(columns, caption=_caption(found))
    for t in found[-MOST:][::-1]:
        queued = None if t.arrived is None else t.time_in("queued", until)
        table.values.append([t.request, t.now.state, t.now.prompt_tokens, t.generated, queued, t.ttft,
                             percentile(t.itl, 50), percentile(t.itl, 99)])  # fmt: skip
        table.goes_to.append((steps.get(t.request, [-1])[0], -1))
    return table


def _caption(found: list) -> str:
    if not found:
        return "no request in it"
    ttft = [t.ttft for t in found if t.ttft is not None]
    itl = np.concatenate([t.itl for t in found])
    parts = [f"{len(found)} requests" if len(found) > 1 else "1 request"]
    for name, values in (("TTFT", ttft), ("ITL", itl)):
        if len(values):
            p50, p99 = (duration(percentile(values, q)) for q in (50, 99))
            parts.append(f"{name} p50 {p50}, p99 {p99}")
    if len(found) > MOST:
        parts.append(f"the newest {MOST} are listed")
    return " · ".join(parts)
