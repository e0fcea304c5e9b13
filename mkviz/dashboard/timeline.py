"""Timeline: the lanes of all SMs over time, as one Bokeh figure and its own channel to the browser."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from bokeh.models import (
    BoxAnnotation,
    ColumnDataSource,
    CustomJS,
    CustomJSTickFormatter,
    FixedTicker,
    LinearColorMapper,
    PanTool,
    Range1d,
    SaveTool,
    Title,
    WheelZoomTool,
)
from bokeh.plotting import figure

from mkviz import palette
from mkviz.dashboard import probe, role_bars
from mkviz.dashboard.lanes import READABLE
from mkviz.dashboard.theme import KIND_COLOURS, asset, theme_of
from mkviz.dashboard.units import duration
from mkviz.roles import MATH, ROLES, STORER

if TYPE_CHECKING:
    from mkviz.dashboard.scene import Scene

LEFT = 72  # px of every figure's left border, room for the widest ticks in any font, so that their time axes line up
RIGHT = 12
NARROWEST = 0.02  # µs
LABEL_PX = 6.4  # mean width of a letter of the labels
MAX_LABELS, MAX_STEP_LABELS = 400, 200

TICKS = """
const step = ticks.length > 1 ? Math.abs(ticks[1] - ticks[0]) : 1
const [unit, size] = step < 0.5 ? ["ns", 1e-3] : step < 500 ? ["µs", 1] : step < 5e5 ? ["ms", 1e3] : ["s", 1e6]
const digits = Math.max(0, Math.min(6, Math.ceil(-Math.log10(step / size) - 1e-9)))
const shape = {minimumFractionDigits: digits, maximumFractionDigits: digits}
const text = (v) => (v / size).toLocaleString("en", shape).replaceAll(",", " ")
// far from the origin a full number says nothing: the first tick is full, the others are what is added to it
if (index > 0 && Math.abs(ticks[0]) > 2000 * step) return "+" + text(tick - ticks[0]) + " " + unit
return text(tick) + " " + unit
"""


REPAINT = """
// Bokeh leaves the outermost row and column of pixels in the border's earlier colour
const layer = plot.document?.views_manager?.find_one(plot)?.canvas_view?.primary
layer?.undo_transform((ctx) => ctx.clearRect(0, 0, layer.canvas.width, layer.canvas.height))
"""


def time_axis() -> CustomJSTickFormatter:
    return CustomJSTickFormatter(code=TICKS)


def bare_figure(x_range: Range1d, y_range: Range1d, **kwargs):
    """A figure of the page: shared time axis, aligned borders, horizontal zoom only."""
    wheel = WheelZoomTool(dimensions="width", zoom_on_axis=False)
    pan = PanTool(dimensions="width")
    fig = figure(
        x_range=x_range, y_range=y_range, tools=[pan, wheel, SaveTool()], toolbar_location=None, active_scroll=wheel,
        active_drag=pan, lod_threshold=None, min_border_left=LEFT, min_border_right=RIGHT, min_border_top=2,
        min_border_bottom=2,        outline_line_color=None,
        output_backend="canvas", **kwargs,
    )  # fmt: skip
    fig.xgrid.visible = False
    fig.ygrid.visible = False
    fig.yaxis.axis_line_color = None
    fig.yaxis.major_tick_line_color = None
    fig.yaxis.minor_tick_line_color = None
    fig.xaxis.minor_tick_line_color = None
    fig.xaxis.formatter = time_axis()
    fig.js_on_change("border_fill_color", CustomJS(args={"plot": fig}, code=REPAINT))
    return fig


def uncovered(left: np.ndarray, right: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Where each bar ends, or the next one of its line (of equal ``y``) begins, which is drawn over it."""
    by_line = np.lexsort((left, y))
    same = y[by_line[1:]] == y[by_line[:-1]]
    covered = np.full(len(left), np.inf)
    covered[by_line[:-1]] = np.where(same, left[by_line[1:]], np.inf)
    return np.minimum(right, covered)


class Timeline:
    """``root`` is the figure; ``update(scene)`` shows a scene.  ``channel`` models carry the viewport (see timeline.js) of the
    one that has its ``x_range`` for itself; one that is given it stays silent."""

    def __init__(self, x_range: Range1d | None = None):
        self.x_range = x_range or Range1d(0, 1000, min_interval=NARROWEST)
        self.y_range = Range1d(0, 1)
        self.frame = ColumnDataSource({k: [0] for k in ("seq", "x0", "x1", "follow", "moves", "lo", "hi")})
        self.view = ColumnDataSource({k: [] for k in ("x0", "x1", "width", "height", "follow", "moves", "n")})
        self.ack = ColumnDataSource({"seq": [0]})
        self.command = ColumnDataSource({k: [] for k in ("n", "name", "x", "y", "text")})
        self.tip = ColumnDataSource({"html": [""]})
        self.image = ColumnDataSource(self._no_image())
        self.rects = ColumnDataSource(self._no_rects())
        self.waits = ColumnDataSource({"left": [], "right": [], "y": []})
        self.labels = ColumnDataSource(self._no_labels())
        self.steps = ColumnDataSource({k: [] for k in ("left", "right", "alpha", "x", "text")})
        self.arrows = ColumnDataSource({k: [] for k in ("x0", "y0", "x1", "y1", "last")})
        self.pin = ColumnDataSource({"left": [], "right": [], "y": []})
        self.mapper = LinearColorMapper(palette=["#000000"] * 256, low=-0.5, high=255.5)
        self.title = Title(text="", text_font_size="12px", text_font_style="bold", offset=4)
        self.roles_title = Title(text="", text_font_size="11px", text_font_style="normal", offset=4, visible=False)
        self.band = BoxAnnotation(visible=False, fill_alpha=0.14, line_alpha=0.8, level="overlay")
        self.step_band = BoxAnnotation(visible=False, fill_alpha=0.10, line_alpha=0.5, level="underlay")
        self._laid_out: tuple | None = None
        self._lanes, self._roles = range(0), False
        self._palette: list[str] = []
        self.root = self._build()

    @staticmethod
    def _no_labels() -> dict:
        return {"x": [], "y": [], "text": [], "color": []}

    @staticmethod
    def _no_image() -> dict:
        return {"image": [], "x": [], "dw": [], "dh": []}

    @staticmethod
    def _no_rects() -> dict:
        return {"left": [], "right": [], "y": [], "color": [], "alpha": []}

    def _build(self):
        fig = bare_figure(self.x_range, self.y_range, sizing_mode="stretch_both", min_height=220, title=self.title)
        fig.yaxis[0].ticker = FixedTicker(ticks=[])
        fig.xaxis[0].visible = False
        fig.add_layout(self.step_band)
        fig.add_layout(self.roles_title, "above")
        self.step_bars = fig.hbar(
            left="left",
            right="right",
            y=0.5,
            height=1,
            source=self.steps,
            fill_alpha="alpha",
            line_color=None,
            level="underlay",
        )
        self.separators = fig.ygrid[0]
        self.separators.ticker = FixedTicker(ticks=[])
        fig.image(image="image", x="x", y=0, dw="dw", dh="dh", source=self.image, color_mapper=self.mapper, level="image")
        self.wait_bars = fig.hbar(
            left="left", right="right", y="y", height=0.3, source=self.waits, line_color=None, fill_alpha=0.5
        )
        self.bars = fig.hbar(
            left="left", right="right", y="y", height=0.86, source=self.rects, fill_color="color", fill_alpha="alpha",
            line_color=None,
        )  # fmt: skip
        self.label_text = fig.text(
            x="x", y="y", text="text", source=self.labels, text_baseline="middle", text_font_size="11px", text_color="color"
        )
        self.step_text = fig.text(
            x="x", y=0, text="text", source=self.steps, text_baseline="middle", text_font_size="11px", x_offset=5
        )
        self.pin_bars = fig.hbar(
            left="left", right="right", y="y", height=0.98, source=self.pin, fill_color=None, line_width=2.5
        )
        self.arrow_lines = fig.segment("x0", "y0", "x1", "y1", source=self.arrows, line_width=1.4, line_alpha="last")
        self.arrow_heads = fig.scatter("x1", "y1", source=self.arrows, size=6, line_color=None)
        fig.add_layout(self.band)
        channel = {"frame": self.frame, "view": self.view, "ack": self.ack, "command": self.command, "tip": self.tip,
                   "x_range": self.x_range, "plot": fig, "bands": [self.band], "others": []}  # fmt: skip
        self._open = CustomJS(args=channel, code=asset("glyphs.js") + asset("timeline.js"))
        self.frame.js_on_change("data", self._open)
        moved = CustomJS(args={"frame": self.frame}, code="window.mkviz?.[frame.id]?.moved()")
        self.x_range.js_on_change("start", moved)
        self.x_range.js_on_change("end", moved)
        self.tip.js_on_change("data", CustomJS(args={"frame": self.frame}, code="window.mkviz?.[frame.id]?.tipped()"))
        # models that nothing draws still have to reach the page
        fig.tags = [self.view, self.ack, self.command, self.tip, self.frame]
        return fig

    def in_cell(self, plot) -> None:
        """For a notebook, where the first frame is part of the document and others may be beside it: open the channel of
        ``plot`` (this figure, or another on the same axis) when that is laid out, leave those of other figures open, hear keys
        only while the pointer is on it, and bring the page's style along."""
        self.frame.tags = ["cell", asset("page.css")]
        self._open.args = {**self._open.args, "plot": plot}
        if plot is not self.root:
            plot.tags, self.root.tags = [*plot.tags, *self.root.tags], []
        plot.js_on_change("inner_width", self._open)

    def measured_on(self, figures: list, bands: list[BoxAnnotation]) -> None:
        """A range can be measured on these figures of the same axis as well, and is seen as these bands."""
        self._open.args = {**self._open.args, "others": figures, "bands": [self.band, *bands]}

    # what is shown

    def clear(self) -> None:
        self.image.data = self._no_image()
        self.rects.data, self.waits.data = self._no_rects(), {"left": [], "right": [], "y": []}
        self.labels.data = self._no_labels()
        self.steps.data = {k: [] for k in self.steps.data}
        self.show_pin(None, None)
        self.band.visible = self.step_band.visible = self.root.xaxis[0].visible = False
        self.root.yaxis[0].ticker.ticks = []
        self._laid_out, self.roles_title.visible = None, False

    def show_pin(self, scene: Scene | None, at: probe.Hit | None) -> None:
        """Outline a task and draw arrows to it from those it waited for; the one it waited for last is drawn strongest."""
        if at is None:
            if len(self.pin.data["left"]):
                self.pin.data = {"left": [], "right": [], "y": []}
                self.arrows.data = {k: [] for k in self.arrows.data}
            return
        snap = scene.snapshot
        micro = lambda ns: (int(ns) - snap.origin) / 1000  # noqa: E731
        y = self.y_of(at.lane, MATH)
        self.pin.data = {"left": [micro(snap.begin[at.row])], "right": [micro(snap.end[at.row])], "y": [y]}
        found = probe.dependencies(snap, at.step, at.row)
        lanes = [probe.lane_of(snap, at.step, row) for row, _, _ in found]
        self.arrows.data = {
            "x0": [micro(snap.publish[row]) for row, _, _ in found], "y0": [self.y_of(lane, STORER) for lane in lanes],
            "x1": [micro(snap.begin[at.row])] * len(found), "y1": [y] * len(found),
            "last": [1.0 if last else 0.35 for _, _, last in found],
        }  # fmt: skip

    def restyle(self, dark: bool, kind: str) -> None:
        theme = theme_of(dark)
        fig = self.root
        fig.update(background_fill_color=theme.page, border_fill_color=theme.page)
        fig.axis.major_label_text_color = theme.faint
        fig.update(background_fill_color=theme.page, border_fill_color=theme.page)
        fig.axis.major_label_text_font_size = "11px"
        fig.xaxis.axis_line_color = theme.grid
        fig.xaxis.major_tick_line_color = theme.grid
        self.title.text_color = KIND_COLOURS[kind][dark]
        self.roles_title.text_color = theme.faint
        self.step_bars.glyph.fill_color = theme.step
        self.step_text.glyph.text_color = theme.faint
        self.separators.grid_line_color = theme.page
        self.wait_bars.glyph.fill_color = theme.wait
        for name in ("fill_color", "line_color"):
            setattr(self.band, name, theme.accent)
            setattr(self.step_band, name, theme.accent)
        self.pin_bars.glyph.line_color = theme.text
        self.arrow_lines.glyph.line_color = theme.text
        self.arrow_heads.glyph.fill_color = theme.text

    def update(self, scene: Scene, height: float) -> None:
        """Show ``scene`` on a frame ``height`` px tall."""
        self._lay_out(scene.lanes, scene.look.roles, height)
        self._show_steps(scene)
        rects = scene.rects
        if rects is None:
            self._show_image(scene)
        else:
            self._show_rects(scene, rects, height / max(1, len(scene.lanes)))
        caption = role_bars.caption(scene) if scene.look.roles else ""
        if caption != self.roles_title.text:
            self.roles_title.update(text=caption, visible=bool(caption))

    def y_of(self, lane, role: int = MATH):
        """The middle of a lane, or of a role's sub-lane where there are such; the first lane in view is on top."""
        top = len(self._lanes) - (lane - self._lanes.start)
        return top - (role + 0.5) / len(ROLES) if self._roles else top - 0.5

    def lane_at(self, y: float) -> int:
        """The SM at a height, -1 for none."""
        lane = self._lanes.start + int(np.floor(len(self._lanes) - y))
        return lane if 0 <= y < len(self._lanes) and lane in self._lanes else -1

    def role_at(self, y: float) -> int | None:
        """The role whose sub-lane is at a height; None where lanes are not divided."""
        return int(np.floor((len(self._lanes) - y) % 1 * len(ROLES))) if self._roles else None

    def _lay_out(self, lanes: range, roles: bool, height: float) -> None:
        n = len(lanes)
        band = n * 20 / max(60, height - 20)  # room for the step markers above the first lane
        if (lanes, roles) == self._laid_out and abs(self.y_range.end - n - band) < band * 0.02:
            return
        self._laid_out, self._lanes, self._roles = (lanes, roles), lanes, roles
        self.root.xaxis.visible = True
        self.y_range.update(start=0, end=n + band)
        self.step_bars.glyph.update(y=n + band / 2, height=band * 0.9)
        self.step_text.glyph.y = n + band / 2
        px, part = height / max(1, n), len(ROLES) if roles else 1
        for bars, share in ((self.bars, 0.86), (self.wait_bars, 0.3), (self.pin_bars, 0.98)):
            bars.glyph.height = share / part
        axis = self.root.yaxis[0]
        labels = self._lane_labels(px)
        axis.ticker.ticks, axis.major_label_overrides = list(labels), labels
        grid = self.separators
        grid.ticker.ticks = list(range(n + 1)) if px >= 7 else []
        grid.update(visible=px >= 7, grid_line_width=max(1, min(4, px * 0.14)), level="glyph")

    def _lane_labels(self, px: float) -> dict[float, str]:
        """By height: the SM's number on its math, and the other roles' names where there is room."""
        every = next((n for n in (1, 2, 4, 8, 12, 16, 32, 64) if n * px >= 15), 128)
        shown = [lane for lane in self._lanes if (lane - self._lanes.start) % every == 0]
        if not self._roles or px < READABLE * len(ROLES) * 0.9:
            middle = 0.0 if not self._roles else 0.125  # of the SM, which is between two sub-lanes
            return {float(self.y_of(lane) + middle): f"SM {lane}" for lane in shown}
        return {
            float(self.y_of(lane, role)): f"SM {lane}" if role == MATH else name  # longer ones would widen the border
            for lane in shown for role, name in enumerate(ROLES)
        }  # fmt: skip

    def _show_image(self, scene: Scene) -> None:
        index, table = scene.image_u8()
        frame = scene.drawn
        if table != self._palette:
            self._palette = table
            self.mapper.palette = table
        self.image.data = {"image": [np.ascontiguousarray(index[::-1])], "x": [frame.x0 / 1000],
                           "dw": [frame.dx * frame.cols / 1000], "dh": [max(1, len(scene.lanes))]}  # fmt: skip
        if len(self.rects.data["left"]) or len(self.waits.data["left"]):
            self.rects.data, self.waits.data = self._no_rects(), {"left": [], "right": [], "y": []}
            self.labels.data = self._no_labels()

    def _show_rects(self, scene: Scene, rects, lane_px: float) -> None:
        snap = scene.snapshot
        if scene.look.roles:
            rects, drawn, waits = role_bars.bars(scene, rects, self.y_of)
            lane_px /= len(ROLES)
        else:
            colour, alpha = scene.rect_colours(rects)
            left, right, ready = ((c[rects.row] - snap.origin) / 1000 for c in (snap.begin, snap.end, snap.ready))
            drawn = {"left": left, "right": right, "y": self.y_of(rects.lane), "color": colour, "alpha": alpha}
            waited = ready > rects.free / 1000
            waits = {"left": rects.free[waited] / 1000, "right": ready[waited], "y": drawn["y"][waited]}
        self.rects.data, self.waits.data = drawn, waits
        self.labels.data = self._label(scene, rects, *drawn.values()) if lane_px >= READABLE else self._no_labels()
        if len(self.image.data["image"]):
            self.image.data = self._no_image()

    def _label(self, scene: Scene, rects, left, right, y, colour, alpha) -> dict:
        """Names of the tasks wide enough to hold them, at the visible part of each: up to the next bar of its line."""
        snap, scale = scene.snapshot, scene.width / (scene.x1 - scene.x0) * 1000  # px per µs
        a, b = np.maximum(left, scene.x0 / 1000), np.minimum(uncovered(left, right, y), scene.x1 / 1000)
        px = (b - a) * scale
        fit = np.array([len(op) * LABEL_PX + 8 for op in snap.ops])[snap.op[rects.row]]
        shown = np.flatnonzero((px > fit) & (alpha > 0.5))[:MAX_LABELS]
        text = []
        for i in shown:
            row, layer = rects.row[i], scene.tables.layer[self._table_row(scene, rects, i)]
            name = snap.ops[snap.op[row]]
            long = f"{name} L{layer}"
            text.append(long if layer >= 0 and px[i] > len(long) * LABEL_PX + 8 else name)
        ink = np.array([palette.ink(c) for c in colour[shown]], dtype=str)
        return {"x": a[shown] + 4 / scale, "y": y[shown], "text": text, "color": ink}

    @staticmethod
    def _table_row(scene: Scene, rects, i: int) -> int:
        graph = int(scene.snapshot.steps["graph"][rects.step[i]])
        return scene.tables.start[graph] + int(scene.snapshot.task[rects.row[i]])

    def _show_steps(self, scene: Scene) -> None:
        snap = scene.snapshot
        begin, end = (snap.steps[k] - snap.origin for k in ("begin", "end"))
        span = scene.x1 - scene.x0
        rows = np.flatnonzero((begin < scene.x1 + span) & (end > scene.x0 - span))
        px = (np.minimum(end[rows], scene.x1) - np.maximum(begin[rows], scene.x0)) * scene.width / span
        if len(rows) > MAX_STEP_LABELS:  # steps narrower than a few pixels are a texture, not markers
            rows, px = rows[:0], px[:0]
        text = []
        for row, wide in zip(rows, px, strict=True):
            number, length = int(snap.steps["step"][row]), duration(int(end[row] - begin[row]))
            text.append(f"step {number} · {length}" if wide > 130 else f"step {number}" if wide > 64 else "")
        left, right = begin[rows] / 1000, end[rows] / 1000
        self.steps.data = {"left": left, "right": right, "alpha": np.where(snap.steps["step"][rows] % 2, 0.55, 1.0),
                           "x": np.maximum(left, scene.x0 / 1000), "text": text}  # fmt: skip
