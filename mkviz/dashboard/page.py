"""Page: the served page.  ``page()`` builds one session's; a script under ``panel serve`` makes it servable."""

from __future__ import annotations

import panel as pn
import panel_material_ui as pmui
from bokeh.models import CustomJS
from bokeh.themes import Theme as BokehTheme
from panel.io.resources import get_dist_path
from panel.util import edit_readonly

from mkviz.dashboard.export_menu import ExportMenu
from mkviz.dashboard.hub import Hub, hub
from mkviz.dashboard.panels import Panels
from mkviz.dashboard.session import TICK_MS, Session
from mkviz.dashboard.theme import DARK, LIGHT, Theme, asset
from mkviz.dashboard.url import Url
from mkviz.dashboard.warm import warm_up

# naming them keeps the shell from repainting the figures, whose colours mean something
OWN_COLOURS = BokehTheme(json={"attrs": {"Axis": {}, "Figure": {}, "Grid": {}, "Title": {}, "Plot": {}}})

FLAT_HEADER = {
    "& .MuiAppBar-root": {
        "backgroundColor": "background.paper", "backgroundImage": "none", "color": "text.primary", "boxShadow": "none",
        "borderBottom": "1px solid", "borderColor": "divider",
    },
    "& .MuiAppBar-root .MuiTypography-root, & .MuiAppBar-root a": {"color": "text.primary"},
    "& .MuiToolbar-root": {"minHeight": "52px !important"},
}  # fmt: skip


def page(shared: Hub = hub) -> pmui.Page:
    """A page of its own session over the sources and generators that ``shared`` holds."""
    warm_up()
    document = pn.state.curdoc
    if document is not None:  # set before by requests for a page, not where a slow page's session had been forgotten meanwhile:
        document._template_variables.setdefault("dist_url", get_dist_path(cdn=False))  # its styles would come from a CDN
        document.theme = OWN_COLOURS
        document.js_on_event("connection_lost", CustomJS(code=asset("lost.js")))
    pn.extension(notifications=False)
    panels = Panels()
    session = Session(shared, panels)
    panels.connect(session)
    exports = ExportMenu(session, margin=(0, 12, 0, 8))
    shell = pmui.Page(
        title="mkviz", main=[_layout(panels)], header=[panels.bar, exports], raw_css=[asset("page.css")], busy_indicator=None,
        theme_config={"light": _mui(LIGHT), "dark": _mui(DARK)},
        sx=FLAT_HEADER,
    )  # fmt: skip
    with edit_readonly(shell):
        shell.busy = False  # unlinked: the shell walks every model of the page whenever it turns busy, twice a tick
    _let_go(shell)
    panels.restyle(shell.dark_theme, "measured")

    def themed(*_):
        source = session.source
        panels.restyle(shell.dark_theme, source.kind if source else "measured")
        session.set_look(dark=shell.dark_theme)

    shell.param.watch(themed, "dark_theme")
    pn.state.onload(lambda: _start(session, exports))
    pn.state.on_session_destroyed(lambda _: session.close())
    return shell


def _let_go(shell: pmui.Page) -> None:
    """The shell has the process watch its busy state for it, which would keep every closed page in memory for ever."""
    for watcher in pn.state.param.watchers.get("busy", {}).get("value", [])[:]:
        if getattr(getattr(watcher.fn, "__self__", None), "self", None) is shell:
            pn.state.param.unwatch(watcher)


def _mui(theme: Theme) -> dict:
    """The shell's palette from ours."""
    return {
        "palette": {
            "primary": {"main": theme.accent},
            "background": {"default": theme.page, "paper": theme.page},
            "text": {"primary": theme.text, "secondary": theme.faint},
        }
    }


def _start(session: Session, exports: ExportMenu) -> None:
    """Ticks begin once the page is there: frames sent earlier would be part of the document and never be acknowledged."""
    url = Url(session)
    url.restore()
    session.tick()
    session.panels.chat.ready = True

    def tick():
        session.tick()
        exports.tick()
        url.save()

    pn.state.add_periodic_callback(tick, TICK_MS)


def _layout(panels: Panels):
    top = pmui.Row(panels.stats, panels.transport, sizing_mode="stretch_width", margin=(6, 12, 2, 16), min_height=36)
    panels.playhead.over([panels.timeline.root, *(strip.root for strip in panels.strips)])
    figures = [
        pn.pane.Bokeh(f.root, sizing_mode=f.root.sizing_mode, margin=0)
        for f in (panels.minimap, panels.timeline, *panels.strips, *panels.compare.parts)
    ]
    left = pmui.Column(top, *figures, panels.legend, sizing_mode="stretch_both", margin=0, min_height=0)
    right = pmui.Column(
        panels.tabs, panels.playhead.counters, panels.details, panels.compare.details, panels.table, panels.chat, width=380,
        sizing_mode="stretch_height", margin=(6, 12, 8, 12), styles={"overflow-y": "auto"},
    )  # fmt: skip
    return pmui.Row(
        left, right, sizing_mode="stretch_both", margin=0, styles={"height": "calc(100vh - 72px)", "min-height": "560px"}
    )
