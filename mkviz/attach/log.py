"""Log: the newest of what a sink was told, bounded, for readers who each are somewhere in it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from mkviz.attach.wire import Told
from mkviz.protocols import RequestInfo
from mkviz.store import KEPT_REQUESTS

Encode = Callable[[int, Told], bytes]


class Entry:
    """One thing that was told: a message once somebody wants it, or (``request``) that a request has changed."""

    __slots__ = ("_encode", "_message", "before", "n", "request", "size")

    def __init__(self, n: int, before: Told, size: int, encode: Encode | None, request: int | None):
        self.n, self.before, self.size, self.request = n, before, size, request
        self._encode, self._message = encode, b""

    def message(self) -> bytes:
        """Encoded once; from then on the entry holds the bytes alone."""
        if self._encode is not None:
            self._message = self._encode(self.n, self.before)
            self._encode = None
        return self._message


class Log:
    """Numbered entries of at most ``most_bytes`` in all, but the newest is always there.  Nobody's reading holds anything up:
    the oldest make room, and what comes after them says how much they were.  Not locked."""

    def __init__(self, most_bytes: int):
        self.most_bytes = most_bytes
        self.entries: deque[Entry] = deque()
        self.requests: dict[int, tuple[RequestInfo, ...]] = {}
        self.told = Told()
        self.next = 0  # number of the next entry
        self._bytes = 0

    @property
    def first(self) -> int:
        """Number of the oldest entry that is kept."""
        return self.next - len(self.entries)

    def add(self, size: int, encode: Encode | None, request: int | None = None, **told: int) -> None:
        self.entries.append(Entry(self.next, self.told, size, encode, request))
        self.told = self.told.plus(**told) if told else self.told
        self.next += 1
        self._bytes += size
        while self._bytes > self.most_bytes and len(self.entries) > 1:
            self._bytes -= self.entries.popleft().size

    def add_request(self, info: RequestInfo) -> None:
        self.requests[info.request] = (*self.requests.get(info.request, ()), info)
        if len(self.requests) > KEPT_REQUESTS:
            self.requests.pop(next(iter(self.requests)))
        self.add(64, None, info.request)

    def at(self, n: int) -> Entry | None:
        """The entry of that number, of those that are kept; None when it has not been told yet."""
        return self.entries[n - self.first] if n < self.next else None
