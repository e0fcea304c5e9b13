"""AnalysesBar: which source and which steps the page of analyses is of, when it looks again, and the way to the timeline."""

from __future__ import annotations

import param

from mkviz.dashboard.control import Control
from mkviz.dashboard.theme import HERE, asset


class AnalysesBar(Control):
    """``handler(kind, value)`` gets what the user does: source, steps, refresh, auto."""

    sources = param.List([])
    source = param.String("")
    steps = param.String("", doc="as the user wrote them")
    words = param.String("", doc="which steps these are, or what is being done")
    wrong = param.Boolean(False, doc="the words are of a mistake")
    is_live = param.Boolean(False, doc="the source may still grow")
    auto = param.Boolean(True, doc="a live source is looked at again every few seconds")
    timeline = param.String("", doc="address of the timeline")
    dark = param.Boolean(False)
    ready = param.Boolean(False, doc="the session's ticks have begun")

    _esm = HERE / "analyses_bar.js"
    _stylesheets = [asset("analyses_bar.css")]  # noqa: RUF012
