"""Window: the page in a window of its own, whose closing ends the server."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import webbrowser
from pathlib import Path

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "microsoft-edge", "brave-browser")
MAC_BROWSERS = ("Google Chrome", "Chromium", "Microsoft Edge", "Brave Browser")
WIDTH, HEIGHT = 1480, 940  # px

# pywebview wants the main thread of its process, which the server has in ours
PYWEBVIEW = f"import sys, webview; webview.create_window('mkviz', sys.argv[1], width={WIDTH}, height={HEIGHT}); webview.start()"


class Window:
    """Of a Chromium in app mode, else of pywebview where that is installed, else a tab of the default browser.

    ``over`` says that the user has closed it.  A tab's end nobody sees, and a window that never opened (no display reached)
    leaves the server to its printed address: both are never over.  ``close`` ends what is still open.
    """

    def __init__(self, address: str):
        self._profile = tempfile.TemporaryDirectory(prefix="mkviz-window-", ignore_cleanup_errors=True)
        command = command_for(address, self._profile.name)
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self._process = subprocess.Popen(command, **quiet) if command else None
        if command is None:
            webbrowser.open(address)

    @property
    def over(self) -> bool:
        return self._process is not None and self._process.poll() == 0

    def close(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            self._process.wait()
        self._profile.cleanup()


def command_for(address: str, profile: str) -> list[str] | None:
    """What opens a window of its own and lives as long as it; None where nothing can."""
    browser = chromium()
    if browser is not None:
        size = f"--window-size={WIDTH},{HEIGHT}"
        return [browser, f"--app={address}", f"--user-data-dir={profile}", "--no-first-run", size]
    if importlib.util.find_spec("webview") is not None:
        return [sys.executable, "-c", PYWEBVIEW, address]
    return None


def chromium() -> str | None:
    """A Chromium that can show a page as a window of its own; None where there is none."""
    if sys.platform == "darwin":
        apps = (Path(f"/Applications/{name}.app/Contents/MacOS/{name}") for name in MAC_BROWSERS)
        return next((str(app) for app in apps if app.exists()), None)
    return next(filter(None, map(shutil.which, BROWSERS)), None)


def has_screen() -> bool:
    """Without one, a text browser would take over the terminal."""
    return sys.platform in ("darwin", "win32") or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
