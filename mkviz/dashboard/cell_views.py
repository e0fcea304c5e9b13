"""Views of a source for notebooks: the timeline, and what all its lanes together do, each a cell's value."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from bokeh.models import BoxAnnotation, Title

from mkviz.dashboard.cell import Cell, CellColumn, CellSession
from mkviz.dashboard.hub import Hub
from mkviz.dashboard.strips import Bandwidth, Busy, Strip, Tails, Waits
from mkviz.dashboard.theme import KIND_COLOURS, theme_of
from mkviz.protocols import Source
from mkviz.store import store_of_trace

if TYPE_CHECKING:
    from mkviz.trace import Trace

BORDERS = 40  # px of a figure's height that its title and time axis take


class TimelineView(Cell):
    """The timeline of all SMs, as on the served page: wheel, drag, hover, clicks, and keys while the pointer is on it.

    ``occupancy``, ``waits``, ``tails`` and ``bandwidth`` are views of the same source that move with it.
    """

    def __init__(self, source: Source, height: int = 420):
        super().__init__(_hub_of(source))
        panels = self.panels
        self.source, self.figure = source, panels.timeline.root
        self.figure.update(sizing_mode="stretch_width", height=height)
        panels.restyle(False, source.kind)
        self._open(height - BORDERS)
        panels.playhead.over([self.figure])
        self.layout = CellColumn(
            self.drawn(), panels.legend, panels.playhead.counters, panels.details, panels.table, sizing_mode="stretch_width",
        )  # fmt: skip
        self.session.choose(source.label)

    occupancy = cached_property(lambda self: self._beside(Busy))
    waits = cached_property(lambda self: self._beside(Waits))
    tails = cached_property(lambda self: self._beside(Tails))
    bandwidth = cached_property(lambda self: self._beside(Bandwidth))

    def _beside(self, strip: type[Strip]) -> StripView:
        view = StripView(self.source, strip)
        self.kin.append(view)
        view.kin = self.kin
        view.show(self.session.x0, self.session.x1)
        return view


class StripSession(CellSession):
    """Of a strip: the pointer asks for its value, and lanes, pins and play have no place in it."""

    strip: Strip
    KEYS = ("Escape", "f", "fit", "[", "]")

    def commanded(self, data: dict) -> None:
        name, x, text = (data[k][0] for k in ("name", "x", "text"))
        if name == "hover" and self.scene is not None:
            self.panels.timeline.tip.data = {"html": [self.strip.words(self.scene, x * 1000)]}
        elif name in ("leave", "range", "theme") or (name == "key" and text in self.KEYS):
            super().commanded(data)


class StripView(Cell):
    """One strip of the page on a time axis of its own, with wheel, drag, hover and a range measured by shift and drag."""

    session_type = StripSession

    def __init__(self, source: Source, strip: type[Strip], height: int = 180):
        super().__init__(_hub_of(source))
        panels = self.panels
        self.strip = self.session.strip = next((s for s in panels.strips if type(s) is strip), None) or strip(
            panels.timeline.x_range
        )
        panels.strips = [self.strip]
        self.figure = self.strip.root
        self.title = Title(text=f"{source.label} · {strip.title}", text_font_size="12px", text_font_style="bold", offset=4)
        self.figure.update(height=height, title=self.title)
        self.figure.xaxis.visible = True
        band = panels.timeline.band = BoxAnnotation(visible=False, fill_alpha=0.14, line_alpha=0.8, level="overlay")
        self.figure.add_layout(band)
        panels.timeline.measured_on([], [])
        panels.restyle = self._restyle(panels.restyle)
        panels.restyle(False, source.kind)
        self._open(height - BORDERS)
        self.layout = CellColumn(self.drawn(), panels.table, sizing_mode="stretch_width")
        self.session.choose(source.label)

    def _restyle(self, restyle):
        def styled(dark: bool, kind: str) -> None:
            restyle(dark, kind)
            self.title.text_color = KIND_COLOURS[kind][dark]
            theme = theme_of(dark)
            self.figure.xaxis.update(
                major_label_text_color=theme.faint, axis_line_color=theme.grid, major_tick_line_color=theme.grid
            )

        return styled


def _hub_of(source: Source) -> Hub:
    hub = Hub(openers={})
    hub.add_source(source.label, source)
    return hub


def source_of(of: Trace | Source | str | Path) -> Source:
    """A source itself, or the steps of a trace or of the one at a path.  Raises MkvizError for what is no readable trace."""
    return of if isinstance(of, Source) else store_of_trace(of)


def timeline(of: Trace | Source | str | Path, height: int = 420) -> TimelineView:
    """The timeline of all SMs: of a trace, of the trace at a path, or of what a source holds now; ``height`` is in px.

    Raises MkvizError for a path that is no readable trace.
    """
    return TimelineView(source_of(of), height)


def occupancy(of: Trace | Source | str | Path, height: int = 180) -> StripView:
    """How many SMs compute, over time.  Arguments and errors as for ``timeline``."""
    return StripView(source_of(of), Busy, height)


def waits(of: Trace | Source | str | Path, height: int = 180) -> StripView:
    """How many SMs wait, and above them how many have no task left, over time.  Arguments and errors as for ``timeline``."""
    return StripView(source_of(of), Waits, height)


def tails(of: Trace | Source | str | Path, height: int = 180) -> StripView:
    """How many SMs have no task left in the step, over time.  Arguments and errors as for ``timeline``."""
    return StripView(source_of(of), Tails, height)


def bandwidth(of: Trace | Source | str | Path, height: int = 180) -> StripView:
    """What tasks read from device memory, over time, beside the most that the machine can, where that is known.  Arguments and
    errors as for ``timeline``."""
    return StripView(source_of(of), Bandwidth, height)
