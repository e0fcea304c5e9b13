"""Pointer: what hovering over the timeline and clicking on it do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mkviz.dashboard import probe, role_bars

if TYPE_CHECKING:
    from mkviz.dashboard.chat import Chat
    from mkviz.dashboard.scene import Scene
    from mkviz.dashboard.session import Session
    from mkviz.dashboard.timeline import Timeline


def hover(session: Session, time: float, y: float) -> None:
    """Tell what is at ``time`` (ns since origin) and height ``y`` of the timeline, and light the step's token."""
    if session.scene is not None:
        tell(session.scene, session.panels.timeline, session.panels.chat, time, y)


def tell(scene: Scene, timeline: Timeline, chat: Chat, time: float, y: float) -> None:
    """The same of any timeline and what it shows."""
    lane, role = timeline.lane_at(y), timeline.role_at(y)
    text = "" if lane < 0 else probe.tip(scene, time, lane) if role is None else role_bars.tip(scene, time, lane, role)
    if text != timeline.tip.data["html"][0]:
        timeline.tip.data = {"html": [text]}
    step = scene.snapshot.step_at(time)
    chat.light(int(scene.snapshot.steps["step"][step]) if step >= 0 else -1)


def leave(session: Session) -> None:
    session.panels.timeline.tip.data = {"html": [""]}
    session.panels.chat.light(-1)


def tap(session: Session, time: float, y: float) -> None:
    """Pin the task there, or nothing."""
    if session.scene is None:
        return
    session.pinned = picked(session.scene, session.panels.timeline, time, y)
    session.send()
    session.panels.show_pin(session)


def picked(scene: Scene, timeline: Timeline, time: float, y: float) -> tuple[int, int] | None:
    """(step number, task) of the task there; None for nothing."""
    lane, role = timeline.lane_at(y), timeline.role_at(y)
    at = probe.hit(scene.snapshot, time, lane) if role is None else role_bars.hit(scene, time, lane, role)
    if at is None or at.row < 0:
        return None
    return int(scene.snapshot.steps["step"][at.step]), int(scene.snapshot.task[at.row])
