"""Moves: the ways keys and clicks lead from what a session shows to what it shows next."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from mkviz.dashboard import probe

if TYPE_CHECKING:
    from mkviz.dashboard.session import Session


def fit(session: Session, everything: bool) -> None:
    """Fit the pinned task with its wait, or the measured range, or all that is kept."""
    if session.scene is None:
        return
    snapshot, at = session.scene.snapshot, session.pinned_hit()
    if everything or (at is None and session.range is None):
        session.go(*session.snapshot().extent)
    elif at is not None:
        begin, end = (float(c[at.row] - snapshot.origin) for c in (snapshot.begin, snapshot.end))
        around = 4 * (end - begin)
        session.go(min(at.free, begin) - around, end + around)
    else:
        session.go(*session.range)


def along_lane(session: Session, direction: int) -> None:
    """Pin the next (1) or previous (-1) task of the pinned one's lane, through steps, and keep it in view."""
    at = session.pinned_hit()
    if at is None:
        return
    snapshot, step, row = session.scene.snapshot, at.step, at.row + direction
    while 0 <= step < len(snapshot.steps):
        first, stop = snapshot.lane_ptr[step, at.lane : at.lane + 2]
        if first <= row < stop:
            break
        step += direction
        if 0 <= step < len(snapshot.steps):
            row = int(snapshot.lane_ptr[step, at.lane] if direction > 0 else snapshot.lane_ptr[step, at.lane + 1] - 1)
    else:
        return
    session.pinned = session.identity(step, row)
    begin, end = (float(c[row] - snapshot.origin) for c in (snapshot.begin, snapshot.end))
    if begin < session.x0 or end > session.x1:
        half = (session.x1 - session.x0) / 2
        session.go((begin + end) / 2 - half, (begin + end) / 2 + half)


def along_steps(session: Session, direction: int) -> None:
    """Show the step after (1) or before (-1) the one in the middle of the view."""
    if session.scene is None:
        return
    snapshot = session.snapshot()
    begin = snapshot.steps["begin"] - snapshot.origin
    middle = np.searchsorted(begin, (session.x0 + session.x1) / 2, side="right") - 1
    show_step(session, int(snapshot.steps["step"][np.clip(middle + direction, 0, len(begin) - 1)]))


def show_step(session: Session, number: int) -> None:
    """Show one step."""
    snapshot = session.snapshot()
    at = snapshot.index_of(number) if snapshot else -1
    if at < 0:
        return
    begin, end = (float(snapshot.steps[k][at] - snapshot.origin) for k in ("begin", "end"))
    session.go(begin - 0.02 * (end - begin), end + 0.02 * (end - begin))


def show(session: Session, number: int, task: int) -> None:
    """Pin and show a task of a step; the whole step for task -1."""
    if task < 0:
        show_step(session, number)
    else:
        session.pinned = number, task
        fit(session, everything=False)


def next_match(session: Session) -> None:
    """Pin and show the next task that matches the search, from the pinned one or the middle of the view on."""
    if session.scene is None:
        return
    scene = replace(session.scene, look=session.look)  # the search may be newer than the last frame
    if scene.matches is None:
        return
    at = session.pinned_hit()
    start = scene.snapshot.begin[at.row] - scene.snapshot.origin if at else (session.x0 + session.x1) / 2
    found = probe.next_match(scene, float(start))
    if found is not None:
        session.pinned = session.identity(*found)
        fit(session, everything=False)
