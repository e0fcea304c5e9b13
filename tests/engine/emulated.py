"""EmulatedBackend: the cuda backend with its kernel run on the CPU (emulator/), for tests without a GPU.

The same host code, graph, packed weights and device source; only CuPy is numpy here and the PTX is what emulator/ptx.cuh says.
"""

import ctypes
import hashlib
import shutil
import subprocess
import tempfile
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from engine.checkpoint import Weights
from engine.config import load_config
from engine.cuda import abi
from engine.cuda import backend as module
from engine.cuda.device import Device
from engine.cuda.link import DeviceLink, DeviceRings
from mkviz.record import LIVE, NO_TASK
from mkviz.ring import NEVER

CUDA = Path(__file__).parents[2] / "cuda"
SHIM = Path(__file__).parent / "emulator"
SHARED_LINE = "extern __shared__ __align__(128) char block_memory[];"
_built: dict[str, ctypes.CDLL] = {}


def compile_host(source: str, defines: dict[str, int]) -> ctypes.CDLL:
    """A library of a C++ file of emulator/ over the device code; skips the test where there is no compiler."""
    if shutil.which("g++") is None:
        pytest.skip("no g++ on this machine")
    options = ["-std=c++17", "-O1", "-w", "-ffp-contract=off", "-fno-strict-aliasing", "-U_FORTIFY_SOURCE", "-fPIC", "-shared"]
    options += [f"-D{name}={value}" for name, value in sorted(defines.items())]
    files = [*sorted(CUDA.glob("*.*")), *sorted(SHIM.glob("*.*"))]
    key = hashlib.sha256(repr((source, options)).encode() + b"".join(f.read_bytes() for f in files)).hexdigest()[:24]
    if key not in _built:
        library = Path(tempfile.gettempdir()) / f"mkviz-emulator-{key}.so"
        if not library.exists():
            with tempfile.TemporaryDirectory() as folder:
                for file in files:
                    shutil.copy(file, folder)  # the shim's ptx.cuh over ours
                block = Path(folder) / "block.cuh"
                text = block.read_text(encoding="utf-8")
                assert SHARED_LINE in text
                block.write_text(text.replace(SHARED_LINE, "#define block_memory (emu::shared_memory())"), encoding="utf-8")
                done = subprocess.run(
                    ["g++", *options, "-I.", source, "-o", "out.so"], cwd=folder, capture_output=True, text=True
                )
                assert done.returncode == 0, done.stderr[:4000]
                shutil.move(Path(folder) / "out.so", library)
        _built[key] = ctypes.CDLL(str(library))
    return _built[key]


class Array(np.ndarray):
    """What the backend asks of a CuPy array."""

    @property
    def data(self):
        return SimpleNamespace(ptr=self.ctypes.data)

    def get(self, stream=None, out=None, blocking=True):
        if out is None:
            return np.array(self)
        out[...] = self
        return out

    def set(self, value, stream=None):
        np.copyto(self, np.asarray(value).reshape(self.shape))


class _Stream(nullcontext):
    def __init__(self, non_blocking=False):
        super().__init__()

    def synchronize(self): ...


class _Event:
    def record(self, stream): ...


class Cupy:
    """CuPy as far as the backend uses it, on numpy."""

    ndarray = Array
    cuda = SimpleNamespace(Stream=_Stream, Event=_Event, get_elapsed_time=lambda a, b: 0.0,
                           memory=SimpleNamespace(OutOfMemoryError=MemoryError),
                           runtime=SimpleNamespace(CUDARuntimeError=RuntimeError))  # fmt: skip

    def __getattr__(self, name):
        made = getattr(np, name)
        if isinstance(made, type) or not callable(made):
            return made

        def call(*args, **options):
            out = made(*args, **options)
            return out.view(Array) if isinstance(out, np.ndarray) else out

        return call


class _Link(DeviceLink):
    cycles_per_ns, fixed_rate = 1.0, True  # one count of ticks is both clocks


class _Rings(DeviceRings):
    """Rings that are numpy arrays; mostly nobody drains them."""

    def __init__(self, cupy, sms, capacity, capture=False):
        self.n_rings, self.capacity, self.capture = 4 * sms, capacity, capture
        self.ring_sm = np.repeat(np.arange(sms, dtype=np.uint16), 4)
        self.ring_role = np.zeros(self.n_rings, np.uint8)
        self._stream = _Stream()
        self.records = cupy.zeros((self.n_rings, capacity, 8), np.uint32)
        live = np.zeros(self.n_rings, LIVE)
        live["task"] = NO_TASK
        self.live = cupy.asarray(live.view(np.uint8))
        self.limit = cupy.asarray(np.full(self.n_rings, NEVER, np.uint64))
        self._live_host, self._records_host = np.zeros(self.live.nbytes, np.uint8), np.zeros(self.records.shape, np.uint32)

    def link(self):
        return _Link(self)


class EmulatedBackend(module.CudaBackend):
    """``seed``: of the order in which warps take turns and copies land (0: always the same).  ``stages``: at most so many of
    the ring in the kernel for one row."""

    known = False  # one library for all models: g++ takes some seconds for each

    def __init__(self, config, weights, *, sms: int = 2, seed: int = 1, stages: int = 16, **options):
        self.seed, self.stages = seed, stages
        with pytest.MonkeyPatch.context() as patch:
            cupy = Cupy()
            patch.setattr(module, "open_device", lambda: Device(cupy, "emulated", 90, sms, 232448, 1 << 40))
            patch.setattr(module, "DeviceRings", _Rings)
            super().__init__(config, weights, **{"trace": 0, "pages": 16, "poll_budget": 1 << 24, "max_steps": 8} | options)

    def layout(self, rows, bucket=abi.ROWS):
        stages, shared = super().layout(rows, bucket)
        fewer = max(0, stages - self.stages) if bucket == 1 else 0
        return stages - fewer, shared - fewer * abi.CHUNK

    def _compile(self):
        return {bucket: self._defines(bucket) for bucket in self.buckets}

    def _load(self, defines):
        library = compile_host("emulator.cpp", defines)

        def launch(grid, block, arguments, shared_mem, stream):
            params = arguments[0]
            library.emulate(ctypes.c_void_p(params.ctypes.data), grid[0], shared_mem, self.seed)

        return launch


def open_emulated(directory, **options) -> EmulatedBackend:
    config = load_config(directory)
    return EmulatedBackend(config, Weights.open(directory, config), **options)
