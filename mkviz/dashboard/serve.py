"""Serve: the page on a local port in a window of its own, for ``mkviz view``."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import tempfile
import webbrowser
from collections.abc import Sequence
from pathlib import Path

import panel as pn

from mkviz.dashboard.hub import hub
from mkviz.dashboard.page import page
from mkviz.errors import MkvizError

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "microsoft-edge", "brave-browser")
MAC_BROWSERS = ("Google Chrome", "Chromium", "Microsoft Edge", "Brave Browser")


def serve(traces: Sequence[Path], port: int, open_browser: bool = True) -> None:
    """Serves until Ctrl-C or until its window is closed, and prints the address once the port answers.

    Raises MkvizError for an unreadable trace or a taken port.
    """
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
    if not traces:
        hub.warm_up()
    with tempfile.TemporaryDirectory(prefix="mkviz-window-", ignore_cleanup_errors=True) as profile:
        window = _open(address, profile) if open_browser and _has_screen() else None
        if window is not None:
            server.io_loop.add_callback(_watch, server, window)
        try:
            server.run_until_shutdown()
        finally:
            if window is not None and window.poll() is None:
                window.terminate()


def chromium() -> str | None:
    """A Chromium that can show a page as a window of its own; None where there is none."""
    if sys.platform == "darwin":
        apps = (Path(f"/Applications/{name}.app/Contents/MacOS/{name}") for name in MAC_BROWSERS)
        return next((str(app) for app in apps if app.exists()), None)
    return next(filter(None, map(shutil.which, BROWSERS)), None)


def _open(address: str, profile: str) -> subprocess.Popen | None:
    """Open a window and return its process; with no Chromium a tab of the default browser, whose end nobody sees."""
    browser = chromium()
    if browser is None:
        webbrowser.open(address)
        return None
    command = [browser, f"--app={address}", f"--user-data-dir={profile}", "--no-first-run", "--window-size=1480,940"]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def _has_screen() -> bool:
    """Without one, a text browser would take over the terminal."""
    return sys.platform in ("darwin", "win32") or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def _watch(server, window: subprocess.Popen) -> None:
    """End with the window.  One that never opened (no display) leaves the server to its printed address."""
    code = window.poll()
    if code is None:
        server.io_loop.call_later(0.5, _watch, server, window)
    elif code == 0:
        server.io_loop.stop()
