"""Shell: what every page stands in: header, themes, and a document that asks for nothing outside."""

from __future__ import annotations

import panel as pn
import panel_material_ui as pmui
from bokeh.models import CustomJS
from bokeh.themes import Theme as BokehTheme
from panel.io.resources import get_dist_path
from panel.util import edit_readonly

from mkviz.dashboard.theme import DARK, LIGHT, Theme, asset

# naming them keeps the shell from repainting the figures, whose colours mean something
OWN_COLOURS = BokehTheme(json={"attrs": {"Axis": {}, "Figure": {}, "Grid": {}, "Title": {}, "Plot": {}, "Legend": {}}})

FLAT_HEADER = {
    "& .MuiAppBar-root": {
        "backgroundColor": "background.paper", "backgroundImage": "none", "color": "text.primary", "boxShadow": "none",
        "borderBottom": "1px solid", "borderColor": "divider",
    },
    "& .MuiAppBar-root .MuiTypography-root, & .MuiAppBar-root a": {"color": "text.primary"},
    "& .MuiToolbar-root": {"minHeight": "52px !important"},
}  # fmt: skip


def prepare() -> None:
    """Called before a page's parts are made."""
    document = pn.state.curdoc
    if document is not None:  # set before by requests for a page, not where a slow page's session had been forgotten meanwhile:
        document._template_variables.setdefault("dist_url", get_dist_path(cdn=False))  # its styles would come from a CDN
        document.theme = OWN_COLOURS
        document.js_on_event("document_ready", CustomJS(code=asset("glyphs.js")))
        document.js_on_event("connection_lost", CustomJS(code=asset("lost.js")))
    pn.extension(notifications=False)


def shell(main: list, header: list) -> pmui.Page:
    """A page of these parts."""
    made = pmui.Page(
        title="mkviz", main=main, header=header, raw_css=[asset("page.css")], busy_indicator=None,
        theme_config={"light": _mui(LIGHT), "dark": _mui(DARK)}, sx=FLAT_HEADER,
    )  # fmt: skip
    with edit_readonly(made):
        made.busy = False  # unlinked: the shell walks every model of the page whenever it turns busy, twice a tick
    _let_go(made)
    return made


def _let_go(made: pmui.Page) -> None:
    """The shell has the process watch its busy state for it, which would keep every closed page in memory for ever."""
    for watcher in pn.state.param.watchers.get("busy", {}).get("value", [])[:]:
        if getattr(getattr(watcher.fn, "__self__", None), "self", None) is made:
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
