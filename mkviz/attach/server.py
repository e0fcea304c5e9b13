"""AttachServer: the sink that lets viewers of the same user look on, over a local socket."""

from __future__ import annotations

import contextlib
import functools
import io
import os
import secrets
import selectors
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import astuple
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from mkviz import __version__
from mkviz.attach import places, wire
from mkviz.attach.log import Log
from mkviz.errors import MkvizError
from mkviz.protocols import KINDS, RequestInfo, StepInfo, TokenInfo

if TYPE_CHECKING:
    from mkviz.graph import Graph
    from mkviz.schedule import Schedule

DEFAULT_BYTES = 32 << 20  # of the newest steps and tokens, kept for viewers that come late or are slow
AT_ONCE = 4 << 20  # bytes that one viewer is sent before the next one's turn
LAST_WORDS = 1.0  # seconds that viewers have at the end to take what they have not got
GREETING = 4096  # bytes of a viewer's first message at most
MOST_VIEWERS = 32


class AttachServer:
    """A sink; see :mod:`mkviz.attach`.  ``label`` and ``kind`` are what viewers show it as; ``name`` finds it.

    One thread serves all viewers.  What the sink is told goes into a log of ``most_bytes`` and is encoded when a viewer wants
    it, so being told takes microseconds and never waits.  A viewer that is slower than the log is long misses whole steps and
    tokens, and the next thing it gets says how many; one that does not read at all costs its socket's buffer.  One that comes
    late gets the graphs and requests so far, then the log.

    Raises MkvizError when there is no place for a socket, or for an unknown kind.
    """

    def __init__(self, label: str, kind: str = "measured", *, name: str = "server", where: Path | None = None,
                 most_bytes: int = DEFAULT_BYTES):  # fmt: skip
        if kind not in KINDS:
            raise MkvizError(f"attach: kind {kind!r}", f"one of {', '.join(KINDS)}")
        self.label, self.kind, self.run = label, kind, secrets.token_hex(8)
        self.failure: Exception | None = None  # why the thread ended before its time
        self._log = Log(most_bytes)
        self._graphs: dict[int, Callable[[], bytes]] = {}  # what makes each one's message
        self._lock = threading.Lock()
        self._over = False
        self._listener, self.path = places.bind(name, where)
        self.name = self.path.name.removesuffix(places.SUFFIX)
        self._waker, self._woken = socket.socketpair()
        for end in (self._waker, self._woken):
            end.setblocking(False)
        self._awake = False  # the thread will look before it sleeps
        self._selector = selectors.DefaultSelector()
        self._viewers: list[_Viewer] = []
        self._thread = threading.Thread(target=self._work, name="mkviz-attach", daemon=True)
        self._thread.start()

    # the sink; any thread

    def graph(self, graph_id: int, graph: Graph, schedule: Schedule) -> None:
        with self._lock:
            self._graphs[graph_id] = functools.cache(lambda: wire.graph_message(graph_id, graph, schedule))

    def step(self, info: StepInfo, events: np.ndarray) -> None:
        size = events.nbytes + 64 * (8 + len(info.rows) + len(info.routes))
        self._tell(size, lambda n, before: wire.step_message(info, events, n, before), records=len(events), steps=1)

    def token(self, info: TokenInfo) -> None:
        self._tell(256, lambda n, before: wire.token_message(info, n, before), tokens=1)

    def request(self, info: RequestInfo) -> None:
        with self._lock:
            self._log.add_request(info)
        self._wake()

    def lost(self, records: int, steps: int = 0) -> None:
        def encode(n: int, before: wire.Told) -> bytes:
            return wire.pack({"kind": "lost", "n": n, "before": astuple(before), "records": records, "steps": steps})

        self._tell(128, encode, lost_records=records, lost_steps=steps)

    def failed(self, why: str) -> None:
        self._tell(512, lambda n, before: wire.pack({"kind": "failed", "n": n, "before": astuple(before), "why": why}))

    def close(self, complete: bool = True) -> None:
        """Viewers are told, and the socket is removed.  Safe to call twice."""
        with self._lock:
            if self._over:
                return
            self._log.add(
                64, lambda n, before: wire.pack({"kind": "close", "n": n, "before": astuple(before), "complete": complete})
            )
            self._over = True
        self._wake()
        self._thread.join(LAST_WORDS + 1)

    def _tell(self, size: int, encode: Callable[[int, wire.Told], bytes], **told: int) -> None:
        with self._lock:
            if not self._over:
                self._log.add(size, encode, **told)
        self._wake()

    def _wake(self) -> None:
        if not self._awake:
            self._awake = True
            with contextlib.suppress(OSError):
                self._waker.send(b"!")

    # the thread

    @property
    def viewers(self) -> int:
        """How many look on now."""
        return sum(viewer.greeted for viewer in list(self._viewers))

    def _work(self) -> None:
        try:
            self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
            self._selector.register(self._woken, selectors.EVENT_READ, self._rouse)
            while not self._over:
                self._turn(None)
            deadline = time.monotonic() + LAST_WORDS
            while any(self._wants(viewer) for viewer in self._viewers) and time.monotonic() < deadline:
                self._turn(0.05)
        except Exception as error:  # kept for whoever asks: who looks on must not take down what is looked at
            self.failure = error
        finally:
            for viewer in self._viewers[:]:
                self._drop(viewer)
            self._listener.close()
            self.path.unlink(missing_ok=True)
            self._selector.close()
            for end in (self._waker, self._woken):
                end.close()

    def _turn(self, timeout: float | None) -> None:
        for key, _ in self._selector.select(timeout):
            key.data()
        for viewer in self._viewers[:]:
            try:
                if viewer.greeted or viewer.pending:
                    self._send(viewer)
            except OSError:
                self._drop(viewer)

    def _rouse(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while self._woken.recv(64):
                pass
        self._awake = False  # after the last byte is read, before the log is looked at: what is told from here on rouses again

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            sock, _ = self._listener.accept()
            if len(self._viewers) >= MOST_VIEWERS:
                sock.close()
                return
            sock.setblocking(False)
            viewer = _Viewer(sock)
            self._viewers.append(viewer)
            self._selector.register(sock, selectors.EVENT_READ, lambda: self._hear(viewer))

    def _drop(self, viewer: _Viewer) -> None:
        if viewer in self._viewers:
            self._viewers.remove(viewer)
            self._selector.unregister(viewer.sock)
            viewer.sock.close()

    def _hear(self, viewer: _Viewer) -> None:
        """A viewer says one thing, at the beginning.  More of it, its end, or that there is room for more of ours."""
        try:
            data = viewer.sock.recv(GREETING)
        except BlockingIOError:
            return  # there is room
        except OSError:
            data = b""
        viewer.heard += data
        if not data or viewer.greeted or len(viewer.heard) > GREETING:
            self._drop(viewer)
            return
        try:
            header = _greeting(viewer.heard)
            if header is not None:
                self._greet(viewer, header)
        except (wire.Garbled, KeyError, TypeError):
            self._drop(viewer)

    def _greet(self, viewer: _Viewer, header: dict) -> None:
        if header["protocol"] != wire.PROTOCOL:
            why = f"{self.name} speaks protocol {wire.PROTOCOL} (mkviz {__version__}), the viewer {header['protocol']}"
            viewer.pending, viewer.last = memoryview(wire.pack({"kind": "refused", "why": why})), True
            return
        with self._lock:
            log = self._log
            viewer.at = log.first
            if header["run"] == self.run:
                viewer.at = min(max(int(header["next"]), log.first), log.next)
            entry = log.at(viewer.at)
            before = log.told if entry is None else entry.before
        answer = {
            "kind": "hello", "protocol": wire.PROTOCOL, "mkviz": __version__, "run": self.run, "label": self.label,
            "source": self.kind, "name": self.name, "pid": os.getpid(), "next": viewer.at, "told": astuple(before),
        }  # fmt: skip
        viewer.pending, viewer.greeted, viewer.behind = memoryview(wire.pack(answer)), True, True

    # what a viewer is sent

    def _wants(self, viewer: _Viewer) -> bool:
        return bool(viewer.pending) or (viewer.greeted and (viewer.behind or viewer.at < self._log.next))

    def _send(self, viewer: _Viewer) -> None:
        """As much as it takes without waiting.  Raises OSError when it is gone."""
        room = AT_ONCE
        while room > 0 and (viewer.pending or self._load(viewer)):
            try:
                sent = viewer.sock.send(viewer.pending)
            except BlockingIOError:
                break
            viewer.pending = viewer.pending[sent:]
            room -= sent
            if viewer.last and not viewer.pending:
                raise ConnectionError("all has been said")
        waits = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._wants(viewer) else 0)
        if self._selector.get_key(viewer.sock).events != waits:
            self._selector.modify(viewer.sock, waits, self._selector.get_key(viewer.sock).data)

    def _load(self, viewer: _Viewer) -> bool:
        """Put the next message in its hand; False when there is none now."""
        with self._lock:
            encode = self._next(viewer)
        viewer.pending = memoryview(encode() if encode else b"")  # not under the lock: nobody who tells shall wait for it
        return encode is not None

    def _next(self, viewer: _Viewer) -> Callable[[], bytes] | None:
        """What makes the next message: graphs come before the steps that run them, requests before what follows a gap."""
        log = self._log
        if viewer.at < log.first:
            viewer.at, viewer.behind = log.first, True
        if len(viewer.graphs) < len(self._graphs):
            graph_id = next(i for i in self._graphs if i not in viewer.graphs)
            viewer.graphs.add(graph_id)
            return self._graphs[graph_id]
        if viewer.behind:
            for request in log.requests:
                if (found := viewer.untold(request, log)) is not None:
                    return found
            viewer.behind = False
            viewer.told = {request: count for request, count in viewer.told.items() if request in log.requests}
        while (entry := log.at(viewer.at)) is not None:
            viewer.at += 1
            found = entry.message if entry.request is None else viewer.untold(entry.request, log)
            if found is not None:
                return found
        return None


class _Viewer:
    """One connection.  ``at``: number of the next entry it gets; ``behind``: requests come first; ``graphs`` it has, and
    changes of each request that it was ``told``; ``last``: what is pending ends the connection."""

    def __init__(self, sock: socket.socket):
        self.sock = sock
        self.heard = b""
        self.pending = memoryview(b"")
        self.greeted = self.behind = self.last = False
        self.at = 0
        self.graphs: set[int] = set()
        self.told: dict[int, int] = {}

    def untold(self, request: int, log: Log) -> Callable[[], bytes] | None:
        """What makes the message of a request's changes that it has not been told."""
        changes, told = log.requests.get(request, ()), self.told.get(request, 0)
        if told >= len(changes):
            return None
        self.told[request] = len(changes)
        return functools.partial(wire.request_message, told, changes[told:])


def _greeting(heard: bytes) -> dict | None:
    """What a viewer says first; None while it is not whole.  Raises Garbled."""
    if len(heard) < wire.LENGTHS.size:
        return None
    lengths, rest = wire.LENGTHS.unpack_from(heard), heard[wire.LENGTHS.size :]
    if sum(lengths) > GREETING:
        raise wire.Garbled(f"a greeting of {sum(lengths)} bytes")
    if len(rest) < sum(lengths):
        return None
    header, _ = wire.unpack(*lengths, io.BytesIO(rest).read)
    return header if header["kind"] == "hello" else None
