"""StuckStep: says who waits for whom when a launch was given up."""

from __future__ import annotations

import numpy as np

from engine.cuda.abi import NO_COUNTER
from engine.cuda.program import VECTOR
from mkviz.errors import MkvizError
from mkviz.graph import Graph
from mkviz.schedule import Schedule

ROLES = ("loader", "feeder", "math", "storer")
SHOWN = 3  # producers named of a counter whose producers wait for nothing; waits named at either end of a chain


class StuckStep(MkvizError):
    """A wait ran out of polls.  The message says which task on which SM waited for which counter, and who should raise it."""

    exit_code = 1


def stuck_step(graph: Graph, schedule: Schedule, abort: np.void, counters: np.ndarray, epoch: int) -> StuckStep:
    """The error for an ``ABORT`` that the kernel left, with all ``counters`` u32[C] as they stand and the steps they had seen.

    The wait that gave up need not be the one that began it, so its counter is followed back: to a producer that is not
    scheduled, waits itself, or stands in its SM's list behind a task that waits, to what that waits for, and so on.
    """
    task, counter, step = int(abort["task"]), int(abort["counter"]), epoch + int(abort["step"])
    who = f"SM {abort['sm']} {ROLES[int(abort['role'])]}"
    what = f"{graph.label(task)} (task {task})" if task < len(graph) else "the next step"
    if counter == NO_COUNTER:
        return StuckStep(f"step stuck: {what} on {who} waits for another role of its block", "report this with the trace")
    if task >= len(graph):
        step -= 1  # it waits for the step before to end
    sm_of, arrivals = schedule.sm_of(len(graph)), graph.arrivals

    def arrived(c: int) -> int:
        """Arrivals of the step: the counter's word, which wraps, less those of the steps before."""
        return (int(counters[c]) - step * int(arrivals[c])) & 0xFFFFFFFF

    def where(t: int) -> str:
        return f"{graph.label(t)} on {f'SM {sm_of[t]}' if sm_of[t] >= 0 else 'no SM'}"

    def unmet(t: int) -> int | None:
        return next((c for c, need in graph.waits(t) if arrived(c) < need), None)

    def held_up(raisers: list[int]) -> tuple[str, int] | None:
        """Of the first that waits, or whose SM is at a task before it that does: who that is, and the counter."""
        for t in raisers:
            if (c := unmet(t)) is not None:
                return where(t), c
        for t in raisers:
            for before in schedule.tasks_of(sm_of[t]).tolist():
                if before == t:
                    break
                if graph.ops[graph.op[before]] not in VECTOR and (c := unmet(before)) is not None:
                    return f"{where(t)} behind {graph.label(before)}", c
        return None

    counters = counters.copy()
    counters[counter] = abort["value"]  # as the wait saw it
    hops, followed, (ptr, producers) = [], {counter}, graph.producers
    while True:
        at = f"{graph.counters[counter]}: {arrived(counter)} of {arrivals[counter]}"
        raisers = producers[ptr[counter] : ptr[counter + 1]].tolist()
        missing = next((t for t in raisers if sm_of[t] < 0), None)
        blocked = None if missing is not None else held_up(raisers)
        again = blocked is not None and blocked[1] in followed
        remedy = "check the schedule (mkviz schedule check)"
        if missing is not None:
            by, remedy = where(missing), "give every task to an SM"
        elif blocked is not None:
            by = f"{blocked[0]}, which waits for" + f" {graph.counters[blocked[1]]} again" * again
        else:
            more = f" and {len(raisers) - SHOWN} more" if len(raisers) > SHOWN else ""
            by = ", ".join(where(t) for t in raisers[:SHOWN]) + more
        hops.append(f"{at}; raised by {by}")
        if blocked is None or again:
            break
        counter = blocked[1]
        followed.add(counter)
    if len(hops) > 2 * SHOWN:
        hops[SHOWN:-SHOWN] = [f"… {len(hops) - 2 * SHOWN} more such waits …"]
    return StuckStep(f"step stuck: {what} on {who} waits for counter {' '.join(hops)}", remedy)
