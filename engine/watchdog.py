"""Watchdog: notices a step that does not end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


class Watchdog:
    """Calls ``bark(seconds)`` from a thread of its own, once for each step that takes longer than ``limit`` seconds.

    The step runs inside ``with watchdog:``.  Nothing is done to it: a thread cannot be stopped from outside.
    """

    def __init__(self, limit: float, bark: Callable[[float], None]):
        self.limit, self._bark = limit, bark
        self._began = 0.0  # of the step that runs and has not been barked at; 0: none
        self._stop = threading.Event()
        threading.Thread(target=self._watch, name="mkviz-watchdog", daemon=True).start()

    def __enter__(self) -> None:
        self._began = time.monotonic()

    def __exit__(self, *_) -> None:
        self._began = 0.0

    def _watch(self) -> None:
        while not self._stop.wait(min(1.0, self.limit / 4)):
            began = self._began
            if began and time.monotonic() - began > self.limit:
                self._began = 0.0
                self._bark(time.monotonic() - began)

    def close(self) -> None:
        self._stop.set()
