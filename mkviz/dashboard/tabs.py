"""Tabs: what stands beside the timeline: the text by itself, or one of the tables above it."""

from __future__ import annotations

import param

from mkviz.dashboard.control import Control
from mkviz.dashboard.tables import TABLES, Table
from mkviz.dashboard.theme import HERE, asset


class Tabs(Control):
    """The tab buttons, and the chosen table below them.  ``handler(kind, value)`` gets what the user does: tab (its name),
    row (its number)."""

    names = param.List(["text", *TABLES])
    chosen = param.String("text")
    caption = param.String("", doc="what range the table is of")
    head = param.List([])
    rows = param.List([])
    linked = param.Boolean(False, doc="rows lead somewhere")

    _esm = HERE / "tabs.js"
    _stylesheets = [asset("tabs.css")]  # noqa: RUF012

    def show(self, table: Table, caption: str) -> None:
        caption = table.caption or caption
        self.param.update(head=list(table.head), rows=table.rows, linked=bool(table.goes_to), caption=caption)
