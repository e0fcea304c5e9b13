"""Attach: the local socket through which ``mkviz view --attach`` looks on."""

from __future__ import annotations

import logging

from engine.engine import Engine
from engine.serve.settings import Settings
from mkviz.attach.server import AttachServer
from mkviz.errors import MkvizError
from mkviz.trace.schema import label_of

log = logging.getLogger("mkviz.serve")


def open_attach(engine: Engine, settings: Settings, place: int | str) -> AttachServer | None:
    """The engine's sink for viewers, named MODEL-PLACE (a port or a replica); None where it is not wanted or cannot
    be.  Serving goes on without."""
    if not (settings.attach and settings.trace):
        return None
    try:
        server = AttachServer(label_of("measured", engine.device), name=f"{engine.model}-{place}")
    except MkvizError as error:
        log.warning("no dashboard can attach: %s", error)
        return None
    engine.add_sink(server)
    return server
