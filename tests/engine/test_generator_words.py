"""What opening the engine says it is at while the CPU interpreter is compiled."""

import sys
import types

import pytest

from engine.cpu import compiled
from engine.generator import open_generator


@pytest.mark.parametrize(
    ("due", "backend", "words"),
    [
        (True, None, "compiling the CPU interpreter, once …"),
        (True, types.ModuleType("half imported"), "compiling the CPU interpreter, once …"),
        (True, types.SimpleNamespace(CpuBackend=object), ""),
        (False, None, ""),
    ],
)
def test_compiling_is_said_from_when_it_is_due_until_the_backend_is_there(monkeypatch, due, backend, words):
    monkeypatch.setattr(compiled, "_due", due)
    monkeypatch.setitem(sys.modules, "engine.cpu.backend", backend)
    assert open_generator.opening() == words


def test_without_the_cpu_backend_there_is_nothing_to_say(monkeypatch):
    monkeypatch.delitem(sys.modules, "engine.cpu.compiled")
    assert open_generator.opening() == ""
