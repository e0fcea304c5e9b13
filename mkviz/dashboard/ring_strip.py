"""Ring strip: how full the shared-memory rings of the SMs in view are, where the records say so."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from bokeh.models import Label, Range1d

from mkviz import palette
from mkviz.dashboard.lanes import words
from mkviz.dashboard.strips import HEIGHT, Strip
from mkviz.dashboard.theme import theme_of
from mkviz.ring_fill import ring_fill

if TYPE_CHECKING:
    from mkviz.dashboard.scene import Scene

FOLDED = 24  # px, while it has nothing to show but words
UNTOLD = "no ring fill in these records: no task in view took bytes from a shared-memory ring"


class RingStrip(Strip):
    """Mean share of the ring that has landed and is not consumed yet; folded to a line of words where no record tells."""

    name = "ring fill"

    def __init__(self, x_range: Range1d):
        super().__init__(x_range)
        self.source.data = {"x": [], "y": [], "line": []}
        self.line.glyph.y = "line"
        self.words = Label(
            x=6, x_units="screen", y=2, y_units="screen", text="", text_font_size="11px", text_baseline="bottom",
            background_fill_alpha=0.75,
        )  # fmt: skip
        self.root.add_layout(self.words)

    def text(self, top):
        return "to 100 %"

    def colour(self, dark):
        return palette.RING

    def restyle(self, dark):
        super().restyle(dark)
        theme = theme_of(dark)
        self.words.update(text_color=theme.text, background_fill_color=theme.page)

    def update(self, scene: Scene) -> None:
        frame = scene.image
        fill = ring_fill(scene.snapshot, frame.x0, frame.x0 + frame.dx * frame.cols, max(1, frame.cols // 2), scene.lanes)
        told = fill.readings > 0
        x = (fill.x0 + fill.dx * (0.5 + np.arange(len(fill.mean)))) / 1000
        y = fill.mean.astype("f4")  # an area does not break where nothing is known, a line does
        self.source.data = {"x": x, "y": np.nan_to_num(y), "line": y} if told else {"x": [], "y": [], "line": []}
        of = words(scene.lanes, scene.snapshot.lanes)
        said = f"landed and not consumed at each task's begin, mean of {of}" if told else UNTOLD
        if said != self.words.text:
            self.words.text = said
            self.root.height = HEIGHT if told else FOLDED
            self.root.yaxis.visible = told
            self.root.outline_line_alpha = 1.0 if told else 0.0
