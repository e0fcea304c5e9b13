"""Url: a session's state in the page's address, so that reload, reconnect and a shared link come back to the same view."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING
from urllib.parse import urlencode

import panel as pn

from mkviz.dashboard.lanes import parse
from mkviz.dashboard.scene import MODES, Look
from mkviz.dashboard.servers import is_server
from mkviz.dashboard.tables import TABLES

if TYPE_CHECKING:
    from mkviz.dashboard.session import Session

PACE_S = 1.0


class Url:
    """``source``, ``below`` (what it is compared with), ``range`` (µs, left out while following), ``tab``, ``colour``,
    ``hide``, ``find``, ``lanes`` (``roles``: a sub-lane each), ``sms`` (``0-11``), ``pin`` (``12.345``: step and task),
    ``play``, ``at`` and ``pace``; ``boot``: which server process."""

    def __init__(self, session: Session):
        self.session = session
        self._saved: dict[str, str] = {}
        self._at = 0.0

    def restore(self) -> None:
        if pn.state.location is None:
            return
        query = {k: str(v) for k, v in pn.state.location.query_params.items()}
        session = self.session
        mode = query.get("colour", "op")
        session.look = Look(
            mode if mode in MODES else "op",
            frozenset(filter(None, query.get("hide", "").split(","))),
            query.get("find", ""),
            session.look.dark,
            query.get("lanes") == "roles",
            parse(query.get("sms", "")),
        )
        restarted = query.get("boot") not in (None, session.hub.boot)
        session.choose(query.get("source", ""))
        session.panels.compare.choose(session, query.get("below", ""))
        if query.get("tab") in ("text", *TABLES):
            session.tab = query["tab"]
            session.panels.show_tables(session)
        if restarted:
            session.panels.note("the server was restarted: what it had recorded live is gone, new steps are shown as they come")
        if not restarted:
            session.player.restore(query)
        step, _, task = query.get("pin", "").partition(".")
        if step.isdecimal() and task.isdecimal() and not restarted:
            session.pinned = int(step), int(task)
        found = re.fullmatch(r"(-?[\d.]+)-(-?[\d.]+)", query.get("range", ""))  # a view may begin before 0
        try:
            x0, x1 = (float(x) * 1000 for x in (found.groups() if found else ("", "")))
        except ValueError:
            return
        if x1 > x0 and not restarted and session.source is not None:
            session.placed = True
            session.go(x0, x1)

    def save(self) -> None:
        session, now = self.session, time.monotonic()
        if pn.state.location is None or now - self._at < PACE_S:
            return
        state = {"boot": session.hub.boot, "source": session.source_name}
        if not session.follow and session.placed:
            state["range"] = f"{session.x0 / 1000:.3f}-{session.x1 / 1000:.3f}"
        if session.panels.compare.name:
            state["below"] = session.panels.compare.name
        if session.tab in TABLES or is_server(session.source_name):  # which opens on another one than the text
            state["tab"] = session.tab
        if session.look.mode != "op":
            state["colour"] = session.look.mode
        state |= session.player.state()
        if session.look.roles:
            state["lanes"] = "roles"
        if session.look.sms:
            first, count = session.look.sms
            state["sms"] = f"{first}-{first + count - 1}"
        if session.pinned:
            state["pin"] = "{}.{}".format(*session.pinned)
        if session.look.hidden:
            state["hide"] = ",".join(sorted(session.look.hidden))
        if session.look.query:
            state["find"] = session.look.query
        if state != self._saved:
            self._saved, self._at = state, now
            pn.state.location.search = "?" + urlencode(state)  # update_query would keep what is gone, as "None"
