"""The interpreter's machine code on disk is dropped when any file that it was made of changes, and kept otherwise."""

import sys
from pathlib import Path
from types import SimpleNamespace

import numba
import pytest

from engine import tiling
from engine.cpu import compiled, ops
from mkviz import record

MINE, OTHER = f"py3{sys.version_info.minor}", "py399"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder of code that numba would keep, and copies of all sources."""
    cache, sources = tmp_path / "cache", tmp_path / "cpu"
    cache.mkdir()
    sources.mkdir()
    for file in Path(compiled.__file__).parent.glob("*.py"):
        (sources / file.name).write_bytes(file.read_bytes())
    for module in (tiling, record):
        copy = tmp_path / Path(module.__file__).name
        copy.write_bytes(Path(module.__file__).read_bytes())
        monkeypatch.setattr(module, "__file__", str(copy))
    monkeypatch.setattr(compiled, "__file__", str(sources / "compiled.py"))
    monkeypatch.setattr(compiled, "_kept_here", SimpleNamespace(stats=SimpleNamespace(cache_path=str(cache))))
    monkeypatch.setattr(compiled, "_due", False)
    return cache


def start(folder, capsys):
    """What is still there of the kept code when a process starts, and what it says."""
    for python in (MINE, OTHER):
        for name in (f"ops.qkv-1.{python}.nbi", f"ops.qkv-1.{python}.1.nbc"):
            (folder / name).touch()
    compiled.drop_outdated()
    left = {f.name for f in folder.glob("*.nb*")}
    assert {f"ops.qkv-1.{OTHER}.nbi", f"ops.qkv-1.{OTHER}.1.nbc"} <= left  # another Python's is its own affair
    assert len(left) in (2, 4)
    return len(left) == 4, capsys.readouterr().err


@pytest.mark.parametrize("change", ["cpu/binding.py", "cpu/math.py", "tiling.py", "record.py"])
def test_code_goes_when_a_source_changes(folder, capsys, change):
    assert start(folder, capsys) == (False, compiled.COMPILING + "\n")
    assert start(folder, capsys) == (True, "")
    path = folder.parent / change
    path.write_text(path.read_text() + "\n# changed\n")
    assert start(folder, capsys) == (False, compiled.COMPILING + "\n")
    assert start(folder, capsys) == (True, "")


def test_code_goes_with_another_numba(folder, capsys, monkeypatch):
    start(folder, capsys)
    monkeypatch.setattr(numba, "__version__", "0.1")
    assert start(folder, capsys) == (False, compiled.COMPILING + "\n")


def test_numba_keeps_code_where_it_is_looked_for():
    """The folder and the names that ``drop_outdated`` relies on are numba's own."""
    folder = Path(compiled._kept_here.stats.cache_path)
    assert Path(ops.embed._cache.cache_path) == folder
    assert list(folder.glob(f"ops.embed-*.{MINE}*.nbi"))
    assert (folder / f"sources.{MINE}.sha256").exists()
