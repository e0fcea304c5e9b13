"""Conditions: on what, with which versions and of which commit a figure was measured."""

from __future__ import annotations

import os
import platform
import shlex
import subprocess
import sys
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from mkviz import __version__

PACKAGES = ("numpy", "numba", "cupy-cuda13x", "cupy-cuda12x", "torch", "triton")


def conditions(device: Any = None) -> dict:
    """``device``: an :class:`engine.cuda.device.Device`; without one the machine's processor is told."""
    told = {
        "mkviz": __version__,
        "commit": commit(),
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "command": shlex.join(["mkviz", *sys.argv[1:]]),
        "python": platform.python_version(),
        "packages": {name: found for name in PACKAGES if (found := _version(name))},
    }
    if device is None:
        return told | {"device": {"name": platform.processor() or platform.machine(), "cores": os.cpu_count()}}
    return told | {"device": {"name": device.name, "sms": device.sms, "arch": f"sm_{device.arch}"} | _driver()}


def commit() -> str | None:
    """Of this checkout; $MKVIZ_COMMIT where there is no git to ask."""
    here = Path(__file__).parents[2]
    if (here / ".git").exists():
        done = _output("git", "-C", str(here), "describe", "--always", "--dirty", "--exclude", "*")
        if done:
            return done
    return os.environ.get("MKVIZ_COMMIT")


def _driver() -> dict:
    """What nvidia-smi says of the first GPU at rest between launches; nothing where it is not there."""
    fields = ("driver_version", "memory.total", "clocks.sm", "clocks.mem", "temperature.gpu", "power.draw")
    said = _output("nvidia-smi", "--id=0", f"--query-gpu={','.join(fields)}", "--format=csv,noheader")
    values = [value.strip() for value in (said or "").split(",")]
    return dict(zip(fields, values, strict=True)) if len(values) == len(fields) else {}


def _output(*command: str) -> str | None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
