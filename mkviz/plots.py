"""Plots: what the analyses show, as Bokeh figures in one style, for notebooks, reports and pages alike.

Every figure names its source in the colour of the source's kind, has units on its axes, and says below the title what the
source could not tell.  Loads Bokeh: import it where a plot is made.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pandas as pd
from bokeh.models import ColumnDataSource, FactorRange, HoverTool, Legend, LegendItem, NumeralTickFormatter, Span, Title
from bokeh.plotting import figure

from mkviz import palette
from mkviz.dashboard.theme import KIND_COLOURS, theme_of
from mkviz.dashboard.units import duration, percent, signed

HEIGHT = 320  # px, without notes
NOTE = 20  # px of each
MOST_BARS = 40  # categories that have a bar of their own; the rest share one
MOST_ROWS = 20  # of a waterfall
MOST_POINTS = 4000  # steps, and outliers, that have a point of their own
MOST_PLACES = 1000  # numbers on an axis that have one; beyond, neighbours share them
UNITS = ((1e9, "s"), (1e6, "ms"), (1e3, "µs"), (1.0, "ns"))
NUMERIC = {"sm": "SM", "layer": "layer (−1: none)", "step": "step"}  # columns of numbers, in words


@dataclass(frozen=True)
class Head:
    """What a figure shows, of which source, and what that could not tell."""

    title: str
    label: str
    notes: list[str] = field(default_factory=list)


def unit(most: float) -> tuple[float, str]:
    """(ns, name) of the unit in which values up to ``most`` ns read well."""
    return next((u for u in UNITS if abs(most) >= u[0]), UNITS[-1])


def bare(head: Head, x: str, y: str, dark: bool, height: int = HEIGHT, **options) -> figure:
    """An empty figure with its head and axis titles; notes come on top of ``height``, so that they leave the plot its own."""
    theme = theme_of(dark)
    options = {"tools": "pan,xwheel_zoom,box_zoom,reset,save", "active_scroll": None} | options
    out = figure(height=height + NOTE * len(head.notes), sizing_mode="stretch_width", toolbar_location="right", **options)
    for note in head.notes[::-1]:
        out.add_layout(Title(text=note, text_font_size="11px", text_font_style="normal", text_color=theme.faint), "above")
    kind = next((kind for kind in KIND_COLOURS if head.label.startswith(kind)), None)
    out.title.update(
        text=f"{head.label} · {head.title}" if head.label else head.title, text_font_size="13px",
        text_color=KIND_COLOURS[kind][dark] if kind else theme.text,
    )  # fmt: skip
    out.xaxis.axis_label, out.yaxis.axis_label = x, y
    for axis in out.axis:
        axis.update(
            axis_label_text_color=theme.faint, major_label_text_color=theme.faint, axis_line_color=theme.grid,
            major_tick_line_color=theme.grid, minor_tick_line_color=None, axis_label_text_font_style="normal",
        )  # fmt: skip
    out.update(background_fill_color=theme.page, border_fill_color=theme.page, outline_line_color=theme.grid)
    out.grid.grid_line_color = theme.grid
    out.toolbar.logo = None
    return out


def legend(out: figure, items: list[tuple[str, list]], dark: bool) -> None:
    """Beside the plot; a click hides what it names."""
    theme = theme_of(dark)
    items = [LegendItem(label=name, renderers=renderers) for name, renderers in items]
    out.add_layout(
        Legend(items=items, click_policy="hide", label_text_color=theme.text, background_fill_color=theme.page,
               border_line_color=None, label_text_font_size="11px", spacing=0, padding=4), "right",
    )  # fmt: skip


def stacked(rows: pd.DataFrame, by: str, names: tuple[str, ...], head: Head, what: str, dark: bool,
            colours: dict[str, str] = palette.CAUSES) -> figure:  # fmt: skip
    """Bars of ``rows``, one for each value of the column ``by``, with the columns ``names`` (ns) on top of each other.  Of
    numbers beyond MOST_PLACES neighbours are averaged, of names beyond MOST_BARS the last ones are added up."""
    rows, axis = rows[[by, *names]].copy(), NUMERIC.get(by, by)
    if by in NUMERIC and len(rows) > MOST_PLACES:
        share = -(-len(rows) // MOST_PLACES)
        rows, axis = rows.groupby(np.arange(len(rows)) // share).mean(), f"{axis} (mean of {share} neighbours)"
    elif by not in NUMERIC and len(rows) > MOST_BARS:
        rest = rows.iloc[MOST_BARS - 1 :]
        last = pd.DataFrame([{by: f"{len(rest)} others", **rest[list(names)].sum()}])
        rows = pd.concat([rows.iloc[: MOST_BARS - 1], last], ignore_index=True)
    scale, name_of = unit(float(rows[list(names)].sum(axis=1).max()) if len(rows) else 0)
    shown = [name for name in names if rows[name].any()]
    data = {by: rows[by].to_numpy(float if by in NUMERIC else object)} | {name: rows[name].to_numpy() / scale for name in shown}
    data |= {f"{name} ": [duration(ns) for ns in rows[name]] for name in shown}
    options = {} if by in NUMERIC else {"x_range": FactorRange(*dict.fromkeys(rows[by].tolist()))}
    out = bare(head, axis, f"{what} ({name_of})", dark, **options)
    step = float(np.min(np.diff(data[by]), initial=np.inf)) if by in NUMERIC else np.inf
    bars = out.vbar_stack(
        shown, x=by, width=0.9 * (step if np.isfinite(step) else 1.0), source=ColumnDataSource(data), line_color=None,
        fill_color=[colours[name] for name in shown],
    )  # fmt: skip
    tips = [(axis, f"@{{{by}}}"), *((name, f"@{{{name} }}") for name in shown)]
    out.add_tools(HoverTool(tooltips=tips, mode="vline" if by in NUMERIC else "mouse"))
    out.y_range.start = 0
    if by not in NUMERIC and len(rows) > 8:
        out.xaxis.major_label_orientation = 0.8
    legend(out, [(name, [bar]) for name, bar in zip(shown, bars, strict=True)][::-1], dark)
    return out


def waterfall(rows: list[tuple[str, str, float]], total: str, head: Head, what: str, dark: bool,
              start: tuple[str, float] | None = None, marks: dict[str, float] | None = None,
              shares: bool = False) -> figure:  # fmt: skip
    """(name, cause, ns) one below the other, each from where the one before it ended; beyond MOST_ROWS they are added up.

    ``start``: name and ns of what they are changes of; ``total`` names the bar where they end; ``marks``: ns to compare it
    with, as bars and lines; ``shares``: each says its share of the total, too.
    """
    if len(rows) > MOST_ROWS:
        rest = rows[MOST_ROWS - 1 :]
        rows = [*rows[: MOST_ROWS - 1], (f"{len(rest)} others", "", sum(ns for *_, ns in rest))]
    theme, marks, ns = theme_of(dark), marks or {}, np.array([ns for *_, ns in rows], float)
    right = (start[1] if start else 0.0) + np.cumsum(ns)
    left, end = right - ns, float(right[-1]) if len(rows) else start[1] if start else 0.0
    whole = [*([start] if start else []), (total, end), *marks.items()]
    scale, name_of = unit(max([abs(v) for v in (*right, *left, *(v for _, v in whole))], default=0.0))
    floor = 0.0  # where bars of whole times begin: changes would be too small to see beside them
    if start:
        low, high = min([start[1], end, *left, *right]), max([start[1], end, *left, *right])
        floor = max(0.0, low - 0.1 * (high - low))
    says = signed if start else lambda v: f"{duration(v)} · {percent(v / end)}" if shares and end else duration(v)
    bars = [(name, palette.CAUSES.get(cause, palette.WAIT), a, b, says(v))
            for (name, cause, v), a, b in zip(rows, left, right, strict=True)]  # fmt: skip
    shades = [theme.text, *([theme.text] if start else []), *([theme.accent] * len(marks))]
    full = [(name, shade, floor, v, duration(v)) for (name, v), shade in zip(whole, shades, strict=True)]
    bars = [*full[:1], *bars, *full[1:]] if start else [*bars, *full]
    data = dict(zip(("name", "colour", "left", "right", "words"), map(list, zip(*bars, strict=True)), strict=True))
    data["left"], data["right"] = np.array(data["left"]) / scale, np.array(data["right"]) / scale
    data["at"] = np.maximum(data["left"], data["right"])
    names = FactorRange(*data["name"][::-1])
    out = bare(head, f"{what} ({name_of})", "", dark, max(90 + 22 * len(bars), 200), y_range=names)
    source = ColumnDataSource(data)
    out.hbar(y="name", left="left", right="right", height=0.75, fill_color="colour", line_color=None, source=source)
    out.text(x="at", y="name", text="words", x_offset=4, text_baseline="middle", text_font_size="11px", text_color=theme.text,
             source=source)  # fmt: skip
    for at in marks.values():
        out.add_layout(Span(location=at / scale, dimension="height", line_color=theme.accent, line_dash="dashed"))
    out.add_tools(HoverTool(tooltips=[("", "@name"), ("", "@words")]))
    out.ygrid.visible = False
    reach = float(data["at"].max()) - floor / scale or 1.0
    out.x_range.update(start=floor / scale, end=floor / scale + (1.3 if shares else 1.14) * reach)
    return out


def predicted(rows: list[tuple[str, float, float]], head: Head, dark: bool) -> figure:
    """A bar of each (name, recorded ns, predicted ns): by how much the prediction is off, as a share; at most MOST_BARS."""
    theme, rows = theme_of(dark), rows[-MOST_BARS:]
    names = [name for name, *_ in rows]
    data = {"name": names, "recorded": [duration(a) for _, a, _ in rows], "predicted": [duration(b) for _, _, b in rows],
            "error": [b / a - 1 for _, a, b in rows]}  # fmt: skip
    height = 100 + 20 * len(rows)
    out = bare(head, "predicted over recorded", "", dark, height, y_range=FactorRange(*names[::-1]), tools="save")
    source = ColumnDataSource(data)
    made = out.hbar(y="name", right="error", height=0.7, fill_color=theme.accent, line_color=None, source=source)
    out.xaxis.formatter = NumeralTickFormatter(format="+0%")
    out.add_tools(HoverTool(renderers=[made], tooltips=[("", "@name"), ("recorded", "@recorded"), ("predicted", "@predicted"),
                                                        ("error", "@error{+0.0%}")]))  # fmt: skip
    return out


def areas(edges: np.ndarray, series: dict[str, np.ndarray], colours: list[str], head: Head, y: str, dark: bool,
          line: tuple[str, float] | None = None) -> figure:  # fmt: skip
    """Values that hold between ``edges`` (ns), one on top of the other; ``line``: a name and a value to compare them with."""
    theme = theme_of(dark)
    scale, name_of = unit(float(edges[-1]))
    out = bare(head, f"time since the first step began ({name_of})", y, dark)
    source = ColumnDataSource({"x": np.repeat(edges, 2)[1:-1] / scale, **{k: np.repeat(v, 2) for k, v in series.items()}})
    drawn = out.varea_stack(list(series), x="x", source=source, fill_color=colours, fill_alpha=0.9)
    items = [(name, [area]) for name, area in zip(series, drawn, strict=True)][::-1]
    if line is not None:
        ends = source.data["x"][[0, -1]]
        mark = out.line(ends, [line[1]] * 2, line_color=theme.accent, line_dash="dashed", line_width=2)
        items.insert(0, (line[0], [mark]))
    out.y_range.start = 0
    legend(out, items, dark)
    return out


def histogram(bins: list[tuple[float, float]], series: dict[str, np.ndarray], colours: list[str], head: Head, x: str, y: str,
              dark: bool) -> figure:  # fmt: skip
    """Values (ns) of ``bins`` (from, to: ns), one on top of the other."""
    names = [f"{duration(low)} – {duration(high)}" for low, high in bins]
    scale, name_of = unit(float(sum(series.values(), np.zeros(len(bins))).max(initial=0)))
    out = bare(head, x, f"{y} ({name_of})", dark, x_range=FactorRange(*names))
    data = {"bin": names} | {k: v / scale for k, v in series.items()}
    data |= {f"{k} ": [duration(ns) for ns in v] for k, v in series.items()}
    bars = out.vbar_stack(list(series), x="bin", width=0.95, source=ColumnDataSource(data), fill_color=colours, line_color=None)
    out.add_tools(HoverTool(tooltips=[(x, "@bin"), *((k, f"@{{{k} }}") for k in series)]))
    out.xaxis.major_label_orientation, out.y_range.start = 0.8, 0
    legend(out, [(name, [bar]) for name, bar in zip(series, bars, strict=True)][::-1], dark)
    return out


def points(x: np.ndarray, ns: np.ndarray, marked: np.ndarray, lines: list[tuple[str, np.ndarray, np.ndarray]], head: Head,
           dark: bool) -> figure:  # fmt: skip
    """Step times (ns) by step number, those ``marked`` (bool) stand out; ``lines``: (name, x, ns).  Of more than MOST_POINTS
    steps some are drawn, evenly, of as many outliers the slowest."""
    theme = theme_of(dark)
    scale, name_of = unit(float(np.median(ns)) if len(ns) else 0)
    out = bare(head, "step", f"time of a step ({name_of})", dark)
    out.xaxis.formatter, out.xaxis.ticker.min_interval = NumeralTickFormatter(format="0"), 1
    plain, far = np.flatnonzero(~marked), np.flatnonzero(marked)
    share = -(-len(plain) // MOST_POINTS)
    far = np.sort(far[np.argsort(-ns[far], kind="stable")[:MOST_POINTS]])
    steps = "steps" if share <= 1 else f"steps (1 of {share})"
    items, tips = [], []
    for name, kept, colour, size in (
        (steps, plain[:: max(share, 1)], theme.busy, 3 if len(plain) > 200 else 6),
        ("outliers", far, palette.TAIL, 7),
    ):
        if name == "outliers" and not len(kept):
            continue
        source = ColumnDataSource({"x": x[kept], "y": ns[kept] / scale, "words": [duration(v) for v in ns[kept]]})
        items.append((name, [out.scatter(x="x", y="y", size=size, color=colour, alpha=0.7, source=source)]))
        tips += items[-1][1]
    for i, (name, at, value) in enumerate(lines):
        colour = (theme.accent, theme.text, theme.faint)[i % 3]
        items.append((name, [out.line(at, value / scale, line_color=colour, line_width=1.5, line_dash="dashed")]))
    out.add_tools(HoverTool(tooltips=[("step", "@x"), ("time", "@words")], renderers=tips))
    legend(out, items, dark)
    return out
