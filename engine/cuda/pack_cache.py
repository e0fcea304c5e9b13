"""PackCache: packed weights on disk, so that the next start packs nothing, and an interrupted one goes on where it was.

A folder per checkpoint, a file per piece, each written whole under another name and then renamed: what is there is complete.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from engine.checkpoint import Weights
from engine.config import ModelConfig
from engine.cuda.pack_pieces import VERSION, Piece
from mkviz.errors import MkvizError

SLICE = 1 << 24  # elements on their way between device and file at a time
VARIABLE = "MKVIZ_PACK_CACHE"


class PackCache:
    """The packed pieces of one checkpoint in ``folder``.  Raises MkvizError where it cannot be written."""

    def __init__(self, folder: Path):
        self.folder = folder
        with self._writing():
            folder.mkdir(parents=True, exist_ok=True)
            for part in folder.glob("*.part"):  # of a process that was killed
                pid = part.suffixes[-2][1:] if len(part.suffixes) > 1 else ""
                if not pid.isdigit() or not _alive(int(pid)):
                    part.unlink(missing_ok=True)

    @classmethod
    def of_environment(cls, config: ModelConfig, weights: Weights) -> PackCache | None:
        """In the folder that $MKVIZ_PACK_CACHE names.  None where it names none: they are as large as the checkpoint itself."""
        root = os.environ.get(VARIABLE)
        if not root:
            return None
        packed = replace(config, max_positions=0)  # a shorter context is no reason for another copy
        key = hashlib.sha256(repr((VERSION, packed, weights.fingerprint)).encode()).hexdigest()
        return cls(Path(root) / key[:24])

    def load(self, piece: Piece, xp: Any) -> Any | None:
        """u16[elements] on the device, or None when the piece is not kept."""
        path = self._path(piece)
        try:
            kept = np.memmap(path, np.uint16, "r")
        except (FileNotFoundError, ValueError):  # ValueError: empty
            return None
        except OSError as error:
            raise MkvizError(f"{path}: {error.strerror}", f"files that can be read in {VARIABLE}, or none") from None
        if len(kept) != piece.elements:
            return None
        out = xp.empty(piece.elements, np.uint16)
        for at in range(0, piece.elements, SLICE):
            out[at : at + SLICE] = xp.asarray(kept[at : at + SLICE])
        return out

    def save(self, piece: Piece, packed: Any) -> None:
        """Keep a piece; ``packed`` u16[elements] of numpy or cupy."""
        part = self.folder / f"{piece.name}.{os.getpid()}.part"
        with self._writing():
            try:
                with open(part, "wb") as file:
                    for at in range(0, piece.elements, SLICE):
                        piece_of_it = packed[at : at + SLICE]
                        file.write(memoryview(piece_of_it.get() if hasattr(piece_of_it, "get") else piece_of_it))
                    file.flush()
                    os.fsync(file.fileno())
                os.replace(part, self._path(piece))
            finally:
                part.unlink(missing_ok=True)

    def _path(self, piece: Piece) -> Path:
        return self.folder / f"{piece.name}.bin"

    @contextlib.contextmanager
    def _writing(self):
        try:
            yield
        except OSError as e:
            raise MkvizError(
                f"{self.folder}: {e.strerror or e}", f"a folder in ${VARIABLE} with room for the weights, or none"
            ) from None


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
