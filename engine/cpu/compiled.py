"""The interpreter's machine code on disk: written at the first start, read at every other.

numba keeps the code of each function and renews it when that function's file changes.  But a function also holds the code of
those that it calls, and the layout of blocks, from other files: code that outlives a change of theirs would read wrong words.
So all of it is dropped when any of these files is not what it was.
"""

from __future__ import annotations

import hashlib
import sys
from functools import partial
from pathlib import Path

import numba

from engine import tiling
from mkviz import record

COMPILING = "compiling the CPU interpreter, once …"
_due = False  # this process had to compile


# what only compiled code calls needs no wrappers, which take time to compile
inner = partial(numba.njit, no_cpython_wrapper=True, no_cfunc_wrapper=True)


@numba.njit(cache=True)
def _kept_here():
    """Never run: numba says where it keeps the code of this folder's functions."""


def drop_outdated() -> None:
    """Call before anything here is compiled.  Says so on stderr when compilation is due, for it takes a while."""
    files = [*sorted(Path(__file__).parent.glob("*.py")), Path(tiling.__file__), Path(record.__file__)]
    digest = hashlib.sha256(numba.__version__.encode() + b"".join(f.read_bytes() for f in files)).hexdigest()
    folder, python = Path(_kept_here.stats.cache_path), "py{}{}".format(*sys.version_info)  # numba's files name their Python
    stamp = folder / f"sources.{python}.sha256"
    if stamp.exists() and stamp.read_text() == digest:
        return
    for file in folder.glob(f"*.{python}*.nb[ic]"):
        file.unlink(missing_ok=True)
    stamp.write_text(digest)
    print(COMPILING, file=sys.stderr, flush=True)
    global _due
    _due = True


def words() -> str:
    """``COMPILING`` while that is going on, else ""."""
    return COMPILING if _due and not hasattr(sys.modules.get("engine.cpu.backend"), "CpuBackend") else ""
