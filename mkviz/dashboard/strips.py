"""Strips: what all lanes together do, under the timeline and on its time axis; and the minimap of the whole source."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from bokeh.models import ColumnDataSource, FixedTicker, Label, Range1d, RangeTool, Span

from mkviz import lod, palette
from mkviz.dashboard.theme import theme_of
from mkviz.dashboard.timeline import bare_figure
from mkviz.machine import named_in

if TYPE_CHECKING:
    from mkviz.dashboard.scene import Scene
    from mkviz.store import Snapshot

HEIGHT = 58
MINIMAP_COLUMNS = 800


def _steps_of(edges_from: float, dx: float, *series: np.ndarray, stride: int = 2) -> tuple[np.ndarray, ...]:
    """x (µs) at column centres and the series, ``stride`` columns averaged into one."""
    n = len(series[0]) // stride
    x = (edges_from + dx * stride * (np.arange(n) + 0.5)) / 1000
    return x, *(s[: n * stride].reshape(n, stride).mean(1).astype(np.float32) for s in series)


class Strip:
    """A band of lanes doing something over time.  Subclasses say what: ``name``, ``values(scene)``, ``top(scene)``."""

    name = title = ""  # beside it, and where it stands alone

    def __init__(self, x_range: Range1d):
        self.source = ColumnDataSource({"x": [], "y": []})
        self.y_range = Range1d(0, 1)
        self.root = bare_figure(x_range, self.y_range, height=HEIGHT, sizing_mode="stretch_width")
        self.root.xaxis.visible = False
        self.root.yaxis[0].ticker = FixedTicker(ticks=[])
        self.area = self.root.varea(x="x", y1=0, y2="y", source=self.source, fill_alpha=0.75)
        self.line = self.root.line(x="x", y="y", source=self.source, line_width=1)
        self._top = 0.0
        self._scale(1.0)

    def values(self, scene: Scene) -> np.ndarray:
        raise NotImplementedError

    def top(self, scene: Scene, values: np.ndarray) -> float:
        return float(max(1, scene.snapshot.lanes))

    def text(self, top: float) -> str:
        return f"of {top:.0f}"

    def words(self, scene: Scene, time: float) -> str:
        """HTML of its value at a time (ns since origin); "" outside what the scene holds."""
        values, frame = self.values(scene), scene.image
        column = int((time - frame.x0) // frame.dx)
        return f"<b>{self.value(float(values[column]))}</b> {self.title}" if 0 <= column < len(values) else ""

    def value(self, value: float) -> str:
        return f"{value:.1f}"

    def colour(self, dark: bool) -> str:
        return theme_of(dark).busy

    def restyle(self, dark: bool) -> None:
        theme = theme_of(dark)
        self.root.yaxis.update(major_label_text_color=theme.faint, major_label_text_font_size="11px")
        self.root.update(outline_line_color=theme.grid, background_fill_color=theme.page, border_fill_color=theme.page)
        self.area.glyph.fill_color = self.line.glyph.line_color = self.colour(dark)

    def update(self, scene: Scene) -> None:
        frame = scene.image
        values = self.values(scene)
        x, y = _steps_of(frame.x0, frame.dx, values)
        self.source.data = {"x": x, "y": y}
        top = self.top(scene, values)
        if top != self._top:
            self._scale(top)

    def _scale(self, top: float) -> None:
        """One tick in the middle says what the strip is and how far it reaches."""
        self._top = top
        self.y_range.update(start=0, end=top * 1.05)
        axis = self.root.yaxis[0]
        axis.ticker.ticks = [top / 2]
        axis.major_label_overrides = {top / 2: f"{self.name}\n{self.text(top)}"}


class Busy(Strip):
    name = title = "busy SMs"

    def values(self, scene):
        return scene.image.busy_lanes


class Waits(Strip):
    """SMs that wait, and above them those that have run out of tasks (tail)."""

    name, title = "waiting", "SMs waiting, and in the tail above them"

    def __init__(self, x_range: Range1d):
        super().__init__(x_range)
        self.tail_source = ColumnDataSource({"x": [], "y1": [], "y2": []})
        self.tail = self.root.varea(x="x", y1="y1", y2="y2", source=self.tail_source, fill_color=palette.TAIL_ABOVE)

    def values(self, scene):
        return scene.image.waiting_lanes

    def colour(self, dark):
        return theme_of(dark).wait

    def update(self, scene):
        super().update(scene)
        frame = scene.image
        x, low, high = _steps_of(frame.x0, frame.dx, frame.waiting_lanes, frame.waiting_lanes + frame.tail_lanes)
        self.tail_source.data = {"x": x, "y1": low, "y2": high}


class Tails(Strip):
    """SMs that have run out of tasks, by themselves."""

    name, title = "in the tail", "SMs in the tail"

    def values(self, scene):
        return scene.image.tail_lanes

    def colour(self, dark):
        return palette.TAIL


class Bandwidth(Strip):
    """Bytes that tasks read from device memory, spread evenly over each task's time; and the most that the machine can read,
    where the source's label names one that mkviz knows.  Bytes loaded ahead of their task count in it, so peaks can pass that.
    """

    name, title = "reads to", "reads from device memory"

    def __init__(self, x_range: Range1d):
        super().__init__(x_range)
        self.ceiling = 0.0  # bytes/ns, 0: not known
        self.limit = Span(dimension="width", line_dash="dashed", line_width=1, visible=False, location=0)
        self.limit_text = Label(
            x=6, x_units="screen", y=0, text="", text_font_size="11px", text_baseline="bottom", background_fill_alpha=0.7,
            visible=False,
        )  # fmt: skip
        self.root.add_layout(self.limit)
        self.root.add_layout(self.limit_text)

    def of(self, label: str) -> None:
        """The source shown now is the one of this label."""
        machine = named_in(label)
        self.ceiling = machine.bandwidth / 1e9 if machine else 0.0
        self.limit.update(location=self.ceiling, visible=machine is not None)
        text = f"{self.ceiling / 1000:.3g} TB/s: the most one {machine.name} was measured to read" if machine else ""
        self.limit_text.update(text=text, y=self.ceiling, visible=machine is not None)

    def values(self, scene):
        return scene.image.rate

    def colour(self, dark):
        return palette.READS[dark]

    def restyle(self, dark):
        super().restyle(dark)
        theme = theme_of(dark)
        self.limit.line_color = self.limit_text.text_color = theme.text
        self.limit_text.background_fill_color = theme.page

    def top(self, scene, values):
        """The next of 1, 2, 3, 4, 6, 8, 10 × 10ⁿ, so that the scale rests while the view moves; room above the ceiling."""
        most = max(float(values.max(initial=0)), 1.3 * self.ceiling)
        if most <= 0:
            return 1.0
        power = 10.0 ** np.floor(np.log10(most))
        return next(power * m for m in (1, 2, 3, 4, 6, 8, 10) if power * m >= most)

    def value(self, value):
        return f"{value / 1000:.2f} TB/s" if value >= 1000 else f"{value:.3g} GB/s"

    def text(self, top):
        return f"{top / 1000:g} TB/s" if top >= 1000 else f"{top:g} GB/s"


class Minimap:
    """The whole source at a glance, with the window that the timeline shows: drag it or its edges."""

    def __init__(self, x_range: Range1d):
        self.range = Range1d(0, 1)
        self.source = ColumnDataSource({"x": [], "busy": [], "both": []})
        self.root = bare_figure(self.range, Range1d(0, 1), height=40, sizing_mode="stretch_width")
        self.root.yaxis.visible = False
        self.root.xaxis.visible = False
        self.root.toolbar.tools = []
        self.busy = self.root.varea(x="x", y1=0, y2="busy", source=self.source, fill_alpha=0.8)
        self.wait = self.root.varea(x="x", y1="busy", y2="both", source=self.source, fill_alpha=0.4)
        self.tool = RangeTool(x_range=x_range)
        self.root.add_tools(self.tool)

    def restyle(self, dark: bool) -> None:
        theme = theme_of(dark)
        self.busy.glyph.fill_color = theme.busy
        self.wait.glyph.fill_color = theme.wait
        self.root.update(outline_line_color=theme.grid, background_fill_color=theme.page, border_fill_color=theme.page)
        self.tool.overlay.update(
            fill_color=theme.accent, fill_alpha=0.16, line_color=theme.accent, line_alpha=0.9, line_dash="solid"
        )

    def update(self, snapshot: Snapshot, tables: lod.GraphTables) -> None:
        lo, hi = snapshot.extent
        if hi <= lo:
            return
        frame = lod.image_frame(snapshot, tables, lo, hi, MINIMAP_COLUMNS, tables.op, np.zeros(len(snapshot.ops)))
        lanes = max(1, snapshot.lanes)
        busy, both = frame.busy_lanes / lanes, (frame.busy_lanes + frame.waiting_lanes) / lanes
        x, busy, both = _steps_of(lo, frame.dx, busy, both, stride=1)
        self.source.data = {"x": x, "busy": busy, "both": both}

    def reach(self, snapshot: Snapshot) -> None:
        """Span all that is kept, ahead of the next ``update``."""
        lo, hi = snapshot.extent
        if hi > lo:
            self.range.update(start=lo / 1000, end=hi / 1000)
