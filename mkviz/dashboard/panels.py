"""Panels: everything on the page, put side by side; each part has a ``root`` to place and shows what a session hands it."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

import numpy as np
from bokeh.models import Label

from mkviz.dashboard import probe, range_card, role_bars
from mkviz.dashboard.bar import Bar
from mkviz.dashboard.chat import Chat
from mkviz.dashboard.compare import Compare
from mkviz.dashboard.html import Html
from mkviz.dashboard.hub import DEFAULT_MODEL
from mkviz.dashboard.legend import LegendBar
from mkviz.dashboard.playhead import Playhead
from mkviz.dashboard.request_lanes import RequestLanes
from mkviz.dashboard.ring_strip import RingStrip
from mkviz.dashboard.servers import is_server
from mkviz.dashboard.strips import Bandwidth, Busy, Minimap, Waits
from mkviz.dashboard.tables import TABLES
from mkviz.dashboard.tabs import Tabs
from mkviz.dashboard.theme import asset, theme_of
from mkviz.dashboard.timeline import Timeline
from mkviz.dashboard.transport import Transport, asked
from mkviz.dashboard.units import duration, percent
from mkviz.table import Table

if TYPE_CHECKING:
    from mkviz.dashboard.scene import Scene
    from mkviz.dashboard.session import Session
    from mkviz.store import Snapshot

RECENT_TOKENS = 32


def _pane(css_class: str, **kwargs) -> Html:
    return Html("", css_classes=[css_class], stylesheets=[asset("panels.css")], margin=0, **kwargs)


class Panels:
    """The parts of one page.  ``show_*`` methods take the session and change only what differs."""

    def __init__(self):
        self.timeline = Timeline()
        self.bandwidth = Bandwidth(self.timeline.x_range)
        self.strips = [
            Busy(self.timeline.x_range),
            Waits(self.timeline.x_range),
            self.bandwidth,
            RingStrip(self.timeline.x_range),
        ]
        self.requests = RequestLanes(self.timeline.x_range)
        self.minimap = Minimap(self.timeline.x_range)
        self.compare = Compare(self.timeline.x_range)
        self.message = Label(
            x=0,
            y=0,
            x_units="screen",
            y_units="screen",
            text="",
            text_align="center",
            text_baseline="middle",
            text_font_size="15px",
        )
        self.timeline.root.add_layout(self.message)
        self.stats = _pane("stats", sizing_mode="stretch_width")
        self.details = _pane("details", sizing_mode="stretch_width", visible=False)
        self.table = _pane("details", sizing_mode="stretch_width", visible=False)
        self.playhead = Playhead()
        self.rows_lead_to: list[tuple[int, int]] = []  # of the table shown: (step number, task or -1)
        self.dark = False

    def connect(self, session: Session) -> None:
        """Route what the user does to the session."""
        self.bar = Bar(session.controlled, sizing_mode="stretch_width", margin=(0, 0, 0, 20))
        self.chat = Chat(session.chatted, sizing_mode="stretch_both", margin=0, model_name=DEFAULT_MODEL)
        self.tabs = Tabs(session.tabbed, sizing_mode="stretch_width", margin=(0, 0, 8, 0))
        self.legend = LegendBar(session.legend_clicked, sizing_mode="stretch_width", margin=(0, 0, 0, 8))
        self.compare.connect(session)
        self.requests.connect(session)
        self.transport = Transport(lambda kind, value: asked(session, kind, value), margin=(0, 0, 0, 8))
        self.playhead.transport = self.transport
        timeline = self.timeline
        timeline.view.on_change("data", lambda attr, old, new: session.viewed(new))
        timeline.ack.on_change("data", lambda attr, old, new: session.acknowledged(new))
        timeline.command.on_change("data", lambda attr, old, new: session.commanded(new))

    def restyle(self, dark: bool, kind: str) -> None:
        self.dark = dark
        self.timeline.restyle(dark, kind)
        for part in (*self.strips, self.minimap, self.compare, self.requests):
            part.restyle(dark)
        self.message.text_color = theme_of(dark).faint
        self.chat.dark = dark

    # frames

    def draw(self, session: Session) -> None:
        scene = session.scene
        self.message.text = ""
        self.timeline.update(scene, session.height)
        for strip in self.strips:
            if strip.root.visible:
                strip.update(scene)
        self.minimap.reach(scene.snapshot)
        self.requests.update(scene)
        self.show_pin(session)
        self.compare.draw(session)

    def clear(self) -> None:
        """Nothing of an earlier source stays."""
        self.timeline.clear()
        self.requests.clear()
        for strip in self.strips:
            strip.source.data = {k: [] for k in strip.source.data}
        self.minimap.source.data = {k: [] for k in self.minimap.source.data}
        self.details.visible = self.table.visible = False
        self.stats.object, self.legend.items = "", []
        self.rows_lead_to = []
        self.tabs.show(Table({}), "")

    def show_state(self, session: Session, snapshot: Snapshot | None) -> None:
        """Words in the middle of an empty timeline."""
        if words := getattr(session.source, "words", ""):
            text = words
        elif opening := session.hub.opening:
            text = opening[0].upper() + opening[1:]
        elif snapshot is None:
            text = "Nothing to show yet: " + (
                "write a prompt and press Generate" if session.hub.openers else "choose a source above"
            )
        elif session.generation and not session.generation.over:
            text = "Capturing: 0 tasks so far"
        elif snapshot.closed:
            text = "This source holds no steps"
        else:
            text = "No steps yet: write a prompt and press Generate"
        if snapshot is not None and snapshot.lost_records:
            text += f" · {snapshot.lost_records} records lost"
        self.message.update(text=text, x=session.width / 2, y=session.height / 2)
        self._show_label(session, snapshot)

    def show_sources(self, session: Session) -> None:
        if not session.source_name:
            session.choose(session.hub.first)
        self.bar.show(sources=session.hub.names, source=session.source_name, compare=self.compare.name)
        models = session.hub.models if session.hub.openers else []
        if models != self.chat.models:
            self.chat.models = models
        if self.chat.can_generate != bool(session.hub.openers):
            self.chat.can_generate = bool(session.hub.openers)
        if not session.hub.openers:
            empty = "No generator is installed: this is a viewer."
        elif is_server(session.source_name):
            empty = "A prompt written here is answered by a model that this page opens, not by the server."
        else:
            empty = "The answer appears here, token by token."
        if self.chat.empty != empty:
            self.chat.empty = empty
        self.show_follow(session)

    def _show_label(self, session: Session, snapshot: Snapshot | None) -> None:
        """The source's label on the figure itself."""
        source = session.source
        if source is None:
            return
        text = source.label
        if snapshot is not None and snapshot.lanes:
            graph = snapshot.graph_of(-1) if len(snapshot.steps) else next(iter(snapshot.graphs.values()))[0]
            text += f" · {graph.name} · {snapshot.lanes} SMs"
            if snapshot.closed and not snapshot.complete:
                text += " · incomplete"
            if len(snapshot.steps) and (words := getattr(source, "words", "")):
                text += f" · {words}"
        if text != self.timeline.title.text:
            self.timeline.title.text = text
            self.bandwidth.of(source.label)
            self.restyle(self.dark, source.kind)

    def show_follow(self, session: Session) -> None:
        """Whether the view moves by itself, and what the controls are set to."""
        self.transport.show(session)
        self.bar.show(
            is_live=session._snapshot is None or not session._snapshot.closed,
            following=session.follow and not session.paused,
            paused=session.paused,
            mode=session.look.mode,
            query=session.look.query,
            found=_found(session.scene),
        )

    # slower parts

    def show_stats(self, session: Session) -> None:
        scene, snapshot = session.scene, session.snapshot()
        self._show_label(session, snapshot)
        total = scene.summary
        inside = snapshot.steps[snapshot.steps_in(scene.x0, scene.x1)]
        items = [
            ("step", _range_of(inside["step"])),
            ("step time", duration(float(np.median(inside["end"] - inside["begin"]))) if len(inside) else "–"),
            ("busy", percent(total.busy_share)),
            ("waiting", percent(total.wait_share)),
            ("tail", percent(total.tail_share)),
            ("tok/s", _token_rate(snapshot)),
            ("tasks in view", f"{int(total.count.sum()):,}".replace(",", " ")),
            ("lost", f"{snapshot.lost_records:,} records".replace(",", " ") if snapshot.lost_records else "0"),
        ]
        if snapshot.dropped_steps:
            items.append(("no longer kept", f"{snapshot.dropped_steps} steps"))
        html = "".join(
            f'<div class="{"bad" if name == "lost" and value != "0" else ""}"><span>{name}</span><b>{escape(value)}</b></div>'
            for name, value in items
        )
        self.stats.object = f'<div class="mkviz-stats">{html}</div>'

    def show_legend(self, session: Session) -> None:
        self.legend.update(session.scene)

    def show_minimap(self, session: Session) -> None:
        snapshot = session.snapshot()
        self.minimap.update(snapshot, session.tables(snapshot))
        self.minimap.reach(snapshot)

    def show_tables(self, session: Session) -> None:
        """The chosen tab: the text by itself, or above it a table of the measured range, else of what is in view."""
        if session.tab in TABLES and session.scene is not None:
            x0, x1 = session.range or (session.scene.x0, session.scene.x1)
            table = TABLES[session.tab](session.scene, x0, x1)
            self.rows_lead_to = table.goes_to
            words = f"of the {'measured range' if session.range else 'view'}: {duration(x1 - x0)}"
            self.tabs.show(table, f"{words} · {table.caption}" if table.caption else words)
        self.tabs.chosen = session.tab

    def show_pin(self, session: Session) -> None:
        """Outline and arrows of the pinned task, and its facts beside the text."""
        at = session.pinned_hit()
        self.timeline.show_pin(session.scene, at)
        if at is None:
            self.details.visible = False
            return
        facts = probe.facts(session.scene, at)
        snapshot = session.scene.snapshot
        facts += role_bars.facts(snapshot, at.row)
        rows = "".join(f"<tr><th>{escape(k)}</th><td>{escape(v)}</td></tr>" for k, v in facts[1:])
        needed = probe.producers(snapshot, at)
        self.details.param.update(
            object=f"<div class='card'><h3>{escape(facts[0][1])}</h3><table>{rows}</table>{needed}</div>", visible=True
        )

    def show_range(self, session: Session) -> None:
        """The measured range: length and a table per op."""
        self.compare.show_range(session)
        if session.range is None or session.scene is None:
            self.table.visible = False
            self.timeline.band.visible = False
            return
        x0, x1 = session.range
        self.timeline.band.update(left=x0 / 1000, right=x1 / 1000, visible=True)
        self.table.param.update(object=range_card.html(session.scene, x0, x1), visible=True)

    def show_step_band(self, session: Session, step: int) -> None:
        """Light a step on the timeline (-1: none)."""
        snapshot = session.snapshot()
        at = snapshot.index_of(step) if snapshot is not None and step >= 0 else -1
        if at < 0:
            self.timeline.step_band.visible = False
            return
        begin, end = ((int(snapshot.steps[k][at]) - snapshot.origin) / 1000 for k in ("begin", "end"))
        self.timeline.step_band.update(left=begin, right=end, visible=True)

    def note(self, text: str, kind: str = "") -> None:
        """One line under the text."""
        if (self.chat.note, self.chat.note_kind) != (text, kind):
            self.chat.param.update(note=text, note_kind=kind)


def _found(scene: Scene | None) -> str:
    """How many tasks of a step match the search (of the newest step's graph, which is what a search is about)."""
    if scene is None or scene.matches is None or not len(scene.snapshot.steps):
        return ""
    graph = int(scene.snapshot.steps["graph"][-1])
    start = scene.tables.start[graph]
    matching = int(scene.matches[start : start + len(scene.snapshot.graphs[graph][0])].sum())
    return f"{matching} a step" if matching else "no match"


def _range_of(steps: np.ndarray) -> str:
    if not len(steps):
        return "–"
    return f"{steps[0]}" if len(steps) == 1 else f"{steps[0]} – {steps[-1]}"


def _token_rate(snapshot: Snapshot) -> str:
    """Tokens of all requests per second over the last RECENT_TOKENS."""
    recent = snapshot.tokens[-RECENT_TOKENS:]
    if len(recent) < 2 or recent[-1].time <= recent[0].time:
        return "–"
    return f"{(len(recent) - 1) / (recent[-1].time - recent[0].time) * 1e9:.1f}"
