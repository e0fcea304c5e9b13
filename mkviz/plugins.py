"""Plug-ins: what the entry points of installed packages, or of this checkout, offer to mkviz."""

from __future__ import annotations

import importlib.util
import tomllib
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

COMMANDS = "mkviz.commands"
GENERATORS = "mkviz.generators"


def plugins(group: str) -> dict[str, EntryPoint]:
    """{name: entry point} of a group, sorted by name; nothing is imported until an entry point's ``load()``.

    A checkout's own pyproject.toml comes first, so that commands resolve without an installation and new ones without a
    new one.  An entry whose top-level package is not there (the engine, where only the viewer is installed) is left out.
    """
    found = {entry.name: entry for entry in entry_points(group=group)}
    found.update({name: EntryPoint(name, value, group) for name, value in _checkout_table(group).items()})
    return {name: found[name] for name in sorted(found) if _is_there(found[name])}


def _checkout_table(group: str) -> dict[str, str]:
    pyproject = Path(__file__).parents[1] / "pyproject.toml"
    if not pyproject.is_file():
        return {}
    project = tomllib.loads(pyproject.read_text(encoding="utf-8")).get("project", {})
    return project.get("entry-points", {}).get(group, {}) if project.get("name") == "mkviz" else {}


def _is_there(entry: EntryPoint) -> bool:
    return importlib.util.find_spec(entry.module.partition(".")[0]) is not None
