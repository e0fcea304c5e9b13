"""Scene: what one frame shows: a session's look and viewport over a snapshot, every figure computed at most once."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from mkviz import lod, palette, roles
from mkviz.dashboard.lanes import window

if TYPE_CHECKING:
    from mkviz.store import Snapshot

MODES = ("op", "layer", "wait", "busy")
RECT_LIMIT = 3000  # tasks in view up to which they are drawn one by one
ROLE_LIMIT = RECT_LIMIT // len(roles.ROLES)  # the same with a bar per role
MAX_PIXELS = 600_000  # of an image frame: keeps a message under 1 MB
MARGIN = 0.5  # of a viewport, sent on either side so that a drag finds something there
DIM = 0.18
IDLE = {  # what an SM does while it runs no task: in the legend, and in more words
    "wait": ("wait", "grey: what the SM's next task waits for had not happened yet"),
    "ready": ("ready, not begun", "blank before a task: its bytes, overhead or, on a CPU, other SMs came first"),
    "tail": ("tail: no task left", "blank at a step's end, pale orange in the strip of waits: others still run"),
}


@dataclass(frozen=True)
class Look:
    """How a session wants to see: colour mode, ops it hides, what it searches for, the theme, a sub-lane per role, and which
    SMs (first, count; None: all)."""

    mode: str = "op"
    hidden: frozenset[str] = field(default_factory=frozenset)
    query: str = ""
    dark: bool = False
    roles: bool = False
    sms: tuple[int, int] | None = None


@dataclass(eq=False)
class Scene:
    """A snapshot seen by a look between ``x0`` and ``x1`` (ns since origin) on ``width`` pixels."""

    snapshot: Snapshot
    tables: lod.GraphTables
    look: Look
    x0: float
    x1: float
    width: int

    @cached_property
    def lanes(self) -> range:
        """The SMs that the timeline shows."""
        return window(self.look.sms, self.snapshot.lanes)

    @cached_property
    def op_colours(self) -> list[str]:
        return palette.op_colours(self.snapshot.ops)

    @cached_property
    def matches(self) -> np.ndarray | None:
        """bool per row of the tables: does the task match the query; None without one.

        Every word must be in the op's name, or be ``layer N`` written ``L3``, ``layer3`` or ``layer:3``.
        """
        words = self.look.query.lower().replace("layer ", "layer").split()
        if not words:
            return None
        hit = np.ones(len(self.tables.op), bool)
        for word in words:
            digits = word.removeprefix("layer").removeprefix("l").lstrip(":=")
            if digits.isdigit() and word[0] == "l":
                hit &= self.tables.layer == int(digits)
            else:
                named = [i for i, op in enumerate(self.snapshot.ops) if word in op.lower()]
                hit &= np.isin(self.tables.op, named)
        return hit

    @cached_property
    def classing(self) -> tuple[np.ndarray, np.ndarray, list[str]]:
        """Class per row of the tables (u8), weight per class, colour per class."""
        ops = len(self.snapshot.ops)
        if self.look.mode == "layer":
            layers = int(self.tables.layer.max(initial=-1)) + 1
            shown = min(max(layers, 1), 200)
            classes = np.where(self.tables.layer < 0, shown, self.tables.layer * shown // max(layers, 1)).astype(np.uint8)
            colours, weight = [*palette.ramp(palette.LAYER_STOPS, shown), "#b0b0b0"], np.ones(shown + 1)
        else:
            classes, colours, weight = self.tables.op.copy(), list(self.op_colours), np.ones(ops)
        hidden = [i for i, op in enumerate(self.snapshot.ops) if op in self.look.hidden]
        if hidden:
            classes[np.isin(self.tables.op, hidden)] = len(colours)
            colours, weight = [*colours, "#000000"], np.append(weight, 0.0)
        if self.matches is not None:
            weight = weight * 1e9  # a match shows however short it is
            classes[~self.matches] = len(colours)
            colours, weight = [*colours, "#9aa0a6"], np.append(weight, 1.0)
        return classes, weight, colours

    @property
    def dim_class(self) -> int | None:
        """The class of tasks that do not match the query."""
        return None if self.matches is None else len(self.classing[2]) - 1

    @property
    def ramp(self) -> tuple[list[str], str, str] | None:
        """(colours, first, last) where colour is an amount and not an op: what the ends of the scale mean."""
        if self.look.mode == "op":
            return None
        if self.look.mode == "layer":
            return list(palette.LAYER_STOPS), "layer 0", f"layer {max(0, int(self.tables.layer.max(initial=0)))}"
        return list(palette.SHARE_STOPS), "0 %", f"100 % {'waiting' if self.look.mode == 'wait' else 'busy'}"

    @cached_property
    def image(self) -> lod.ImageFrame:
        lanes = max(1, self.snapshot.lanes)
        span = self.x1 - self.x0
        cols = max(16, min(int(self.width * (1 + 2 * MARGIN)), MAX_PIXELS // lanes))
        classes, weight, _ = self.classing
        return lod.image_frame(
            self.snapshot, self.tables, self.x0 - MARGIN * span, self.x1 + MARGIN * span, cols, classes, weight
        )

    @cached_property
    def role_image(self) -> roles.RoleFrame:
        span, sub_lanes = self.x1 - self.x0, max(1, len(self.lanes) * len(roles.ROLES))
        cols = max(16, min(int(self.width * (1 + 2 * MARGIN)), MAX_PIXELS // sub_lanes))
        classes, weight, _ = self.classing
        return roles.role_frame(
            self.snapshot, self.tables, self.x0 - MARGIN * span, self.x1 + MARGIN * span, cols, self.lanes, classes, weight
        )

    @property
    def drawn(self) -> lod.ImageFrame | roles.RoleFrame:
        """The frame that the timeline's image is of."""
        return self.role_image if self.look.roles else self.image

    @cached_property
    def rects(self) -> lod.RectFrame | roles.RoleRects | None:
        """The tasks of the SMs in view and a little on either side, None when they are too many."""
        margin = MARGIN * (self.x1 - self.x0)
        for x0, x1 in ((self.x0 - margin, self.x1 + margin), (self.x0, self.x1)):
            if self.look.roles:
                found = roles.role_rects(self.snapshot, x0, x1, self.lanes, ROLE_LIMIT)
            else:
                found = lod.rect_frame(self.snapshot, self.tables, x0, x1, RECT_LIMIT, lanes=self.lanes)
            if found is not None:
                return found
        return None

    @cached_property
    def summary(self) -> lod.Summary:
        return lod.summary(self.snapshot, self.tables, self.x0, self.x1)

    @property
    def idle_shares(self) -> dict[str, float]:
        """By the keys of IDLE: share of all lanes' time within the steps in view; with what tasks take they add up to 1."""
        total = self.summary
        return dict(zip(IDLE, (total.wait_share, total.unbegun_share, total.tail_share), strict=True))

    def image_u8(self) -> tuple[np.ndarray, list[str]]:
        """u8[lanes or sub-lanes in view, cols] palette indices and the 256 colours they mean, for the look's mode."""
        frame, mode = self.drawn, self.look.mode
        part = slice(None) if self.look.roles else slice(self.lanes.start, self.lanes.stop)
        grid, busy, wait = frame.grid[part], np.minimum(frame.busy[part], 1), np.minimum(frame.wait[part], 1)
        if mode in ("wait", "busy"):
            return palette.share_index(wait if mode == "wait" else busy, (busy > 0) | (wait > 0)), palette.share_palette()
        colours = self.classing[2]
        table, levels = palette.image_palette(colours)
        index = palette.image_index(grid, busy, wait, levels)
        if self.matches is not None:  # what matches stands out at full strength, whatever its share
            index = np.where((grid < self.dim_class), grid * np.uint8(levels) + np.uint8(levels - 1), index)
            for level in range(levels):
                table[self.dim_class * levels + level] = f"#9aa0a6{int(255 * DIM * (level + 1) / levels):02x}"
        return index.astype(np.uint8), table

    def rect_colours(self, rects: lod.RectFrame) -> tuple[np.ndarray, np.ndarray]:
        """Colour (str[n]) and opacity (f32[n]) of records by the look's mode; opacity 0 hides.

        By wait, a task is coloured by how much of its time on the lane, from free to end, was waiting; by busy, by the rest.
        """
        rows, snapshot = rects.row, self.snapshot
        at = self.tables.offsets(snapshot)[rects.step] + snapshot.task[rows]
        classes, weight, colours = self.classing
        kind = classes[at]
        alpha = np.ones(len(rows), np.float32)
        if self.look.mode in ("wait", "busy"):
            ready, end = snapshot.ready[rows] - snapshot.origin, snapshot.end[rows] - snapshot.origin
            share = np.clip(ready - rects.free, 0, None) / np.maximum(end - rects.free, 1)
            share = share if self.look.mode == "wait" else 1 - share
            colour = np.array(palette.share_palette())[palette.share_index(share, np.ones(len(rows), bool))]
        else:
            colour = np.array([*colours, "#000000"])[kind]
        if self.matches is not None:
            alpha[kind == self.dim_class] = DIM
        alpha[weight[kind] == 0] = 0
        return colour, alpha
