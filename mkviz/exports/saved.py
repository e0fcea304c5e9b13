"""Saved: bytes as a file that is there whole or not at all."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from mkviz.errors import MkvizError


def save(data: bytes, path: str | Path) -> Path:
    """Write beside ``path`` under another name, then rename.  Raises MkvizError when that cannot be."""
    path, mask = Path(path), os.umask(0)
    os.umask(mask)
    try:
        handle, name = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
            os.chmod(name, 0o666 & ~mask)  # as any new file, and not as a temporary one
            os.replace(name, path)
        except BaseException:
            os.unlink(name)
            raise
    except OSError as error:
        raise MkvizError(f"{path} cannot be written ({error.strerror})", "another place, or room on its disk") from error
    return path
