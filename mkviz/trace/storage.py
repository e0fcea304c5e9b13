"""Storage: the files of a trace, in a folder or inside a zip file that is read in place."""

from __future__ import annotations

import mmap
import os
import zipfile
from pathlib import Path
from typing import Protocol

import pyarrow as pa

from mkviz.errors import MkvizError
from mkviz.trace.schema import META

NOT_A_TRACE = "give a folder that mkviz wrote as a trace, or such a folder zipped"


class Storage(Protocol):
    path: Path

    def names(self) -> list[str]: ...
    def open(self, name: str) -> pa.NativeFile:
        """A seekable file of the bytes of ``name``, mapped where that is possible.  Raises OSError or KeyError."""


class Folder:
    def __init__(self, path: Path):
        self.path = path

    def names(self) -> list[str]:
        return sorted(os.listdir(self.path))

    def open(self, name: str) -> pa.NativeFile:
        return pa.memory_map(str(self.path / name))


class Zip:
    """A zip whose entries are stored is mapped and read in place; a deflated entry is unpacked in memory when it is needed."""

    def __init__(self, path: Path):
        self.path = path
        self._zip = zipfile.ZipFile(path)
        inside = [n for n in self._zip.namelist() if n.rpartition("/")[2] == META]
        if not inside:
            raise MkvizError(f"{path} holds no trace: no {META} in it", NOT_A_TRACE)
        self._prefix = min(inside, key=len)[: -len(META)]
        with open(path, "rb") as file:
            self._map = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))

    def names(self) -> list[str]:
        return sorted(n[len(self._prefix) :] for n in self._zip.namelist() if n.startswith(self._prefix))

    def open(self, name: str) -> pa.NativeFile:
        entry = self._zip.getinfo(self._prefix + name)
        if entry.compress_type != zipfile.ZIP_STORED:
            return pa.BufferReader(self._zip.read(entry))
        start = self._start(entry)
        return pa.BufferReader(pa.py_buffer(self._map[start : start + entry.file_size]))

    def _start(self, entry: zipfile.ZipInfo) -> int:
        """Where the bytes begin: after the 30 bytes of the local header, the name and the extra field."""
        at = entry.header_offset
        name, extra = (int.from_bytes(self._map[at + k : at + k + 2], "little") for k in (26, 28))
        return at + 30 + name + extra


def open_storage(path: str | Path) -> Storage:
    """Raises MkvizError when nothing is there or it cannot be a trace."""
    path = Path(path)
    if path.is_dir():
        if not (path / META).is_file():
            raise MkvizError(f"{path} is not a trace: it has no {META}", NOT_A_TRACE)
        return Folder(path)
    if not path.exists():
        raise MkvizError(f"trace {path} does not exist", "check the path")
    try:
        if not zipfile.is_zipfile(path):
            raise MkvizError(f"{path} is not a trace: neither a folder nor a zip file", NOT_A_TRACE)
        return Zip(path)
    except (OSError, zipfile.BadZipFile) as error:
        raise MkvizError(f"trace {path} cannot be read: {error}", "check its permissions, or get it again") from error


def write_zip(storage: Storage, names: list[str], out: Path) -> None:
    """Store the files, uncompressed (Parquet is compressed already), under a folder of the trace's name; whole or not at
    all."""
    part = out.with_name(f".{out.name}.part")
    try:
        with zipfile.ZipFile(part, "w", zipfile.ZIP_STORED) as zipped:
            for name in names:
                with storage.open(name) as file:
                    zipped.writestr(f"{storage.path.name}/{name}", file.read())
        os.replace(part, out)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise MkvizError(f"trace {out} cannot be written: {error.strerror or error}", "choose another place") from error
