"""Cell: the timeline as an object that shows itself in a notebook, without a server and without a network."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import panel as pn

from mkviz.dashboard.hub import Hub
from mkviz.dashboard.panels import Panels
from mkviz.dashboard.session import Session
from mkviz.protocols import Source
from mkviz.store import store_of_trace

if TYPE_CHECKING:
    from mkviz.trace import Trace

BORDERS = 40  # px of the figure's height that its title and time axis take


def timeline(of: Trace | Source | str | Path, height: int = 420) -> pn.Column:
    """The timeline of all SMs: of a trace, of the trace at a path, or of what a source holds now.

    As the value of a notebook's cell it is the figure of the served page, with its wheel, drag, hover, clicks and keys (while
    the pointer is on it); ``height`` is in px.  New zooms need the kernel that made it; without one its first view stays.
    Raises MkvizError for a path that is no readable trace.
    """
    source = of if isinstance(of, Source) else store_of_trace(of)
    if not pn.extension._loaded:
        pn.extension(inline=True)
    hub, panels = Hub(openers={}), Panels()
    hub.add_source(source.label, source)
    session = Session(hub, panels)
    session.height = height - BORDERS
    panels.connect(session)
    panels.timeline.in_cell()
    panels.timeline.root.update(sizing_mode="stretch_width", height=height)
    panels.restyle(False, source.kind)
    panels.playhead.over([panels.timeline.root])
    session.choose(source.label)
    view = pn.Column(
        pn.pane.Bokeh(panels.timeline.root, sizing_mode="stretch_width", margin=0),
        panels.legend, panels.playhead.counters, panels.details, panels.table, sizing_mode="stretch_width",
    )  # fmt: skip
    for channel in (panels.timeline.view, panels.timeline.command):
        channel.on_change("data", lambda attr, old, new: pn.io.push_notebook(view))  # after what the session made of it
    return view
