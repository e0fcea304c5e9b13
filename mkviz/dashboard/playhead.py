"""Playhead: the line that moves over timeline and strips while a step is played, what it has not reached faded, and the
counters beside them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import panel as pn
from bokeh.models import ColumnDataSource, CustomJS

from mkviz.dashboard.theme import asset

if TYPE_CHECKING:
    from mkviz.dashboard.play import Player
    from mkviz.dashboard.transport import Transport


class Playhead:
    """The page moves the line by itself between the ``clock``'s words: where it is (µs), how fast (µs a s), where it stops, and
    whether it shows."""

    def __init__(self):
        self.clock = ColumnDataSource({"at": [0.0], "rate": [0.0], "stop": [0.0], "on": [0]})
        self.counters = pn.pane.HTML(
            "", stylesheets=[asset("panels.css"), asset("counters.css")], margin=0, sizing_mode="stretch_width", visible=False
        )
        self.transport: Transport | None = None

    def over(self, figures: list) -> None:
        """Move over these figures, which have one time axis."""
        self.clock.js_on_change("data", CustomJS(args={"clock": self.clock, "plots": figures}, code=asset("playhead.js")))
        figures[0].tags = [*figures[0].tags, self.clock]  # models that nothing draws still have to reach the page

    def show(self, player: Player) -> None:
        """Line, buttons and counters as the player has them."""
        stop = player.progress.end / 1000 if player.on else 0.0
        self.clock.data = {"at": [player.now / 1000], "rate": [player.rate / 1000], "stop": [stop], "on": [int(player.on)]}
        if self.transport is not None:
            self.transport.param.update(playing=player.on, running=player.running, pace=player.pace)
        self.count(player)

    def count(self, player: Player) -> None:
        """The counters alone."""
        if not player.on:
            self.counters.visible = False
            return
        scene = player.session.scene
        lanes = scene.lanes if scene is not None else range(player.progress.snapshot.lanes)
        self.counters.param.update(object=player.words(lanes), visible=True)
