"""Live: a generator in a notebook's cell: the timeline follows its steps, beside the text it writes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import panel as pn

from mkviz.dashboard.cell import Cell, CellRow, CellSession
from mkviz.dashboard.cell_views import BORDERS
from mkviz.dashboard.hub import Hub
from mkviz.dashboard.session import TICK_MS

if TYPE_CHECKING:
    from mkviz.protocols import Generator

TEXT_WIDTH = 340


class LiveSession(CellSession):
    """Begins with ``prompt`` once its text pane is there: what is sent to it earlier is lost."""

    prompt = ""

    def chatted(self, message: dict) -> None:
        if message.get("type") != "shown":
            super().chatted(message)
        elif self.prompt:
            prompt, self.prompt = self.prompt, ""
            self.generate(prompt, self.panels.chat.model_name, self.panels.chat.max_tokens)


class LiveView(Cell):
    """Timeline and text of a generator, with a prompt of its own; ``close`` ends it and what it generates.

    The kernel draws between cells: one that runs for long holds the view up, and what it prompts here runs beside the cells.
    """

    session_type = LiveSession

    def __init__(self, generator: Generator, prompt: str = "", height: int = 420):
        super().__init__(Hub(openers={generator.name: lambda model: generator}))
        panels = self.panels
        self.hub.generator(generator.model)  # and its source with it
        self.figure = panels.timeline.root
        self.figure.update(sizing_mode="stretch_width", height=height)
        panels.restyle(False, generator.source.kind)
        self._open(height - BORDERS)
        panels.playhead.over([self.figure])
        panels.chat.param.update(model_name=generator.model, ready=True, height=height, width=TEXT_WIDTH,
                                 sizing_mode="fixed", margin=(0, 0, 0, 12))  # fmt: skip
        left = pn.Column(
            panels.stats, self.drawn(), panels.legend,
            panels.playhead.counters, panels.details, panels.table, sizing_mode="stretch_width",
        )  # fmt: skip
        self.layout = CellRow(left, panels.chat, sizing_mode="stretch_width")
        self.tick()
        self.session.prompt = prompt
        self._ticks = pn.state.add_periodic_callback(self.tick, TICK_MS)

    def tick(self) -> None:
        """Show what is new."""
        self.session.tick()
        self.push()

    def close(self) -> None:
        self._ticks.stop()
        self.session.close()


def live(generator: Generator, prompt: str = "", height: int = 420) -> LiveView:
    """A timeline that follows a generator, beside its text; ``prompt`` is generated at once.  ``height`` is in px."""
    return LiveView(generator, prompt, height)
