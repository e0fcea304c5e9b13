"""Lanes: which SMs the timeline shows, and whether each is one lane or a sub-lane per role."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from mkviz.roles import ROLES

if TYPE_CHECKING:
    from mkviz.dashboard.session import Session

READABLE = 12  # px of a sub-lane from which its role can be written beside it


def window(sms: tuple[int, int] | None, lanes: int) -> range:
    """The SMs ``first, count`` as far as there are so many (None: all ``lanes`` of them)."""
    if sms is None or lanes == 0:
        return range(lanes)
    count = min(max(1, sms[1]), lanes)
    first = min(max(0, sms[0]), lanes - count)
    return range(first, first + count)


def words(lanes: range, of: int) -> str:
    """``all 132 SMs``, ``SM 4``, ``SM 4 – 15``."""
    if len(lanes) == of:
        return f"all {of} SMs"
    return f"SM {lanes.start}" if len(lanes) == 1 else f"SM {lanes.start} – {lanes.stop - 1}"


def parse(text: str) -> tuple[int, int] | None:
    """``4-15`` as (first, count); None for anything else."""
    first, _, last = text.partition("-")
    if not (first.isdigit() and last.isdigit() and int(last) >= int(first)):
        return None
    return int(first), int(last) - int(first) + 1


def toggle_roles(session: Session) -> None:
    """Split lanes by role, of as many SMs as can be read, from the pinned task's on; or one lane an SM again, of all."""
    if session.look.roles:
        session.look = replace(session.look, roles=False, sms=None)
        return
    at = session.pinned_hit()
    fitting = max(1, int(session.height / (READABLE * len(ROLES))))
    session.look = replace(session.look, roles=True, sms=session.look.sms or (at.lane if at else 0, fitting))


def move(session: Session, pages: int) -> None:
    """Show the SMs before (-1) or after (1) those in view."""
    shown = _shown(session)
    if shown is not None:
        _show(session, shown.start + pages * len(shown), len(shown))


def zoom(session: Session, factor: float) -> None:
    """Show ``factor`` times as many SMs, around the middle of those in view (or the pinned task's)."""
    shown = _shown(session)
    if shown is None:
        return
    count = max(1, round(len(shown) * factor))
    at = session.pinned_hit()
    middle = at.lane + 0.5 if at and at.lane in shown else (shown.start + shown.stop) / 2
    _show(session, round(middle - count / 2), count)


def reveal(session: Session) -> None:
    """Move to the SM of a task that was pinned just now, if it is not in view."""
    if session.pinned == session.revealed:
        return
    session.revealed = session.pinned
    at, shown = session.pinned_hit(), _shown(session)
    if at is not None and shown is not None and at.lane not in shown:
        _show(session, at.lane - len(shown) // 2, len(shown))


def _shown(session: Session) -> range | None:
    """Those in view by the last word of the user, which may be newer than the scene."""
    return window(session.look.sms, session.scene.snapshot.lanes) if session.scene is not None else None


def _show(session: Session, first: int, count: int) -> None:
    lanes = session.scene.snapshot.lanes
    shown = window((first, count), lanes)
    session.look = replace(session.look, sms=None if len(shown) == lanes else (shown.start, len(shown)))


KEYS = {
    "r": toggle_roles,
    "arrowup": lambda session: move(session, -1),
    "arrowdown": lambda session: move(session, 1),
    "+": lambda session: zoom(session, 0.5),
    "-": lambda session: zoom(session, 2),
}
