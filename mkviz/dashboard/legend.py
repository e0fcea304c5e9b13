"""Legend: the ops in view with their colours and time shares; hides and isolates them."""

from __future__ import annotations

import param
from panel.custom import JSComponent

from mkviz import palette
from mkviz.dashboard.scene import IDLE
from mkviz.dashboard.theme import HERE, asset
from mkviz.dashboard.units import percent


class LegendBar(JSComponent):
    """The buttons.  (A class whose name ends in Legend would be taken by the page's shell for a Bokeh legend and restyled.)"""

    items = param.List([], doc="dicts: op, words, title, colour ('': blank), strip (colour in it), share, hidden, clickable")
    ramp = param.Dict({}, doc="colours, first, last: the scale where colour is an amount; {} where it is the op")

    _esm = HERE / "legend.js"
    _stylesheets = [asset("legend.css")]  # noqa: RUF012

    def __init__(self, handler, **params):
        self._handler = handler
        super().__init__(**params)

    def _handle_msg(self, data) -> None:
        self._handler(data["op"], bool(data["alone"]))

    def update(self, scene) -> None:
        """Shares are of all lanes' time within steps in view, and add up to 100 %."""
        total = scene.summary
        stepped = total.stepped or 1
        items = [
            {"op": op, "words": op, "title": f"{op}: click hides or shows, alt-click shows it alone", "colour": colour,
             "share": percent(busy / stepped), "hidden": op in scene.look.hidden, "clickable": True}
            for op, colour, busy in zip(scene.snapshot.ops, scene.op_colours, total.busy, strict=True)
        ]  # fmt: skip
        for name, share in scene.idle_shares.items():
            words, title = IDLE[name]
            items.append({"op": name, "words": words, "title": title, "colour": palette.WAIT if name == "wait" else "",
                          "strip": palette.TAIL_ABOVE if name == "tail" else "", "share": percent(share), "hidden": False,
                          "clickable": False})  # fmt: skip
        ramp = dict(zip(("colours", "first", "last"), scene.ramp, strict=True)) if scene.ramp else {}
        self.param.update(items=items, ramp=ramp)
