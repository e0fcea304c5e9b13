"""Locate: where the device code lies, in a checkout and inside an installed wheel."""

from __future__ import annotations

from pathlib import Path

from mkviz.errors import MkvizError

_ROOT = Path(__file__).parents[1]


def device_dirs() -> tuple[Path, ...]:
    """The folders for a compiler's ``-I``: a checkout's ``cuda``, or a wheel's ``mkviz/include`` and ``engine/include``.

    A wheel is asked first: beside an installed mkviz, ``cuda`` is NVIDIA's package.
    """
    installed = tuple(d for d in (_ROOT / "mkviz" / "include", _ROOT / "engine" / "include") if d.is_dir())
    return installed or (_ROOT / "cuda",)


def device_file(name: str) -> Path:
    """The path of one file of device code, such as ``"mkviz.cuh"``; raises :class:`MkvizError` when it is not there."""
    for folder in device_dirs():
        if (folder / name).is_file():
            return folder / name
    raise MkvizError(
        f"device code {name!r} is not in {', '.join(map(str, device_dirs()))}",
        "install mkviz from its wheel, or work in a complete checkout",
    )
