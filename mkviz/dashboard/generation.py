"""Generation: one request of one page, run on a thread of its own; the page's tick takes what it left."""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import TYPE_CHECKING

from mkviz.errors import MkvizError

if TYPE_CHECKING:
    from mkviz.dashboard.hub import Hub
    from mkviz.protocols import GenerateRequest, Generator

STATES = ("loading", "waiting", "running", "stopping", "done", "stopped", "failed")


class Generation:
    """Streams one request.  ``state`` is one of STATES; ``generator`` is set once the model is loaded."""

    def __init__(self, hub: Hub, model: str, request: GenerateRequest):
        self.model, self.request = model, request
        self.state, self.error, self.finish_reason = "loading", "", ""
        self.generator: Generator | None = None
        self.tokens, self.first, self.started = 0, 0.0, time.perf_counter()
        self.times: deque[float] = deque(maxlen=64)
        self._hub, self._pieces, self._stop = hub, deque(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="mkviz-generation", daemon=True)
        self._thread.start()

    @property
    def over(self) -> bool:
        return self.state in ("done", "stopped", "failed")

    def stop(self) -> None:
        """Ask it to end after the piece it is at; what was generated stays."""
        self._stop.set()
        if not self.over:
            self.state = "stopping"

    def take(self) -> list[tuple[str, int]]:
        """The (text, step) pieces since the last call."""
        out = []
        while self._pieces:
            out.append(self._pieces.popleft())
        return out

    def words(self) -> str:
        """The state in words, one line."""
        if self.state == "loading":
            return self._hub.opening or f"loading {self.model} …"
        if self.state == "waiting":
            return "queued" if self._queued() else "reading the prompt …"
        if self.state == "running":
            return f"generating · {self.tokens} tokens · {self.rate():.1f} tok/s"
        if self.state == "stopping":
            return "stopping …"
        if self.state == "failed":
            return self.error
        ended = "stopped" if self.state == "stopped" else f"done ({self.finish_reason})" if self.finish_reason else "done"
        return f"{ended} · {self.tokens} tokens · {self.rate():.1f} tok/s · first after {1e3 * self.first:.0f} ms"

    def rate(self) -> float:
        """tok/s over the last 64 tokens, 0 before the second."""
        span = self.times[-1] - self.times[0] if len(self.times) > 1 else 0
        return (len(self.times) - 1) / span if span > 0 else 0.0

    def _queued(self) -> bool:
        requests = self.generator.source.snapshot().requests if self.generator else {}
        return any(info.state == "queued" for info in requests.values())

    def _run(self) -> None:
        try:
            self.generator = self._hub.generator(self.model)
            if not self._stop.is_set():
                self.state = "waiting"
            self._stream()
        except MkvizError as error:
            self.state, self.error = "failed", str(error)
        except Exception as error:  # a bug of the generator: the page lives on and says so in one line
            self.state, self.error = "failed", f"the generator failed: {type(error).__name__}: {error}".splitlines()[0]

    def _stream(self) -> None:
        stream = self.generator.stream(self.request)
        try:
            while not self._stop.is_set():
                piece = next(stream, None)
                if piece is None:
                    break
                now = time.perf_counter()
                if not self.tokens:
                    self.first = now - self.started
                    self.state = "running" if not self._stop.is_set() else self.state
                if piece.token >= 0:
                    self.tokens += 1
                    self.times.append(now)
                self._pieces.append((piece.text, piece.step))
                self.finish_reason = piece.finish_reason or self.finish_reason
        finally:
            close = getattr(stream, "close", None)
            if close:
                close()
        self.state = "stopped" if self._stop.is_set() else "done"
