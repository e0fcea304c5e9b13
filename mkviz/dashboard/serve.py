"""Serve: the page on a local port, for ``mkviz view``."""

from __future__ import annotations

import errno
import os
import sys
import webbrowser
from collections.abc import Sequence
from pathlib import Path

import panel as pn

from mkviz.dashboard.hub import hub
from mkviz.dashboard.page import page
from mkviz.errors import MkvizError


def serve(traces: Sequence[Path], port: int, open_browser: bool = True) -> None:
    """Serves until Ctrl-C; prints the address first.  Raises MkvizError for an unreadable trace or a taken port."""
    if not 0 <= port <= 65535:
        raise MkvizError(f"port {port} does not exist", "one from 1024 to 65535, or 0 for any free one")
    for path in traces:
        hub.open_trace(str(path))
    try:
        server = pn.serve({"/": page}, title="mkviz", port=port, address="localhost", show=False, start=False, verbose=False)
    except OSError as error:
        if error.errno not in (errno.EADDRINUSE, errno.EACCES):
            raise
        why = "in use" if error.errno == errno.EADDRINUSE else "not ours to open"
        raise MkvizError(f"port {port} is {why}", "another one with --port, or --port 0 for any free one") from error
    address = f"http://localhost:{server.port}/"
    print(f"mkviz is at {address} (Ctrl-C stops it)", flush=True)
    server.start()
    if open_browser and _has_screen():
        webbrowser.open(address)
    server.run_until_shutdown()


def _has_screen() -> bool:
    """Without one, a text browser would take over the terminal."""
    return sys.platform in ("darwin", "win32") or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
