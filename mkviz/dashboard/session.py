"""Session: one open page.  Keeps its look and viewport, and sends a frame when there is something new to see."""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import panel as pn

from mkviz import lod
from mkviz.dashboard import lanes, moves, pointer, probe
from mkviz.dashboard.generation import Generation
from mkviz.dashboard.play import Player
from mkviz.dashboard.scene import Look, Scene
from mkviz.dashboard.servers import is_server
from mkviz.errors import MkvizError
from mkviz.protocols import GenerateRequest

if TYPE_CHECKING:
    from mkviz.dashboard.hub import Hub
    from mkviz.dashboard.panels import Panels
    from mkviz.store import Snapshot

log = logging.getLogger(__name__)

TICK_MS = 100
IN_FLIGHT = 2  # frames sent and not drawn yet, above which no more are sent
STALE_S = 2.0  # an ack that has not come by then is taken as lost
SLOW_S = {"stats": 0.3, "legend": 0.4, "minimap": 1.0, "tables": 0.5}
RECENT_STEPS = 16  # from which a live view learns how long a step takes
FOLLOW_STEPS = 4  # steps that a live view shows at first
SERVER_STEPS = 16  # as many that requests are seen to come and go
FIT_STEPS = 12  # a source of up to so many steps is first shown whole


class Session:
    """Wires panels to a source.  All methods run on the server's loop; ``tick`` is called every TICK_MS."""

    def __init__(self, hub: Hub, panels: Panels):
        self.hub, self.panels = hub, panels
        self.look = Look()
        self.source_name, self.run = "", 0  # the run is a source's that begins anew, as one of a server that was restarted
        self.x0, self.x1, self.width, self.height = 0.0, 1e6, 1000.0, 400.0
        self.follow, self.paused, self.placed = True, False, False
        self.window, self.chosen = 0.0, False  # ns that a following view shows; did the user choose it
        self.pinned: tuple[int, int] | None = None  # (step number, task)
        self.revealed = self.pinned  # the one that lanes were last moved for
        self.range: tuple[float, float] | None = None
        self.tab = "text"
        self.generation: Generation | None = None
        self.player = Player(self)
        self.seq = self.acked = self.moves = 0
        self.sent_at = 0.0
        self._shown: tuple = ()
        self._last: dict[str, float] = {}
        self._keys: dict[str, tuple] = {}
        self._snapshot: Snapshot | None = None
        self._tables: lod.GraphTables | None = None
        self.scene: Scene | None = None
        self._commands = 0

    # sources

    @property
    def source(self):
        return self.hub.sources.get(self.source_name)

    def choose(self, name: str) -> None:
        """Show another source, from its beginning or live."""
        if name == self.source_name and getattr(self.source, "run", 0) == self.run:
            return
        try:
            if self.hub.source(name) is None:
                return
        except MkvizError as error:
            self.panels.note(str(error), "error")
            return
        self.player.leave()
        if is_server(name) and name != self.source_name and self.tab == "text":
            self.tab = "requests"  # its text is many requests' at once, and none of this page's
        self.source_name, self._snapshot, self._tables, self.scene = name, None, None, None
        self.run = getattr(self.source, "run", 0)
        self.placed, self.paused, self.follow, self.window, self.chosen = False, False, True, 0.0, False
        self.pinned = self.range = None
        self._shown, self._keys = (), {}
        self.moves += 1  # the page may have let go of the source before; this one it is ordered to follow
        self.panels.clear()
        self.panels.show_tables(self)
        self.tick()

    def snapshot(self) -> Snapshot | None:
        if self.source is None:
            return None
        if self._snapshot is None or not (self.paused or self.player.on):
            self._snapshot = self.source.snapshot()
        return self._snapshot

    def tables(self, snapshot: Snapshot) -> lod.GraphTables:
        if self._tables is None or self._tables.ids != tuple(snapshot.graphs):
            self._tables = lod.GraphTables(snapshot)
        return self._tables

    # frames

    def tick(self) -> None:
        """Whatever is new goes to the page.  Never raises: a bug in one tick must not end all later ones."""
        try:
            with pn.io.hold():
                self._take_pieces()
                self.choose(self.source_name)  # again, where it has begun anew
                self.panels.show_sources(self)
                self.player.tick()
                self.send()
                self._slow()
        except Exception:
            log.exception("a tick of the page failed; the next one tries again")

    def send(self) -> None:
        """Send a frame unless nothing changed or the page still draws earlier ones."""
        snapshot = self.snapshot()
        if snapshot is None or not len(snapshot.steps):
            self.panels.show_state(self, snapshot)
            return
        if not self.placed:
            self._place(snapshot)
        if self.follow and not self.paused:
            self._keep_up(snapshot)
        lanes.reveal(self)
        begin, end = (snapshot.steps[k] - snapshot.origin for k in ("begin", "end"))
        span = self.x1 - self.x0
        seen = snapshot.steps["step"][(begin < self.x1 + span) & (end > self.x0 - span)]
        key = (self.source_name, self.x0, self.x1, self.width, self.height, self.look, self.moves, self.follow, self.pinned,
               len(seen), int(seen[0]) if len(seen) else -1, int(seen[-1]) if len(seen) else -1, self.range,
               self.panels.compare.key(self))  # fmt: skip
        if key == self._shown:
            return
        if self.seq - self.acked > IN_FLIGHT and time.monotonic() - self.sent_at < STALE_S:
            return
        self._shown = key
        self.scene = Scene(snapshot, self.tables(snapshot), self.look, self.x0, self.x1, max(100, int(self.width)))
        self.panels.draw(self)
        self.seq += 1
        self.sent_at = time.monotonic()
        lo, hi = snapshot.extent
        self.panels.timeline.frame.data = {
            "seq": [self.seq], "x0": [self.x0 / 1000], "x1": [self.x1 / 1000], "follow": [int(self.follow)],
            "moves": [self.moves], "lo": [lo / 1000], "hi": [hi / 1000],
        }  # fmt: skip

    def _slow(self) -> None:
        """Parts that need not move with every frame, each at its own pace and only when something changed."""
        if self.scene is None:
            return
        now = time.monotonic()
        version = self._snapshot.version if self._snapshot else -1
        generation = (self.generation.state, self.generation.tokens) if self.generation else ()
        keys = {"stats": (self._shown, version, generation, self.paused), "legend": (self._shown,), "minimap": (version,),
                "tables": (self.tab, self._shown, version)}  # fmt: skip
        for name, pace in SLOW_S.items():
            if keys[name] != self._keys.get(name) and now - self._last.get(name, 0) > pace:
                self._keys[name] = keys[name]
                getattr(self.panels, f"show_{name}")(self)
                self._last[name] = time.monotonic() + 4 * (time.monotonic() - now)  # costly parts rest longer

    def _place(self, snapshot: Snapshot) -> None:
        """The first view of a source."""
        self.placed = True
        steps = snapshot.steps
        if not snapshot.closed:
            return
        self.follow = False
        first, last = (0, len(steps) - 1) if len(steps) <= FIT_STEPS else (len(steps) // 2, len(steps) // 2 + FOLLOW_STEPS - 1)
        self.go(int(steps["begin"][first]) - snapshot.origin, int(steps["end"][last]) - snapshot.origin)

    def _keep_up(self, snapshot: Snapshot) -> None:
        """Show the newest steps: a few of them, or as long a time as the user last chose."""
        recent, end = snapshot.steps[-RECENT_STEPS:], float(snapshot.extent[1])
        if not self.chosen:
            period = np.diff(recent["begin"]) if len(recent) > 2 else recent["end"] - recent["begin"]
            shown = SERVER_STEPS if is_server(self.source_name) else FOLLOW_STEPS
            fitting = max(1000.0, shown * float(np.median(period)))
            if not 0.6 < self.window / fitting < 1.7:  # a window that changed with every step would flicker
                self.window = fitting
        self.x0, self.x1 = end - self.window, end

    def go(self, x0: float, x1: float, follow: bool = False) -> None:
        """Order the page to show [x0, x1] ns."""
        self.x0, self.x1, self.follow = float(x0), float(max(x1, x0 + 20)), follow
        self.moves += 1

    # what the page tells

    def viewed(self, data: dict) -> None:
        """The viewport channel: the range the page shows now.  One sent before the page had our last order is out of date."""
        self.width, self.height = data["width"][0], data["height"][0]
        if not data["follow"][0] and data["moves"][0] == self.moves:
            self.x0, self.x1, self.follow = data["x0"][0] * 1000, data["x1"][0] * 1000, False
        with pn.io.hold():
            self.send()
            self.panels.show_follow(self)

    def acknowledged(self, data: dict) -> None:
        self.acked = max(self.acked, int(data["seq"][0]))

    def commanded(self, data: dict) -> None:
        """Keys, hover, clicks and ranges."""
        name, x, y, text = (data[k][0] for k in ("name", "x", "y", "text"))
        with pn.io.hold():
            if name == "hover":
                pointer.hover(self, x * 1000, y)
            elif name == "leave":
                pointer.leave(self)
            elif name == "tap":
                pointer.tap(self, x * 1000, y)
            elif name == "range":
                self.range = (x * 1000, y * 1000)
                self.send()
                self.panels.show_range(self)
            elif name == "key":
                self._key(text)

    def identity(self, step: int, row: int) -> tuple[int, int]:
        snapshot = self.scene.snapshot
        return int(snapshot.steps["step"][step]), int(snapshot.task[row])

    def pinned_hit(self) -> probe.Hit | None:
        """Where the pinned task is in the current snapshot; None when nothing is pinned or its step has been dropped."""
        if self.pinned is None or self.scene is None:
            return None
        return probe.find(self.scene.snapshot, *self.pinned)

    def _key(self, key: str) -> None:
        if self.player.key(key):
            pass
        elif key == "Escape":
            self.pinned = self.panels.compare.pinned = self.range = None
            self.look = replace(self.look, query="")
        elif key == "l":
            self.live()
        elif key == " ":
            self.pause()
        elif key in ("f", "fit"):
            moves.fit(self, everything=key == "fit")
        elif key in (".", ","):
            moves.along_lane(self, 1 if key == "." else -1)
        elif key in ("[", "]"):
            moves.along_steps(self, 1 if key == "]" else -1)
        elif key in lanes.KEYS:
            lanes.KEYS[key](self)
        self.send()
        self.panels.show_pin(self)
        self.panels.show_range(self)
        self.panels.show_follow(self)

    # controls

    def live(self) -> None:
        """Return to the newest steps, at the zoom of now."""
        self.paused = False
        if self.placed and not self.follow:
            self.window, self.chosen = max(self.x1 - self.x0, 1000.0), True
        self.follow = True
        snapshot = self.snapshot()
        if snapshot is not None and len(snapshot.steps):
            self._keep_up(snapshot)
            self.go(self.x0, self.x1, follow=True)

    def pause(self) -> None:
        """Freeze the view; the source goes on recording."""
        self.paused = not self.paused

    def set_look(self, **changes) -> None:
        self.look = replace(self.look, **changes)
        self.tick()

    def controlled(self, kind: str, value) -> None:
        """What the bar asks for."""
        with pn.io.hold():
            if kind == "source":
                self.choose(value)
            elif kind == "compare":
                self.panels.compare.choose(self, value)
                self.send()
            elif kind == "live":
                self._key("l")
            elif kind == "pause":
                self._key(" ")
            elif kind == "mode":
                self.set_look(mode=value)
            elif kind == "search":
                self.set_look(query=value)
            elif kind == "next":
                moves.next_match(self)
                self.send()
                self.panels.show_pin(self)

    def tabbed(self, kind: str, value) -> None:
        """What the tabs ask for."""
        with pn.io.hold():
            if kind == "tab":
                self.tab = value
                self.panels.show_tables(self)
            elif kind == "row" and value < len(self.panels.rows_lead_to):
                moves.show(self, *self.panels.rows_lead_to[value])
                self.send()
                self.panels.show_pin(self)

    def legend_clicked(self, op: str, alone: bool) -> None:
        ops = set(self.scene.snapshot.ops) if self.scene else {op}
        hidden = set(self.look.hidden)
        if alone:
            hidden = set() if hidden == ops - {op} else ops - {op}
        else:
            hidden ^= {op}
        self._keys.pop("legend", None)
        self._last.pop("legend", None)
        self.set_look(hidden=frozenset(hidden))

    # generation

    def chatted(self, message: dict) -> None:
        """What the text pane asks for."""
        kind = message.get("type")
        with pn.io.hold():
            if kind == "generate":
                self.generate(message["prompt"], message["model"].strip(), message["max_tokens"])
            elif kind == "stop" and self.generation:
                self.generation.stop()
            elif kind == "over":
                self.panels.show_step_band(self, int(message["step"]))
            elif kind == "goto":
                moves.show_step(self, int(message["step"]))
                self.send()

    def generate(self, prompt: str, model: str, max_tokens: int) -> None:
        if self.generation and not self.generation.over:
            return
        if not prompt.strip():
            self.panels.note("the prompt is empty; write what the model should answer", "error")
            return
        self.panels.chat.turn("user", prompt)
        messages = [{"role": "user", "content": prompt}]
        self.generation = Generation(self.hub, model, GenerateRequest(messages=messages, max_tokens=max_tokens))
        self._joined = False
        self.panels.chat.running = True
        self.panels.note(self.generation.words())  # what the last one said is over

    def close(self) -> None:
        """The page is gone: nobody reads on."""
        if self.generation:
            self.generation.stop()

    def _take_pieces(self) -> None:
        generation = self.generation
        if generation is None or not self.panels.chat.running:  # once over, the line under the text is free for others
            return
        pieces = generation.take()
        if pieces:
            self.panels.chat.append(pieces)
        if generation.generator is not None and not self._joined:
            self._joined = True
            self._watch(generation)
        over = generation.over
        self.panels.note(generation.words(), "error" if generation.state == "failed" else "")
        if over:
            pieces = generation.take()  # those that came between the first take and its end
            if pieces:
                self.panels.chat.append(pieces)
            self.panels.chat.running = False

    def _watch(self, generation: Generation) -> None:
        """A new generation is what the page wants to see: its source, live, or the simulation of it that is shown."""
        source = generation.generator.source
        name = next((n for n, s in self.hub.sources.items() if s is source), None)
        if name and name != self.source_name and getattr(self.source, "of", None) is not source:
            self.choose(name)
        elif not self.paused:
            self.live()

    def open(self, path: str) -> None:
        try:
            self.choose(self.hub.open_trace(path))
        except MkvizError as error:
            self.panels.note(str(error), "error")
