"""Pointer: what hovering over the timeline and clicking on it do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mkviz.dashboard import probe, role_bars

if TYPE_CHECKING:
    from mkviz.dashboard.session import Session


def hover(session: Session, time: float, y: float) -> None:
    """Tell what is at ``time`` (ns since origin) and height ``y`` of the timeline, and light the step's token."""
    scene, timeline = session.scene, session.panels.timeline
    if scene is None:
        return
    lane, role = timeline.lane_at(y), timeline.role_at(y)
    text = "" if lane < 0 else probe.tip(scene, time, lane) if role is None else role_bars.tip(scene, time, lane, role)
    if text != timeline.tip.data["html"][0]:
        timeline.tip.data = {"html": [text]}
    step = scene.snapshot.step_at(time)
    session.panels.chat.light(int(scene.snapshot.steps["step"][step]) if step >= 0 else -1)


def leave(session: Session) -> None:
    session.panels.timeline.tip.data = {"html": [""]}
    session.panels.chat.light(-1)


def tap(session: Session, time: float, y: float) -> None:
    """Pin the task there, or nothing."""
    scene, timeline = session.scene, session.panels.timeline
    if scene is None:
        return
    lane, role = timeline.lane_at(y), timeline.role_at(y)
    at = probe.hit(scene.snapshot, time, lane) if role is None else role_bars.hit(scene, time, lane, role)
    session.pinned = None if at is None or at.row < 0 else session.identity(at.step, at.row)
    session.send()
    session.panels.show_pin(session)
