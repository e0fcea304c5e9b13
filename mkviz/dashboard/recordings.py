"""Recordings: the traces that come with mkviz, so that a whole GPU can be looked at without one."""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).parents[1] / "recordings"
SUFFIX = ".mkt.zip"


def recordings() -> dict[str, Path]:
    """Paths by the name a page offers them under, ``recorded on H200: demo model`` for ``h200-demo-model.mkt.zip``."""
    found = {}
    for path in sorted(FOLDER.glob("*" + SUFFIX)):
        gpu, _, what = path.name.removesuffix(SUFFIX).partition("-")
        found[f"recorded on {gpu.upper()}: {what.replace('-', ' ')}"] = path
    return found
