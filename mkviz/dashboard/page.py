"""Page: the served page.  ``page()`` builds one session's; a script under ``panel serve`` makes it servable."""

from __future__ import annotations

import panel as pn
import panel_material_ui as pmui

from mkviz.dashboard.analyses_link import AnalysesLink
from mkviz.dashboard.export_menu import ExportMenu
from mkviz.dashboard.hub import Hub, hub
from mkviz.dashboard.panels import Panels
from mkviz.dashboard.session import TICK_MS, Session
from mkviz.dashboard.shell import prepare, shell
from mkviz.dashboard.url import Url
from mkviz.dashboard.warm import warm_up


def page(shared: Hub = hub) -> pmui.Page:
    """A page of its own session over the sources and generators that ``shared`` holds."""
    warm_up()
    prepare()
    panels = Panels()
    session = Session(shared, panels)
    panels.connect(session)
    exports = ExportMenu(session, margin=(0, 12, 0, 8))
    link = AnalysesLink(margin=(0, 0, 0, 8))
    made = shell([_layout(panels)], [panels.bar, link, exports])
    panels.restyle(made.dark_theme, "measured")

    def themed(*_):
        source = session.source
        panels.restyle(made.dark_theme, source.kind if source else "measured")
        session.set_look(dark=made.dark_theme)

    made.param.watch(themed, "dark_theme")
    pn.state.onload(lambda: _start(session, exports, link))
    pn.state.on_session_destroyed(lambda _: session.close())
    return made


def _start(session: Session, exports: ExportMenu, link: AnalysesLink) -> None:
    """Ticks begin once the page is there: frames sent earlier would be part of the document and never be acknowledged."""
    url = Url(session)
    url.restore()
    session.tick()
    session.panels.chat.ready = True

    def tick():
        session.tick()
        exports.tick()
        link.show(session)
        url.save()

    pn.state.add_periodic_callback(tick, TICK_MS)


def _layout(panels: Panels):
    top = pmui.Row(panels.stats, panels.transport, sizing_mode="stretch_width", margin=(6, 12, 2, 16), min_height=36)
    panels.playhead.over([panels.timeline.root, *(strip.root for strip in panels.strips)])
    figures = [
        pn.pane.Bokeh(f.root, sizing_mode=f.root.sizing_mode, margin=0)
        for f in (panels.minimap, panels.requests, panels.timeline, *panels.strips, *panels.compare.parts)
    ]
    figures.insert(1, panels.requests.legend)
    left = pmui.Column(top, *figures, panels.legend, sizing_mode="stretch_both", margin=0, min_height=0)
    right = pmui.Column(
        panels.tabs, panels.playhead.counters, panels.details, panels.compare.details, panels.table, panels.chat, width=380,
        sizing_mode="stretch_height", margin=(6, 12, 8, 12), styles={"overflow-y": "auto"},
    )  # fmt: skip
    return pmui.Row(
        left, right, sizing_mode="stretch_both", margin=0, styles={"height": "calc(100vh - 72px)", "min-height": "560px"}
    )
