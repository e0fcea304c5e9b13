"""The cuda backend's host side, with a device that is only words: NVTX ranges, and what breaks with the device."""

import sys
from types import SimpleNamespace

import pytest

from engine.cuda.backend import CudaBackend, nvtx_range


class Broken(RuntimeError):
    """As CuPy's CUDARuntimeError."""


def broken_backend():
    def synchronize():
        raise Broken("cudaErrorIllegalAddress")

    backend = object.__new__(CudaBackend)
    backend.cupy = SimpleNamespace(cuda=SimpleNamespace(runtime=SimpleNamespace(CUDARuntimeError=Broken)))
    backend._stream = SimpleNamespace(synchronize=synchronize)
    return backend


@pytest.fixture
def ranges(monkeypatch):
    """What a profiler is told: (domain, words) of open ranges, and of those that were closed."""
    opened, closed = [], []

    def start_range(message, domain):
        opened.append((domain, message))
        return opened[-1]

    def end_range(mark):
        opened.remove(mark)
        closed.append(mark)

    monkeypatch.setitem(sys.modules, "nvtx", SimpleNamespace(start_range=start_range, end_range=end_range))
    return opened, closed


def test_a_range_is_open_until_it_is_closed(ranges):
    opened, closed = ranges
    close = nvtx_range("mkviz steps 3–4")
    assert (opened, closed) == ([("mkviz", "mkviz steps 3–4")], [])
    close()
    assert (opened, closed) == ([], [("mkviz", "mkviz steps 3–4")])


def test_without_nvtx_there_are_no_ranges(monkeypatch):
    monkeypatch.setitem(sys.modules, "nvtx", None)
    nvtx_range("mkviz steps 0–0")()


def test_a_broken_device_ends_the_range_and_can_be_closed(ranges):
    """The step says what broke; closing the backend after it hides that behind no second error."""
    opened, closed = ranges
    backend = broken_backend()
    backend._running, backend._range = (None,) * 8, nvtx_range("mkviz steps 0–0")
    with pytest.raises(Broken):
        backend.finish()
    assert not opened and len(closed) == 1
    backend.close()
