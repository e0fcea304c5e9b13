"""Play: a past step in slow motion, and event by event."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from mkviz.dashboard import counters, moves
from mkviz.progress import Progress

if TYPE_CHECKING:
    from mkviz.dashboard.session import Session

PACES = (3, 10, 30, 100)  # s that a step takes
PACE = 10


class Player:
    """Of a session's page.  While it is ``on`` the session's snapshot rests.  Times are ns since the snapshot's origin."""

    def __init__(self, session: Session):
        self.session, self.pace = session, PACE
        self.on = self.running = False
        self.number = -1  # of the step
        self.progress: Progress | None = None
        self._at, self._since = 0.0, 0.0  # where the playhead was, and when (s)

    @property
    def now(self) -> float:
        """Where the playhead is."""
        if not self.running:
            return self._at
        return min(self._at + (time.monotonic() - self._since) * self.rate, float(self.progress.end))

    @property
    def rate(self) -> float:
        """ns of the step per s of play."""
        return (self.progress.end - self.progress.begin) / self.pace if self.running else 0.0

    def start(self, number: int | None = None, at: float | None = None, running: bool = True) -> None:
        """Play a step (None: the one in the middle of the view) from ``at`` (None: its begin, or the left edge of a view inside
        it)."""
        session, snapshot = self.session, self.session.snapshot()
        if snapshot is None or not len(snapshot.steps):
            return
        middle = (session.x0 + session.x1) / 2
        begins = snapshot.steps["begin"] - snapshot.origin
        step = snapshot.index_of(number) if number is not None else max(0, int((begins <= middle).sum()) - 1)
        if step < 0:
            session.panels.note(f"step {number} is not kept any more, so it cannot be played", "error")
            return
        self.number = int(snapshot.steps["step"][step])
        self.progress = Progress(snapshot, step)
        self.on, session.placed = True, True
        begin, end = self.progress.begin, self.progress.end
        if session.follow or session.x1 - session.x0 > 1.5 * (end - begin) or not begin <= middle <= end:
            moves.show_step(session, self.number)
        self._go(max(float(begin), session.x0) if at is None else min(max(at, begin), end))
        self.run(running)

    def run(self, running: bool) -> None:
        """Pause or go on; from the end, again from the begin."""
        at = self.now
        if running and at >= self.progress.end:
            at = float(self.progress.begin)
        self.running = running
        self._go(at)

    def toggle(self) -> None:
        """Start, pause, go on."""
        if self.on:
            self.run(not self.running)
        else:
            self.start()

    def step(self, direction: int) -> None:
        """To the next (1) or previous (-1) event on the SMs in view."""
        if not self.on:
            self.start(running=False)
        if self.on:
            at, self.running = self.now, False
            lanes = self.session.scene.lanes if self.session.scene else range(self.progress.snapshot.lanes)
            self._go(self.progress.next_event(at, direction, lanes))

    def set_pace(self, pace: int) -> None:
        at = self.now
        self.pace = pace
        self._go(at)

    def leave(self) -> None:
        if self.on:
            self.on = self.running = False
            self.progress = None
            self.show()

    def tick(self) -> None:
        if self.running:
            if self.now >= self.progress.end:
                self.run(False)
            self._keep_in_view()
            self.session.panels.playhead.count(self)

    def key(self, key: str) -> bool:
        """Whether a key meant the player."""
        if key == "p" or (key == " " and self.on):
            self.toggle()
        elif key in ("arrowright", "arrowleft"):
            self.step(1 if key == "arrowright" else -1)
        elif key == "Escape" and self.on:
            self.leave()
        elif key in ("[", "]") and self.on:
            moves.along_steps(self.session, 1 if key == "]" else -1)
            self.start(running=self.running)
        else:
            return False
        return True

    def controlled(self, kind: str, value) -> None:
        """What the transport's buttons ask for."""
        if kind == "pace":
            self.set_pace(int(value) if int(value) in PACES else PACE)
        elif kind == "event" and value in (1, -1):
            self.step(value)
        elif kind == "play":
            self.toggle()
        elif kind == "leave":
            self.leave()

    # the page's address

    def state(self) -> dict[str, str]:
        """``play``: the step; ``at``: µs into it, while it rests; ``pace``: s a step."""
        if not self.on:
            return {}
        rest = {} if self.running else {"at": f"{(self._at - self.progress.begin) / 1000:.3f}"}
        return {"play": str(self.number), **rest, **({"pace": str(self.pace)} if self.pace != PACE else {})}

    def restore(self, query: dict[str, str]) -> None:
        if not query.get("play", "").isdigit() or self.session.source is None:
            return
        if query.get("pace", "").isdigit() and int(query["pace"]) in PACES:
            self.pace = int(query["pace"])
        try:
            into = float(query["at"]) * 1000 if "at" in query else None
        except ValueError:
            into = None
        self.start(int(query["play"]), running=into is None)
        if self.on and into is not None:
            self._go(min(self.progress.begin + into, float(self.progress.end)))

    def _go(self, at: float) -> None:
        self._at, self._since = at, time.monotonic()
        self._keep_in_view()
        self.show()

    def _keep_in_view(self) -> None:
        session, now = self.session, self.now
        if not session.x0 <= now <= session.x1:
            span = session.x1 - session.x0
            session.go(now - 0.1 * span, now + 0.9 * span)

    def show(self) -> None:
        self.session.panels.playhead.show(self)

    def words(self, lanes: range) -> str:
        """The counters' panel."""
        return counters.html(self.progress, self.now, self.number, lanes)
