"""Picture: a range as PNG or SVG: lanes with their steps above and strips below, title and legend, as on the page."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import numpy as np

from mkviz import palette
from mkviz.dashboard.scene import IDLE
from mkviz.dashboard.theme import KIND_COLOURS, theme_of
from mkviz.dashboard.units import duration, percent

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from mkviz.dashboard.scene import Scene
    from mkviz.dashboard.theme import Theme
    from mkviz.exports.excerpt import Excerpt

INCHES, DPI = (14.0, 8.6), 150
COLUMNS = 1800  # pixel columns of the lanes
LEFT, RIGHT = 0.062, 0.99  # of the width
PLACES = (
    (0.896, 0.022),
    (0.32, 0.572),
    (0.222, 0.062),
    (0.152, 0.062),
    (0.082, 0.062),
)  # bottom and height: steps, lanes, strips
SMALL = 8  # points


def picture(excerpt: Excerpt, form: str) -> bytes:
    """``png`` of 2100 × 1290 pixels, or ``svg`` whose text stays text."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    scene, theme = excerpt.scene(COLUMNS), theme_of(excerpt.look.dark)
    style = {
        "svg.fonttype": "none", "svg.hashsalt": "mkviz", "font.size": SMALL, "text.color": theme.text,
        "axes.edgecolor": theme.grid, "axes.facecolor": theme.page, "xtick.color": theme.faint, "ytick.color": theme.faint,
    }  # fmt: skip
    with mpl.rc_context(style):
        figure = Figure(figsize=INCHES, facecolor=theme.page)
        steps, lanes, *strips = [figure.add_axes((LEFT, bottom, RIGHT - LEFT, height)) for bottom, height in PLACES]
        for axes in (steps, lanes, *strips):
            axes.set_xlim(excerpt.x0 / 1000, excerpt.x1 / 1000)
            axes.tick_params(length=0)
            axes.spines[:].set_visible(False)
        _draw_steps(steps, excerpt, theme)
        _draw_lanes(lanes, scene, theme)
        _draw_strips(strips, scene, theme)
        figure.text(LEFT, 0.965, excerpt.title, size=11, weight="bold", color=KIND_COLOURS[excerpt.kind][excerpt.look.dark])
        figure.text(LEFT, 0.94, excerpt.words, color=theme.faint)
        _draw_legend(figure, scene, theme)
        out = io.BytesIO()
        metadata = {"Date": None, "Title": excerpt.title} if form == "svg" else {"Title": excerpt.title}
        figure.savefig(out, format=form, dpi=DPI, metadata=metadata)
    return out.getvalue()


def _draw_steps(axes: Axes, excerpt: Excerpt, theme: Theme) -> None:
    rows, snapshot = excerpt.snapshot.steps[excerpt.steps], excerpt.snapshot
    axes.set(ylim=(0, 1), xticks=[], yticks=[])
    for row in rows:
        begin, end = ((int(row[k]) - snapshot.origin) for k in ("begin", "end"))
        axes.axvspan(begin / 1000, end / 1000, color=theme.step, alpha=0.55 if row["step"] % 2 else 1, linewidth=0)
        share = (min(end, excerpt.x1) - max(begin, excerpt.x0)) / (excerpt.x1 - excerpt.x0)
        if share > 0.05:
            text = f" step {row['step']}" + (f" · {duration(end - begin)}" if share > 0.1 else "")
            axes.text(max(begin, excerpt.x0) / 1000, 0.45, text, va="center", color=theme.faint)


def _draw_lanes(axes: Axes, scene: Scene, theme: Theme) -> None:
    """An image where there are too many tasks to draw one by one, as on the page."""
    from matplotlib.collections import PolyCollection
    from matplotlib.colors import to_rgba_array

    count = scene.snapshot.lanes
    if scene.rects is None:
        index, colours = scene.image_u8()
        frame = scene.image
        pixels = np.round(to_rgba_array(colours) * 255).astype(np.uint8)[index]
        extent = (frame.x0 / 1000, (frame.x0 + frame.dx * frame.cols) / 1000, count, 0)
        axes.imshow(pixels, extent=extent, aspect="auto", interpolation="nearest")
        axes.set_xlim(scene.x0 / 1000, scene.x1 / 1000)
    else:
        rects, snapshot = scene.rects, scene.snapshot
        begin, end, ready = ((getattr(snapshot, k)[rects.row] - snapshot.origin) / 1000 for k in ("begin", "end", "ready"))
        waited = ready > rects.free / 1000
        waits = _boxes(rects.free[waited] / 1000, ready[waited], rects.lane[waited], 0.3)
        axes.add_collection(PolyCollection(waits, facecolor=theme.wait, alpha=0.5, linewidth=0))
        colour, alpha = scene.rect_colours(rects)
        colours = to_rgba_array(colour.tolist())
        colours[:, 3] = alpha
        axes.add_collection(PolyCollection(_boxes(begin, end, rects.lane, 0.86), facecolor=colours, linewidth=0))
    every = next((n for n in (1, 2, 4, 8, 12, 16, 32, 64) if count / n <= 44), 128)
    shown = range(0, count, every)
    axes.set(ylim=(count, 0), yticks=[lane + 0.5 for lane in shown], yticklabels=[f"SM {lane}" for lane in shown])
    axes.xaxis.set_major_formatter(lambda value, _: _time(value, (scene.x1 - scene.x0) / 1000))
    axes.tick_params(axis="x", length=2)


def _boxes(left: np.ndarray, right: np.ndarray, lane: np.ndarray, height: float) -> np.ndarray:
    """f64[n, 4, 2] corners."""
    top, bottom = lane + 0.5 - height / 2, lane + 0.5 + height / 2
    return np.stack([np.stack(corner, -1) for corner in ((left, top), (right, top), (right, bottom), (left, bottom))], 1)


def _time(value: float, span: float) -> str:
    size, unit = next(
        (s, u) for s, u, limit in ((1e-3, "ns", 1), (1, "µs", 5e3), (1e3, "ms", 5e6), (1e6, "s", np.inf)) if span < limit
    )
    return f"{value / size:,.10g} {unit}".replace(",", " ")


def _draw_strips(strips: list[Axes], scene: Scene, theme: Theme) -> None:
    frame, lanes = scene.image, scene.snapshot.lanes
    x = (frame.x0 + frame.dx * (np.arange(frame.cols) + 0.5)) / 1000
    most = float(frame.rate.max(initial=0)) or 1.0
    reach = f"{most / 1000:.2f} TB/s" if most >= 1000 else f"{most:.3g} GB/s"
    rows = [
        (f"busy SMs\nof {lanes}", lanes, [(0, frame.busy_lanes, theme.busy)]),
        (f"waiting\nof {lanes}", lanes, [(0, frame.waiting_lanes, theme.wait),
                                         (frame.waiting_lanes, frame.waiting_lanes + frame.tail_lanes, palette.TAIL_ABOVE)]),
        (f"reads to\n{reach}", most, [(0, frame.rate, palette.READS[scene.look.dark])]),
    ]  # fmt: skip
    for axes, (name, top, areas) in zip(strips, rows, strict=True):
        for low, high, colour in areas:
            axes.fill_between(x, low, high, color=colour, linewidth=0)
        axes.set(ylim=(0, 1.05 * top), xticks=[], yticks=[top / 2], yticklabels=[name])
        axes.spines[:].set_visible(True)


def _draw_legend(figure, scene: Scene, theme: Theme) -> None:
    """The ops with their share of all lanes' time within steps, then what SMs do while they run none."""
    from matplotlib.patches import Patch

    total = scene.summary
    items = [(op, colour, busy / (total.stepped or 1)) for op, colour, busy in
             zip(scene.snapshot.ops, scene.op_colours, total.busy, strict=True) if op not in scene.look.hidden]  # fmt: skip
    patches = [Patch(color=colour, label=f"{op} {percent(share)}") for op, colour, share in items]
    for name, share in scene.idle_shares.items():
        fill = {"wait": palette.WAIT, "ready": theme.page, "tail": palette.TAIL_ABOVE}[name]
        edge = palette.WAIT if name == "wait" else theme.faint
        patches.append(Patch(facecolor=fill, edgecolor=edge, label=f"{IDLE[name][0]} {percent(share)}"))
    figure.legend(
        handles=patches, loc="lower left", bbox_to_anchor=(LEFT - 0.008, 0.01), ncols=8, frameon=False, handlelength=1
    )
