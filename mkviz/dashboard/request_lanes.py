"""Request lanes: what each request of a server was at, above the SMs and on their time axis."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

import panel as pn
from bokeh.models import ColumnDataSource, CustomJS, FixedTicker, Range1d

from mkviz import palette
from mkviz.dashboard import moves, request_words
from mkviz.dashboard.html import Html
from mkviz.dashboard.theme import asset, theme_of
from mkviz.dashboard.timeline import bare_figure
from mkviz.request_times import ENDS, RequestTimes, clock_shift, last_time, steps_of, times_of

if TYPE_CHECKING:
    from mkviz.dashboard.scene import Scene
    from mkviz.dashboard.session import Session
    from mkviz.store import Snapshot

SHOWN = 8  # lanes: of the requests in view, the newest
LANE_PX, LEAST_PX = 14, 30
THICK = {"queued": 0.3, "prefill": 0.82, "decode": 0.82, "preempted": 0.3}  # of a lane: idle states are thin


def shown(snapshot: Snapshot, x0: float, x1: float) -> tuple[list[RequestTimes], int, int]:
    """(the requests that get a lane, by arrival; how many there are between x0 and x1, ns since the origin; the ns that their
    clock is ahead of the records')."""
    shift = clock_shift(snapshot)
    low, high = snapshot.origin + shift + x0, snapshot.origin + shift + x1
    inside = sorted(
        (changes[0].time, request) for request, changes in snapshot.changes.items()
        if changes[0].time < high and (changes[-1].state not in ENDS or changes[-1].time > low)
    )  # fmt: skip
    return times_of({request: snapshot.changes[request] for _, request in inside[-SHOWN:]}, ()), len(inside), shift


class RequestLanes:
    """One lane a request, coloured by what it was at; hover tells of it, a click leads to its first step.  Hidden while the
    source knows fewer than two requests.  ``legend`` stands above the figure ``root``."""

    def __init__(self, x_range: Range1d):
        self.lanes: list[RequestTimes] = []
        self._dark, self._words, self._most = False, None, 0
        self.spans = ColumnDataSource(self._none())
        self.ends = ColumnDataSource({"x": [], "y": []})
        self.tip = ColumnDataSource({"html": [""]})
        self.command = ColumnDataSource({k: [] for k in ("n", "name", "x", "y")})
        self.legend = Html(
            "", css_classes=["requests"], stylesheets=[asset("request_lanes.css")], margin=(2, 12, 0, 64),
            sizing_mode="stretch_width", visible=False,
        )  # fmt: skip
        self.root = bare_figure(x_range, Range1d(0, 1), height=LEAST_PX, sizing_mode="stretch_width", visible=False)
        self.root.name = "requests"
        self.root.xaxis.visible = False
        self.root.yaxis[0].ticker = FixedTicker(ticks=[])
        self.root.hbar(
            left="left", right="right", y="y", height="height", source=self.spans, fill_color="colour", line_color="colour",
            line_width=1,
        )  # fmt: skip
        self.marks = self.root.scatter("x", "y", source=self.ends, marker="x", size=8, line_width=2)

    @staticmethod
    def _none() -> dict:
        return {k: [] for k in ("left", "right", "y", "height", "colour")}

    def connect(self, session: Session) -> None:
        """Hover and clicks come through a channel of its own, as those of a second timeline do."""
        code = CustomJS(args={"plot": self.root, "command": self.command, "tip": self.tip}, code=asset("compare.js"))
        for event in ("mousemove", "mouseleave", "tap"):
            self.root.js_on_event(event, code)
        self.tip.js_on_change("data", code)
        self.root.x_range.js_on_change("start", code)
        self.command.on_change("data", lambda attr, old, new: self._commanded(session, new))

    def restyle(self, dark: bool) -> None:
        theme = theme_of(dark)
        self._dark, self._words = dark, None
        self.root.yaxis.update(major_label_text_color=theme.faint, major_label_text_font_size="11px")
        self.root.update(outline_line_color=theme.grid, background_fill_color=theme.page, border_fill_color=theme.page)
        self.marks.glyph.line_color = theme.text

    def clear(self) -> None:
        self.spans.data, self.ends.data = self._none(), {"x": [], "y": []}
        self.lanes, self._most, self._words = [], 0, None
        self.root.visible = self.legend.visible = False

    def update(self, scene: Scene) -> None:
        snapshot = scene.snapshot
        told = len(snapshot.changes) > 1
        if self.root.visible != told:
            self.root.visible = self.legend.visible = told
        if not told:
            return
        self.lanes, inside, shift = shown(snapshot, scene.x0, scene.x1)
        self._lay_out()
        colours, zero = palette.STATES[self._dark], snapshot.origin + shift
        until = zero + snapshot.extent[1]
        rows = [
            (begin, end, lane + 0.5, THICK[state], colours[state])
            for lane, times in enumerate(self.lanes) for state, begin, end in times.spans(until) if state in THICK
        ]  # fmt: skip
        left, right, *others = zip(*rows, strict=True) if rows else [()] * 5
        micro = lambda times: [(ns - zero) / 1000 for ns in times]  # noqa: E731  (the page cannot read an empty array)
        self.spans.data = dict(zip(self._none(), (micro(left), micro(right), *map(list, others)), strict=True))
        cut = [(times.ended, lane + 0.5) for lane, times in enumerate(self.lanes) if times.now.state in ("stopped", "failed")]
        self.ends.data = {"x": micro([time for time, _ in cut]), "y": [y for _, y in cut]}
        self._show_legend(len(self.lanes), inside)

    def _lay_out(self) -> None:
        """As many lanes as there have been at once, so that the figures below rest; the first request is on top."""
        self._most = max(self._most, len(self.lanes), 2)
        height = max(LEAST_PX, LANE_PX * self._most + 4)
        if self.root.height != height:
            self.root.height = height
        if self.root.y_range.start != self._most:
            self.root.y_range.update(start=self._most, end=0)
        labels = {lane + 0.5: f"req {times.request}" for lane, times in enumerate(self.lanes)}
        axis = self.root.yaxis[0]
        if axis.major_label_overrides != labels:
            axis.ticker.ticks, axis.major_label_overrides = list(labels), labels

    def _show_legend(self, lanes: int, inside: int) -> None:
        words = lanes, inside
        if words == self._words:
            return
        self._words = words
        keys = "".join(
            f"<span><i style='background:{colour};height:{round(12 * THICK[state])}px'></i>{escape(state)}</span>"
            for state, colour in palette.STATES[self._dark].items()
        )
        hidden = inside - lanes
        count = f"the newest {lanes} of {inside} in view, {hidden} not shown" if hidden else f"{inside} in view"
        self.legend.object = f"<p><b>requests</b> {keys}<span>× stopped or failed</span><span>{count}</span></p>"

    # what the pointer does

    def at(self, y: float) -> RequestTimes | None:
        """The request of a lane."""
        return self.lanes[int(y)] if 0 <= y < len(self.lanes) else None

    def _commanded(self, session: Session, data: dict) -> None:
        name, y = data["name"][0], data["y"][0]
        found = self.at(y)
        with pn.io.hold():
            if name == "tap" and found is not None:
                self.go_to(session, found.request)
            elif name != "tap":
                html = self._tip(session, found.request) if name == "hover" and found is not None else ""
                if html != self.tip.data["html"][0]:
                    self.tip.data = {"html": [html]}

    def _tip(self, session: Session, request: int) -> str:
        snapshot = session.scene.snapshot
        changes = snapshot.changes.get(request)
        if changes is None:
            return ""
        times = times_of({request: changes}, snapshot.tokens)
        return request_words.tip(times[0], max(last_time(times), clock_shift(snapshot) + snapshot.origin + snapshot.extent[1]))

    @staticmethod
    def go_to(session: Session, request: int) -> None:
        """Show the first step that is kept of a request."""
        snapshot = session.snapshot()
        steps = steps_of(snapshot.infos).get(request) if snapshot is not None else None
        if steps is None:
            session.panels.note(f"no step of request {request} is kept any more")
            return
        moves.show_step(session, steps[0])
        session.send()
