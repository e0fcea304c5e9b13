"""AnalysesLink: from the timeline to the page of analyses, of the same source and the steps in view."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlencode

import param
from panel.custom import JSComponent

from mkviz.dashboard.theme import asset

if TYPE_CHECKING:
    from mkviz.dashboard.session import Session


class AnalysesLink(JSComponent):
    """The link in the header; empty while there is no source."""

    address = param.String("")

    _esm = """export function render({model, el}) {
      el.innerHTML = `<a title="why the steps in view take as long as they do">Analyses</a>`
      const link = el.firstChild
      const update = () => { link.href = model.address; link.hidden = !model.address }
      model.on(["address"], update)
      update()
    }"""
    _stylesheets = [asset("analyses_link.css")]  # noqa: RUF012

    def show(self, session: Session) -> None:
        """Lead to what the session shows now."""
        query = {"source": session.source_name}
        if session.scene is not None and not session.follow:
            snapshot = session.scene.snapshot
            seen = snapshot.steps["step"][snapshot.steps_in(session.x0, session.x1)]
            if 0 < len(seen) < len(snapshot.steps):
                query["steps"] = f"{seen.min()}" if len(seen) == 1 else f"{seen.min()}-{seen.max()}"
        address = "analyses?" + urlencode(query) if session.source_name else ""
        if address != self.address:
            self.address = address
