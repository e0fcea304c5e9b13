"""Serve: the pages on a local port in a window of its own, for ``mkviz view``."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from pathlib import Path

import panel as pn

from mkviz.dashboard.analyses_page import analyses_page
from mkviz.dashboard.hub import hub
from mkviz.dashboard.page import page
from mkviz.dashboard.window import Window, has_screen
from mkviz.errors import MkvizError

LOOK_S = 0.5  # how often the window is asked whether it is over


def serve(traces: Sequence[Path], port: int = 0, window: bool = True, attach: Path | None = None) -> None:
    """Serves until Ctrl-C or until its window is closed, and prints the address once the port answers.  Port 0: any free one.
    ``attach``: the socket of a running server, which is shown first.

    Raises MkvizError for an unreadable trace or a taken port.
    """
    if not 0 <= port <= 65535:
        raise MkvizError(f"port {port} does not exist", "one from 1024 to 65535, or none for any free one")
    if attach is not None:
        hub.attach(attach)
    for path in traces:
        hub.open_trace(str(path))
    try:
        pages = {"/": page, "/analyses": analyses_page}
        server = pn.serve(pages, title="mkviz", port=port, address="localhost", show=False, start=False, verbose=False)
    except OSError as error:
        if error.errno not in (errno.EADDRINUSE, errno.EACCES):
            raise
        why = "in use" if error.errno == errno.EADDRINUSE else "not ours to open"
        raise MkvizError(f"port {port} is {why}", "another one with --port, or none for any free one") from error
    address = f"http://localhost:{server.port}/"
    print(f"mkviz is at {address} (Ctrl-C stops it)", flush=True)
    server.start()
    if not traces and attach is None:
        hub.warm_up()
    shown = Window(address) if window and has_screen() else None
    if shown is not None:
        server.io_loop.add_callback(_watch, server, shown)
    try:
        server.run_until_shutdown()
    finally:
        if shown is not None:
            shown.close()


def _watch(server, shown: Window) -> None:
    """End with the window."""
    if shown.over:
        server.io_loop.stop()
    else:
        server.io_loop.call_later(LOOK_S, _watch, server, shown)
