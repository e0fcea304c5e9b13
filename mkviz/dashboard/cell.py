"""Cell: a view as the value of a notebook's cell, without a server and without a network; it is a figure of the served page."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
from functools import partial
from typing import TYPE_CHECKING

import panel as pn
from bokeh.document.callbacks import invoke_with_curdoc
from panel.io.model import patch_cds_msg
from panel.io.notebook import push
from panel.io.state import state
from panel.viewable import Viewer

from mkviz.dashboard.hub import Hub
from mkviz.dashboard.panels import Panels
from mkviz.dashboard.session import Session

if TYPE_CHECKING:
    from collections.abc import Callable

    from bokeh.plotting import figure
    from panel.models.comm_manager import CommManager

SAME = 1e-6  # of a range: what two views of it may differ by
PATIENCE = 5  # s that the browser's next message is held back while a cell runs; it sends another by itself after as long


class CellSession(Session):
    """A session whose colours are those of the notebook's theme, which the browser tells."""

    _heard = 0

    def viewed(self, data: dict) -> None:
        if data["n"][0] <= self._heard:  # a page that counts from the beginning: it has not seen the last frame
            self._shown = ()
        self._heard = data["n"][0]
        super().viewed(data)

    def commanded(self, data: dict) -> None:
        if data["name"][0] == "theme":
            dark = data["text"][0] == "dark"
            if dark != self.look.dark:
                self.panels.restyle(dark, self.source.kind)
                self.set_look(dark=dark)
        else:
            super().commanded(data)


class InCell:
    """Of a layout: what the browser tells is heard on the thread that made it, between cells, and answered in one message.

    Newer kernels hear every view on a thread of its own (a subshell), while cells and ticks run on the first one.  Threads
    would not only change one figure at once: a message goes out in pieces, and theirs would reach the browser mixed up; and
    each lays the process's standard output aside for a while, which the last of them need not put back.
    """

    def __init__(self, *objects, **params):
        super().__init__(*objects, **params)
        self._thread, self._loop = threading.get_ident(), None
        with contextlib.suppress(RuntimeError):  # a script has none, and no browser
            self._loop = asyncio.get_running_loop()

    def _render_mimebundle(self, model, *args, **kwargs):
        shown = super()._render_mimebundle(model, *args, **kwargs)
        _, comm = self._comms[model.ref["id"]]
        comm._handle_msg = partial(self._between_cells, comm._handle_msg)
        return shown

    def _between_cells(self, hear: Callable[[dict], None], message: dict) -> None:
        async def heard() -> None:
            hear(message)

        if self._loop is None or threading.get_ident() == self._thread:
            hear(message)
        else:
            with contextlib.suppress(TimeoutError):
                asyncio.run_coroutine_threadsafe(heard(), self._loop).result(PATIENCE)

    def _on_msg(self, ref: str, manager: CommManager, message: dict) -> None:
        """One change after the other, each with what it leads to.

        Panel would take them all in first, and then call back for the first of them alone, as that puts the document on hold
        again; what it has on hold it sends, so that the browser would get its own changes back, late.
        """
        _, root, document, comm = state._views[ref]
        patch_cds_msg(root, message)
        buffers = message.pop("_buffers", {})
        for event in message["content"]["events"]:
            part = {**message, "content": {"events": [event]}, "_buffers": dict(buffers)}
            manager.assemble(part).apply_to_document(document, comm.id)
            held = document.callbacks._held_events
            told = [change for change in held if change.setter == comm.id]
            document.callbacks._held_events = [change for change in held if change.setter != comm.id]
            for call in filter(None, (change.callback_invoker for change in told)):  # not every change is a model's
                invoke_with_curdoc(document, call)
        push(document, comm)


class CellColumn(InCell, pn.Column):
    """A cell's view, its parts below each other."""


class CellRow(InCell, pn.Row):
    """A cell's view, its parts side by side."""


def running_cell() -> str | None:
    """The id of the notebook's cell that runs; None where there is none, or none that is told."""
    ipython = sys.modules.get("IPython")
    kernel = getattr(ipython and ipython.get_ipython(), "kernel", None)
    return kernel.get_parent().get("metadata", {}).get("cellId") if kernel else None


class Cell(Viewer):
    """Shows itself as the value of a cell.  Subclasses set ``figure``, the one that the pointer moves over, and ``layout``.

    New zooms need the kernel that made it; without one its first view stays.  Views that are ``kin`` show the same range.
    """

    figure: figure
    layout: CellColumn | CellRow
    session_type = CellSession
    _scripts_in: str | None = None  # the cell whose output holds the scripts that draw

    def __init__(self, hub: Hub, **params):
        cell = running_cell()
        if not pn.extension._loaded or (cell is not None and cell == Cell._scripts_in):  # run again, it has lost its output
            pn.extension(inline=True, browser_info=False)
            Cell._scripts_in = cell
        super().__init__(**params)
        self.hub, self.panels, self.kin = hub, Panels(), [self]
        self.session = self.session_type(hub, self.panels)
        self.panels.connect(self.session)

    def __panel__(self):
        return self.layout

    def drawn(self) -> pn.pane.Bokeh:
        """The figure, to be put into the layout."""
        return pn.pane.Bokeh(self.figure, sizing_mode="stretch_width", margin=0, autodispatch=False)  # the layout answers

    def push(self) -> None:
        """What changes by itself in Bokeh's models reaches a notebook only so."""
        pn.io.push_notebook(self.layout)

    def _open(self, height: float) -> None:
        """To be called once figure and layout are there; ``height`` is that of the figure's inside, in px."""
        self.session.height = height
        self.panels.timeline.in_cell(self.figure)
        timeline = self.panels.timeline
        timeline.view.on_change("data", lambda attr, old, new: self._moved())  # after what the session made of it
        timeline.command.on_change("data", lambda attr, old, new: self._moved())

    def _moved(self) -> None:
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
