"""Cell: a view as the value of a notebook's cell, without a server and without a network; it is a figure of the served page."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import TYPE_CHECKING

import panel as pn
from bokeh.models import ImportedStyleSheet, InlineStyleSheet
from bokeh.models.ui import UIElement
from panel.io.notebook import replace_inline_css
from panel.viewable import Viewer

from mkviz.dashboard.hub import Hub
from mkviz.dashboard.panels import Panels
from mkviz.dashboard.session import Session

if TYPE_CHECKING:
    from bokeh.plotting import figure

SAME = 1e-6  # of a range: what two views of it may differ by
PATIENCE = 5  # s that the browser's next message is held back while a cell runs; it sends another by itself after as long


class CellSession(Session):
    """A session whose colours are those of the notebook's theme, which the browser tells."""

    def commanded(self, data: dict) -> None:
        if data["name"][0] == "theme":
            dark = data["text"][0] == "dark"
            if dark != self.look.dark:
                self.panels.restyle(dark, self.source.kind)
                self.set_look(dark=dark)
        else:
            super().commanded(data)


class InCell:
    """Of a layout: what the browser tells is heard on the thread that made it, between cells; styles come from this machine.

    Newer kernels hear every view on a thread of its own (a subshell), while cells and ticks run on the first one.  Two threads
    would not only change one figure at once: a message goes out in pieces, and theirs would reach the browser mixed up.
    """

    def __init__(self, *objects, **params):
        super().__init__(*objects, **params)
        self._sheets: dict[str, InlineStyleSheet] = {}
        self._thread, self._loop = threading.get_ident(), None
        with contextlib.suppress(RuntimeError):  # a script has none, and no browser
            self._loop = asyncio.get_running_loop()

    def _on_msg(self, *message) -> None:
        hear = super()._on_msg

        async def heard() -> None:
            hear(*message)

        if self._loop is None or threading.get_ident() == self._thread:
            hear(*message)
        else:
            with contextlib.suppress(TimeoutError):
                asyncio.run_coroutine_threadsafe(heard(), self._loop).result(PATIENCE)

    def get_root(self, doc=None, comm=None, preprocess=True):
        """Panel takes its styles along in the first view, and names its CDN for them again whenever a pane is written anew."""
        root = super().get_root(doc, comm, preprocess)
        for model in root.select({"type": UIElement}):
            self._take_along(model)
            model.on_change("stylesheets", lambda attr, old, new, model=model: self._take_along(model))
        return root

    def _take_along(self, model: UIElement) -> None:
        sheets = [self._inline(sheet) for sheet in model.stylesheets]
        if sheets != model.stylesheets:
            model.stylesheets = sheets

    def _inline(self, sheet):
        if not isinstance(sheet, ImportedStyleSheet):
            return sheet
        if sheet.url not in self._sheets:
            self._sheets[sheet.url] = replace_inline_css(sheet)
        return self._sheets[sheet.url]


class CellColumn(InCell, pn.Column):
    """A cell's view, its parts below each other."""


class CellRow(InCell, pn.Row):
    """A cell's view, its parts side by side."""


class Cell(Viewer):
    """Shows itself as the value of a cell.  Subclasses set ``figure``, the one that the pointer moves over, and ``layout``.

    New zooms need the kernel that made it; without one its first view stays.  Views that are ``kin`` show the same range.
    """

    figure: figure
    layout: CellColumn | CellRow
    session_type = CellSession

    def __init__(self, hub: Hub, **params):
        if not pn.extension._loaded:
            pn.extension(inline=True)
        super().__init__(**params)
        self.hub, self.panels, self.kin = hub, Panels(), [self]
        self.session = self.session_type(hub, self.panels)
        self.panels.connect(self.session)

    def __panel__(self):
        return self.layout

    def push(self) -> None:
        """Raw Bokeh models reach a notebook only so."""
        pn.io.push_notebook(self.layout)

    def _open(self, height: float) -> None:
        """To be called once figure and layout are there; ``height`` is that of the figure's inside, in px."""
        self.session.height = height
        self.panels.timeline.in_cell(self.figure)
        timeline = self.panels.timeline
        timeline.view.on_change("data", lambda attr, old, new: self._moved())  # after what the session made of it
        timeline.command.on_change("data", lambda attr, old, new: self._moved())

    def _moved(self) -> None:
        self.push()
        for other in self.kin:
            if other is not self and not self.session.follow:
                other.show(self.session.x0, self.session.x1)

    def show(self, x0: float, x1: float) -> None:
        """Show [x0, x1) ns since the source's origin."""
        session, slack = self.session, SAME * (x1 - x0)
        if abs(session.x0 - x0) <= slack and abs(session.x1 - x1) <= slack:
            return
        session.placed = True
        session.go(x0, x1)
        session.send()
        self.push()
