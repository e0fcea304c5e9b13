"""Stored: the part of a source that its store answers for."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mkviz.graph import Graph
    from mkviz.schedule import Schedule
    from mkviz.store import LiveStore


class Stored:
    """A base of sources (:class:`mkviz.protocols.Source`) that keep what they show in a store, which may be replaced."""

    _store: LiveStore

    @property
    def version(self) -> int:
        return self._store.version

    @property
    def lanes(self) -> int:
        return self._store.lanes

    @property
    def graphs(self) -> dict[int, tuple[Graph, Schedule]]:
        return self._store.graphs
