"""Transport: the buttons for roles, SMs in view and play, above the timeline."""

from __future__ import annotations

from typing import TYPE_CHECKING

import panel as pn
import param

from mkviz.dashboard import lanes
from mkviz.dashboard.control import Control
from mkviz.dashboard.play import PACE, PACES
from mkviz.dashboard.theme import HERE, asset

if TYPE_CHECKING:
    from mkviz.dashboard.session import Session


class Transport(Control):
    """``handler(kind, value)`` gets what the user does: roles, sms (-1, 1), play, event (-1, 1), pace (s a step), leave."""

    roles = param.Boolean(False, doc="a sub-lane per role")
    sms = param.String("", doc="the SMs in view, in words; empty where all are")
    ready = param.Boolean(False, doc="there is a step to play")
    playing = param.Boolean(False)
    running = param.Boolean(False)
    paces = param.List(list(PACES))
    pace = param.Integer(PACE)

    _esm = HERE / "transport.js"
    _stylesheets = [asset("transport.css")]  # noqa: RUF012

    def show(self, session: Session) -> None:
        """What the session shows of lanes, and whether there is anything to play."""
        scene = session.scene
        sms = (
            "" if scene is None or len(scene.lanes) == scene.snapshot.lanes else lanes.words(scene.lanes, scene.snapshot.lanes)
        )
        super().show(roles=session.look.roles, sms=sms, ready=scene is not None)


def asked(session: Session, kind: str, value) -> None:
    """What the user does with the buttons."""
    with pn.io.hold():
        if kind == "roles":
            lanes.toggle_roles(session)
        elif kind == "sms" and value in (1, -1):
            lanes.move(session, value)
        else:
            session.player.controlled(kind, value)
        session.send()
