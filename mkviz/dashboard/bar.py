"""Bar: the controls above the timeline."""

from __future__ import annotations

import param

from mkviz.dashboard.control import Control
from mkviz.dashboard.scene import MODES
from mkviz.dashboard.theme import HERE, asset


class Bar(Control):
    """``handler(kind, value)`` gets what the user does: source, compare, live, pause, mode, search."""

    sources = param.List([])
    source = param.String("")
    compare = param.String("", doc="the source that is shown below; none")
    is_live = param.Boolean(True, doc="the source may still grow")
    following = param.Boolean(True)
    paused = param.Boolean(False)
    modes = param.List(list(MODES))
    mode = param.String(MODES[0])
    query = param.String("")
    found = param.String("", doc="how many tasks match the search")

    _esm = HERE / "bar.js"
    _stylesheets = [asset("bar.css")]  # noqa: RUF012
