"""Compare: a second source under the first, on one time axis, moved so that a step of both begins at the same place."""

from __future__ import annotations

from dataclasses import dataclass, replace
from html import escape
from typing import TYPE_CHECKING

import numpy as np
import panel as pn
from bokeh.models import ColumnDataSource, CustomJS, Label

from mkviz import lod
from mkviz.dashboard import pointer, probe, range_card
from mkviz.dashboard.scene import Scene
from mkviz.dashboard.strips import Busy
from mkviz.dashboard.theme import asset, theme_of
from mkviz.dashboard.timeline import Timeline
from mkviz.dashboard.units import duration
from mkviz.errors import MkvizError

if TYPE_CHECKING:
    from bokeh.models import Range1d

    from mkviz.dashboard.session import Session
    from mkviz.store import Snapshot

HIGH, LOW = 220, 140  # px: least height of the timeline by itself, and of each of two
PART = 0.25  # of a step or of the view, whichever is shorter: a step of which less is in view does not count as shown
SAME_LENGTH = 0.005  # steps whose times differ by less are told as equally long


@dataclass(frozen=True)
class Alignment:
    """Step ``first`` of one snapshot and step ``second`` of the other (indices) begin together when all times of the other, in
    ns since its origin, are moved by ``shift``."""

    first: int
    second: int
    shift: int


def align(first: Snapshot, second: Snapshot, x0: float, x1: float, newest: bool, before: int = -1) -> Alignment | None:
    """Which steps to lay on each other in a view of [x0, x1] ns of ``first``; None when one of them holds no steps.

    The step of ``first`` with number ``before`` for as long as it is shown; else the first that begins in view, or the
    ``newest``; else the nearest.  Only steps that ``second`` holds too, by number; where they share no number, by place.
    """
    if not len(first.steps) or not len(second.steps):
        return None
    begin, end = (first.steps[k] - first.origin for k in ("begin", "end"))
    numbers = first.steps["step"]
    rows = np.flatnonzero(np.isin(numbers, second.steps["step"]))
    by_number = len(rows) > 0
    rows = rows if by_number else np.arange(len(numbers))
    seen = np.minimum(end[rows], x1) - np.maximum(begin[rows], x0)
    shown = rows[seen >= PART * np.minimum(end[rows] - begin[rows], x1 - x0)]
    inside = shown[begin[shown] >= x0]
    if before in numbers[shown]:
        at = int(shown[numbers[shown] == before][-1])
    elif len(inside):
        at = int(inside[-1 if newest else 0])
    else:
        at = int(rows[np.argmin(np.abs((begin[rows] + end[rows] - x0 - x1) / 2))])
    other = second.index_of(int(numbers[at])) if by_number else min(at, len(second.steps) - 1)
    return Alignment(at, other, int(begin[at]) - int(second.steps["begin"][other] - second.origin))


def words(first: Snapshot, second: Snapshot, found: Alignment) -> str:
    """What is laid on what, how far the second was moved for it, and how long both take."""
    one, other = first.steps[found.first], second.steps[found.second]
    long, upper = (int(row["end"] - row["begin"]) for row in (other, one))
    above = "above" if one["step"] == other["step"] else f"step {one['step']} above"
    text = f"step {other['step']} takes {duration(long)}, {above} {duration(upper)}"
    if min(long, upper) > 0:
        ratio = max(long, upper) / min(long, upper)
        text += " (the same)" if ratio < 1 + SAME_LENGTH else f" ({ratio:.2f} × {'longer' if long > upper else 'shorter'})"
    moved = f"moved by {'−' if found.shift < 0 else '+'}{duration(abs(found.shift))} to begin" if found.shift else "begins"
    return f"{text} · {moved} with it"


class Compare:
    """The second timeline with its busy strip, and the facts of what is pinned on it and of the measured range.  Hidden while
    ``name`` is ""; else the first one's busy strip is the only one of its strips, so that both have room and look alike."""

    def __init__(self, x_range: Range1d):
        self.name = ""
        self.pinned: tuple[int, int] | None = None  # (step number, task)
        self.scene: Scene | None = None
        self.alignment: Alignment | None = None
        self._kind = "measured"
        self._snapshot: Snapshot | None = None
        self._tables: lod.GraphTables | None = None
        self._step = -1  # number of the first's step that is laid on
        self.timeline = Timeline(x_range)
        self.timeline.root.min_height = LOW
        self.strip = Busy(x_range)
        self.message = Label(
            x=0, y=0, x_units="screen", y_units="screen", text_align="center", text_baseline="middle", text_font_size="15px"
        )
        self.timeline.root.add_layout(self.message)
        self.details = pn.pane.HTML(
            "", css_classes=["details"], stylesheets=[asset("panels.css")], margin=0, sizing_mode="stretch_width", visible=False
        )
        self.parts = (self.timeline, self.strip)
        self._show()

    def connect(self, session: Session) -> None:
        """Hover and clicks on the figure come through a channel of its own; its time axis is the first timeline's."""
        figure, command, tip = self.timeline.root, ColumnDataSource({k: [] for k in ("n", "name", "x", "y")}), self.timeline.tip
        code = CustomJS(args={"plot": figure, "command": command, "tip": tip}, code=asset("compare.js"))
        for event in ("mousemove", "mouseleave", "tap"):
            figure.js_on_event(event, code)
        tip.js_on_change("data", code)
        session.panels.timeline.measured_on([figure], [self.timeline.band])
        figure.x_range.js_on_change("start", code)
        command.on_change("data", lambda attr, old, new: self._commanded(session, new))
        self.command = command

    def restyle(self, dark: bool) -> None:
        self.timeline.restyle(dark, self._kind)
        self.strip.restyle(dark)
        self.message.text_color = theme_of(dark).faint

    # what is compared

    def choose(self, session: Session, name: str) -> None:
        """Compare with a source, with none for ""; with the first itself there is nothing to compare."""
        if name == self.name:
            return
        try:
            source = session.hub.source(name) if name and name != session.source_name else None
        except MkvizError as error:
            session.panels.note(str(error), "error")
            return
        self.name = name if source is not None else ""
        self.pinned = self.scene = self.alignment = self._snapshot = self._tables = None
        self._step = -1
        self._kind = source.kind if source is not None else "measured"
        self.timeline.clear()
        self.strip.source.data = {"x": [], "y": []}
        self.restyle(session.panels.dark)
        self._show()
        session.panels.timeline.root.min_height = LOW if self.name else HIGH
        for strip in session.panels.strips[1:]:
            strip.root.visible = not self.name
        self._show_cards(session.range)

    def _show(self) -> None:
        for part in self.parts:
            part.root.visible = bool(self.name)

    def show_range(self, session: Session) -> None:
        """What is measured above is measured here too, at the same place of the axis."""
        self._show_cards(session.range)

    def key(self, session: Session) -> tuple:
        """Changes when the second figure has to be drawn anew; finds what to draw on the way."""
        if self.name == session.source_name:
            self.choose(session, "")
        source, first = session.hub.sources.get(self.name), session.snapshot()
        if source is None or first is None:
            return ()
        if self._snapshot is None or not session.paused:
            self._snapshot = source.snapshot()
        found = align(first, self._snapshot, session.x0, session.x1, session.follow, self._step)
        self.alignment = found
        if found is None:
            return self.name, getattr(source, "words", "")
        self._step = int(first.steps["step"][found.first])
        x0, x1 = session.x0 - found.shift, session.x1 - found.shift
        begin, end = (self._snapshot.steps[k] - self._snapshot.origin for k in ("begin", "end"))
        near = (begin < 2 * x1 - x0) & (end > 2 * x0 - x1)
        return self.name, self.pinned, found, int(near.sum()), int(self._snapshot.steps["step"][near].sum())

    def draw(self, session: Session) -> None:
        """Show the second source in the view of the first."""
        source = session.hub.sources.get(self.name)
        if source is None or self._snapshot is None:
            return
        snapshot, title = self._snapshot, source.label
        if self.alignment is None:
            text = getattr(source, "words", "") or "This source holds no steps yet"
            self.scene, title = None, f"{title} · nothing to compare yet"
            self.message.update(text=text, x=session.width / 2, y=session.height / 2)
        else:
            self.message.text = ""
            if self._tables is None or self._tables.ids != tuple(snapshot.graphs):
                self._tables = lod.GraphTables(snapshot)
            title += f" · {snapshot.lanes} SMs · {words(session.snapshot(), snapshot, self.alignment)}"
            moved = replace(snapshot, origin=snapshot.origin - self.alignment.shift)
            first = session.scene
            self.scene = Scene(moved, self._tables, first.look, first.x0, first.x1, first.width)
            if first.rects is None:
                self.scene.rects = None  # both are drawn in the same way, or there would be differences that are none
            self.timeline.update(self.scene, session.height)
            self.strip.update(self.scene)
        if self.timeline.title.text != title:
            self.timeline.title.text = title
        self._show_cards(session.range)

    # what the pointer does

    def _commanded(self, session: Session, data: dict) -> None:
        name, time, y = data["name"][0], data["x"][0] * 1000, data["y"][0]
        if self.scene is None:
            return
        with pn.io.hold():
            if name == "tap":
                self.pinned = pointer.picked(self.scene, self.timeline, time, y)
                session.send()
            elif name == "hover":
                pointer.tell(self.scene, self.timeline, session.panels.chat, time, y)
            else:
                self.timeline.tip.data = {"html": [""]}
                session.panels.chat.light(-1)

    def _show_cards(self, measured: tuple[float, float] | None) -> None:
        html, band = self._pin_card(), self.timeline.band
        if self.scene is None or measured is None:
            band.visible = False
        else:
            x0, x1 = measured
            band.update(left=x0 / 1000, right=x1 / 1000, visible=True)
            html += range_card.html(self.scene, x0, x1, self.name)
        self.details.param.update(object=html, visible=bool(html))

    def _pin_card(self) -> str:
        at = probe.find(self.scene.snapshot, *self.pinned) if self.scene is not None and self.pinned is not None else None
        self.timeline.show_pin(self.scene, at)
        if at is None:
            return ""
        (_, title), *facts = probe.facts(self.scene, at)
        rows = "".join(f"<tr><th>{escape(k)}</th><td>{escape(v)}</td></tr>" for k, v in facts)
        head = f"<h3>{escape(title)}</h3><p>below: {escape(self.name)}</p>"
        return f"<div class='card'>{head}<table>{rows}</table></div>"
