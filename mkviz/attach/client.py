"""AttachedSource: the source that shows what a running server records, and says when it is not there."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections import Counter
from dataclasses import astuple
from pathlib import Path

from mkviz import __version__
from mkviz.attach import places, wire
from mkviz.protocols import KINDS
from mkviz.store import DEFAULT_BYTES, LiveStore, Snapshot
from mkviz.stored import Stored

RETRY_S = 0.5


class AttachedSource(Stored):
    """A source; see :mod:`mkviz.attach`.  Connects to the socket ``path`` from a thread of its own, again and again.

    ``words`` says what it waits for or what went wrong, "" while it has steps and its server is there.  A server that was
    started anew begins a new ``run``, with an empty store; while one is gone, what came of it stays.  Records and steps that
    its server could not hand over count as lost; of tokens ``lost_tokens`` does.
    """

    def __init__(self, path: Path, max_bytes: int = DEFAULT_BYTES):
        self.path, self.max_bytes = Path(path), max_bytes
        self.name = self.path.name.removesuffix(places.SUFFIX)
        self.run = 0  # of how many runs steps have been shown
        self.lost_tokens = 0
        self._trouble = f"Looking for the server {self.name} …"
        self._store = LiveStore(f"server {self.name}", "measured", max_bytes)
        self._server = ""  # the run it calls its own
        self._known = wire.Told()
        self._next = 0
        self._graph_ids: dict[int, int] = {}  # by the server's
        self._graphs_seen = 0  # of all runs: none of them gets an id again, so that nothing kept of another is taken for its
        self._requests: Counter[int] = Counter()  # changes of each that were told
        self._sock: socket.socket | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work, name="mkviz-attached", daemon=True)
        self._thread.start()

    # the source

    @property
    def label(self) -> str:
        return self._store.label

    @property
    def kind(self) -> str:
        return self._store.kind

    def snapshot(self) -> Snapshot:
        return self._store.snapshot()

    @property
    def words(self) -> str:
        if self._trouble or self._store.words:
            return self._trouble or self._store.words
        return "" if len(self._store.snapshot().steps) else f"Attached to {self.name}: no steps yet; send it a request"

    def close(self) -> None:
        """Let go of the server.  Safe to call twice."""
        self._over.set()
        with contextlib.suppress(OSError, AttributeError):  # it may end by itself meanwhile
            self._sock.shutdown(socket.SHUT_RDWR)
        self._thread.join()

    # the thread

    def _work(self) -> None:
        while not self._over.is_set():
            there = bool(self._server) and not self._trouble
            try:
                with places.connect(self.path) as self._sock:
                    self._follow(self._sock)
            except wire.Garbled as error:
                self._trouble = f"What {self.name} says is not understood ({error})"
            except OSError:
                if there or not self._trouble:
                    self._trouble = f"The server {self.name} is gone since {time.strftime('%H:%M:%S')}; looking for it"
            finally:
                self._sock = None
            self._over.wait(RETRY_S)

    def _follow(self, sock: socket.socket) -> None:
        """Take what the server says until it ends.  Raises OSError when it does so without a word, and Garbled."""
        sock.sendall(
            wire.pack({"kind": "hello", "protocol": wire.PROTOCOL, "mkviz": __version__, "run": self._server,
                       "next": self._next})
        )  # fmt: skip
        while not self._over.is_set():
            message = wire.receive(sock)
            if message is None:
                raise ConnectionError("the server has ended")
            try:
                if not self._take(*message):
                    return
            except wire.Garbled:
                raise
            except Exception as error:  # whatever it is made of: the page goes on
                raise wire.Garbled(f"{message[0]['kind']}: {type(error).__name__}: {error}") from error

    def _take(self, header: dict, tables: dict) -> bool:
        """One message; False after the last."""
        kind = header["kind"]
        if kind == "hello":
            self._meet(header)
        elif kind == "refused":
            self._trouble = f"Refused: {header['why']}; use the same mkviz on both sides"
            return False
        elif kind == "graph":
            graph_id, graph, schedule = wire.graph_of(header, tables)
            if graph_id not in self._graph_ids:
                self._graph_ids[graph_id] = self._graphs_seen
                self._graphs_seen += 1
                self._store.graph(self._graph_ids[graph_id], graph, schedule)
        elif kind == "request":
            for index, info in enumerate(wire.changes_of(header), header["index"]):
                if index >= self._requests[info.request]:  # else told before the connection broke
                    self._requests[info.request] = index + 1
                    self._store.request(info)
        elif kind in ("step", "token", "lost", "failed", "close"):
            return self._take_numbered(kind, header, tables)
        return True  # a kind of a later protocol that does not mind being ignored

    def _meet(self, header: dict) -> None:
        if header["source"] not in KINDS:
            raise wire.Garbled(f"kind {header['source']!r}")
        if header["run"] != self._server:
            if self._server:
                self._store = LiveStore(str(header["label"]), header["source"], self.max_bytes)
            else:
                self._store.label, self._store.kind = str(header["label"]), header["source"]
            self._server, self._graph_ids, self._requests = header["run"], {}, Counter()
            self._known, self.lost_tokens = wire.told_of(header["told"]), 0
            self.run += 1
        self._trouble = ""

    def _take_numbered(self, kind: str, header: dict, tables: dict) -> bool:
        """What was missed before it, then the thing itself."""
        store, before = self._store, wire.told_of(header["before"])
        missed = before.since(self._known)
        if any(astuple(missed)):
            self.lost_tokens += missed.tokens
            store.lost(missed.records + missed.lost_records, missed.steps + missed.lost_steps)
        self._known, self._next = before, header["n"] + 1
        if kind == "step":
            info, events = wire.step_of(header, tables)
            info.graph = self._graph_ids.get(info.graph, info.graph)
            store.step(info, events)
            self._known = before.plus(records=len(events), steps=1)
        elif kind == "token":
            store.token(wire.token_of(header))
            self._known = before.plus(tokens=1)
        elif kind == "lost":
            store.lost(header["records"], header["steps"])
            self._known = before.plus(lost_records=header["records"], lost_steps=header["steps"])
        elif kind == "failed":
            store.failed(str(header["why"])[:200])
        else:
            store.close(bool(header["complete"]))
            self._trouble = f"The server {self.name} has ended at {time.strftime('%H:%M:%S')}; waiting for it to start again"
            return False
        return True
