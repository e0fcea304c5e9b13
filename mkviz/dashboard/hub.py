"""Hub: what all sessions of one server process share.  Sources by name, generators by model, and who is generating."""

from __future__ import annotations

import contextlib
import functools
import secrets
import threading
from typing import TYPE_CHECKING

from mkviz.dashboard.recordings import recordings
from mkviz.dashboard.servers import Servers, attached, name_of
from mkviz.dashboard.simulations import simulations
from mkviz.errors import MkvizError
from mkviz.plugins import GENERATORS, plugins

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from mkviz.protocols import Generator, Source

DEFAULT_MODEL = "demo"
LIVE = "live: "


class Hub:
    """Sources and generators of this process.

    ``openers`` maps names to functions ``open_generator(model: str | None) -> Generator``; by default the entry points of the
    group ``mkviz.generators``.  An opener may have attributes: ``models()``, models to offer, and ``opening()``, what it is
    busy with while it opens, in words.  ``boot`` tells one server process from the next, so that a page knows it was restarted.
    """

    def __init__(self, openers: dict[str, Callable] | None = None):
        self.boot = secrets.token_hex(4)
        self._lock = threading.Lock()
        self._opening: dict[str, threading.Lock] = {}
        self._sources: dict[str, Source] = {}
        self._offers: dict[str, Callable[[], Source]] = {}
        self._generators: dict[str, Generator] = {}
        self._openers = openers
        self._loading = ""  # the model that is being opened
        self._servers: Servers | None = None
        self.problems: list[str] = []
        for name, path in recordings().items():
            self.offer(name, functools.partial(_opened, path))

    @property
    def openers(self) -> dict[str, Callable]:
        if self._openers is None:
            self._openers = {}
            for name, entry in plugins(GENERATORS).items():
                try:
                    self._openers[name] = entry.load()
                except Exception as error:  # a broken plug-in must not take the viewer down
                    self.problems.append(f"generator {name} does not load: {error}")
        return self._openers

    @property
    def sources(self) -> dict[str, Source]:
        with self._lock:
            return dict(self._sources)

    def add_source(self, name: str, source: Source, tiled: Callable | None = None) -> None:
        """An open source, and with it the offer to simulate it (``tiled`` as of :class:`mkviz.protocols.Generator`)."""
        found = simulations(name, source, tiled)
        with self._lock:
            self._sources[name] = source
            for simulation in found:
                self._sources.pop(simulation, None)  # of what had the name before
            self._offers = found | {k: v for k, v in self._offers.items() if k not in found}

    def offer(self, name: str, open_source: Callable[[], Source]) -> None:
        """Let pages choose a source that is opened when one first does."""
        with self._lock:
            self._offers[name] = open_source

    def watch_servers(self) -> None:
        """From here on the servers that run on this machine are among the sources to choose from."""
        self._servers = Servers()

    def attach(self, path: Path) -> str:
        """Attach to the server of a socket and return the name of its source."""
        name = name_of(path)
        if name not in self.sources:
            self.add_source(name, attached(path))
        return name

    @property
    def names(self) -> list[str]:
        """Of all sources to choose from: those that are open, then those on offer, in an order that opening does not change,
        then servers that are not open."""
        servers = self._servers.offers() if self._servers else ()
        with self._lock:
            names = [*(name for name in self._sources if name not in self._offers), *self._offers]
            return [*names, *(name for name in servers if name not in self._sources)]

    @property
    def first(self) -> str:
        """The source that a page shows unasked; "" while there is none.  What is on offer waits to be chosen."""
        with self._lock:
            return next((name for name in self._sources if name not in self._offers), "")

    def source(self, name: str) -> Source | None:
        """A source by name, opened if it is on offer; None when there is none.  Raises MkvizError when it does not open."""
        with self._lock:
            known, open_source = self._sources.get(name), self._offers.get(name)
            if open_source is None and self._servers:
                open_source = self._servers.offers().get(name)
        if known is None and open_source is not None:
            known = open_source()
            self.add_source(name, known)
        return known

    @property
    def models(self) -> list[str]:
        """Models to offer: the default one, those opened so far, and what the generators themselves list (``models()``)."""
        listed = [m for opener in self.openers.values() for m in getattr(opener, "models", list)()]
        with self._lock:
            return list(dict.fromkeys([DEFAULT_MODEL, *listed, *self._generators]))

    def generator(self, model: str) -> Generator:
        """The generator of a model, opened on first use (which may take seconds: never call this on the page's own loop).

        Raises MkvizError when there is none or the model does not load.
        """
        if not self.openers:
            raise MkvizError("no generator is installed", "install mkviz with its engine, or open a trace")
        with self._lock:
            opening = self._opening.setdefault(model, threading.Lock())
        with opening:
            with self._lock:
                known = self._generators.get(model)
            if known is None:
                self._loading = model
                try:
                    known = self._opener(None if model == DEFAULT_MODEL else model)
                finally:
                    self._loading = ""
                with self._lock:
                    self._generators[model] = known
                self.add_source(LIVE + model, known.source, getattr(known, "tiled", None))
        return known

    @property
    def _opener(self) -> Callable:
        return next(iter(self.openers.values()))

    def warm_up(self, model: str = DEFAULT_MODEL) -> None:
        """Open a model's generator in the background, so that the first prompt finds it open.  What goes wrong is told to
        whoever asks for it then."""
        if not self.openers or model in self._opening:
            return

        def open_it():
            with contextlib.suppress(Exception):
                self.generator(model)

        threading.Thread(target=open_it, name="mkviz-open", daemon=True).start()

    @property
    def opening(self) -> str:
        """What is being opened, in words; "" when nothing is."""
        loading = self._loading
        return loading and (getattr(self._opener, "opening", str)() or f"loading {loading} …")

    def open_trace(self, path: str) -> str:
        """Load a trace and return the name of its source.  Raises MkvizError for what is no readable trace."""
        name = f"trace: {path}"
        self.add_source(name, _opened(path))
        return name


def _opened(path: str | Path) -> Source:
    from mkviz.store import store_of_trace

    return store_of_trace(path)


hub = Hub()
hub.watch_servers()
"""The hub of this process: ``panel serve`` runs the page's script once per session, but imports this module once."""
