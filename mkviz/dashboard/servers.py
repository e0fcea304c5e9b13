"""Servers: those that run on this machine, among the sources to choose from."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from mkviz.attach.places import running

if TYPE_CHECKING:
    from mkviz.protocols import Source

PREFIX = "server: "
PACE_S = 2.0


class Servers:
    """``offers()``: functions that attach, by the name a page offers them under, of the servers that run now; looked up at
    most every PACE_S seconds."""

    def __init__(self):
        self._at, self._found = float("-inf"), {}

    def offers(self) -> dict[str, Callable[[], Source]]:
        now = time.monotonic()
        if now - self._at >= PACE_S:
            self._at, self._found = now, {name_of(p): functools.partial(attached, p) for p in running().values()}
        return self._found


def name_of(path: Path) -> str:
    """What a page calls the server of a socket."""
    return PREFIX + path.stem


def is_server(name: str) -> bool:
    """Whether the source that a page calls so is a running server."""
    return name.startswith(PREFIX)


def attached(path: Path) -> Source:
    from mkviz.attach.client import AttachedSource

    return AttachedSource(path)
