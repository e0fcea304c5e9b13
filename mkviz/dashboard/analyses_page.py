"""AnalysesPage: the page of analyses.  ``analyses_page()`` builds one session's, beside the page of the timeline."""

from __future__ import annotations

import panel as pn
import panel_material_ui as pmui

from mkviz.dashboard.analyses import TICK_MS, Analyses
from mkviz.dashboard.hub import Hub, hub
from mkviz.dashboard.shell import prepare, shell
from mkviz.dashboard.theme import asset

LEFT = ("blame", "waits", "whatif", "steps")  # where two columns fit


def analyses_page(shared: Hub = hub, home: str = "./") -> pmui.Page:
    """A page of its own session; ``home``: the address of the timeline's page, relative to this one's."""
    prepare()
    analyses = Analyses(shared, home)
    if pn.state.location is not None:
        analyses.restore({key: str(value) for key, value in pn.state.location.query_params.items()})
    made = shell([_layout(analyses)], [analyses.bar])
    analyses.set_dark(made.dark_theme)
    made.param.watch(lambda *_: analyses.set_dark(made.dark_theme), "dark_theme")
    pn.state.onload(lambda: _start(analyses))
    pn.state.on_session_destroyed(lambda _: analyses.close())
    return made


def _start(analyses: Analyses) -> None:
    analyses.ask()
    analyses.tick()
    analyses.bar.ready = True
    pn.state.add_periodic_callback(analyses.tick, TICK_MS)


def _layout(analyses: Analyses):
    names = analyses.shown
    if analyses.only:
        columns = [names]
    else:
        columns = [[name for name in names if (name in LEFT) == left] for left in (True, False)]
    return pn.Row(
        *(pn.Column(*(analyses.panels[name].root for name in column), margin=0, sizing_mode="stretch_width",
                    stylesheets=[asset("analyses_column.css")]) for column in columns),
        margin=0, sizing_mode="stretch_width", stylesheets=[asset("analyses_row.css")],
    )  # fmt: skip
