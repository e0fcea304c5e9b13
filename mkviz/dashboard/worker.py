"""Worker: a thread of the process that computes for pages, one thing after the other, so that their loop stays free."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable

log = logging.getLogger(__name__)


class Worker:
    """``put`` returns at once; what is put is called on the thread, which begins with the first."""

    def __init__(self):
        self._jobs: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def put(self, job: Callable[[], None]) -> None:
        self._jobs.put(job)
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="mkviz-analyses", daemon=True)
                self._thread.start()

    def _work(self) -> None:
        while True:
            job = self._jobs.get()
            try:
                job()
            except Exception:
                log.exception("a job of a page failed")
            del job  # or it would keep what it is of until the next one


worker = Worker()
"""The one of this process."""
