"""Faults: what is wrong with records, counted alike by every analysis, and what a source cannot tell for want of data."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mkviz.record import FLAG_BYTES_LAST, NO_WAIT
from mkviz.step_records import broken

if TYPE_CHECKING:
    from mkviz.graph import Graph
    from mkviz.step_records import LaneTimes, StepRecords

FAULTS_OF_LANES = ("broken", "repeated", "overlapping", "clipped")
FAULTS = ("lost", "strays", *FAULTS_OF_LANES)


def in_turn(graph: Graph) -> bool:
    """Whether an SM computes one task at a time, or as many as ``graph.meta["teams"]`` says."""
    return graph.meta.get("teams", 1) == 1


class Faults:
    """Adds up the faults of steps.

    ``counts`` are of records, nothing of which is dropped in silence: *lost* (their steps are unknown as a whole), *strays*
    among them (no such SM or task), *broken* (end missing or before begin, or a time that did not fit), *repeated* (a task's
    second record in a step), *overlapping* (begun before the task before it had ended, where an SM does one at a time: the
    shared time counts once) and *clipped* (not all within their step).  ``steps`` were seen, ``lossy`` of them had lost
    records; ``waits``, ``bytes``: whether any has dependencies, or bytes.
    """

    def __init__(self, steps: int = 0, lossy: int = 0, waits: bool = False, bytes: bool = False):
        self.counts = dict.fromkeys(FAULTS, 0)
        self.steps, self.lossy = steps, lossy
        self.waits, self.bytes = waits, bytes

    def add(self, step: StepRecords) -> None:
        self.steps += 1
        self.lossy += step.lost > 0
        self.counts["lost"] += step.lost
        self.counts["strays"] += step.strays
        self.of_lanes(step.lanes, step.events, step.begin, step.end, in_turn(step.graph))
        self.waits |= len(step.graph.wait_counter) > 0 or bool((step.events["last_wait"] != NO_WAIT).any())
        self.bytes |= bool(step.graph.bytes.any()) or bool((step.events["flags"] & FLAG_BYTES_LAST).any())

    def of_lanes(self, at: LaneTimes, events: np.ndarray, begin, end, in_turn: bool | np.ndarray = True) -> None:
        """Those that show on lanes; ``begin`` and ``end`` of the step or, i64[k], of the step of each record; ``in_turn``, or
        bool[k]: whether its SM computes one task at a time."""
        outside = (events["begin"] < begin) | (events["end"] > end) | (events["begin"] > end)
        is_broken = broken(events)
        self.counts["broken"] += int(is_broken.sum())
        self.counts["repeated"] += int((~at.sound & ~is_broken).sum())
        self.counts["overlapping"] += int((at.sound & (at.begin < at.free) & in_turn).sum())
        self.counts["clipped"] += int(outside.sum())

    def notes(self, waits: str = "", bytes: str = "", lost: str = "") -> list[str]:
        """What the steps could not tell: ``waits`` is said of those without dependencies, ``bytes`` of those without bytes, and
        ``lost`` what became of the steps that lost records."""
        if not self.steps:
            return ["no steps"]
        out = []
        if lost and self.lossy:
            out.append(f"of {self.steps} steps {self.lossy} lost records and {'is' if self.lossy == 1 else 'are'} {lost}")
        if waits and not self.waits:
            out.append(f"no dependencies: {waits}")
        if bytes and not self.bytes:
            out.append(f"no bytes: {bytes}")
        return out
