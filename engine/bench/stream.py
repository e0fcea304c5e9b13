"""ReadStream: the read ceiling of this GPU, measured where its figures are: all weights through the ring, nothing computed."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from engine.cuda.abi import CHUNK
from engine.cuda.build import compile_cubin
from engine.cuda.device import Device
from mkviz.errors import MkvizError
from mkviz.locate import device_file

SEGMENT = np.dtype([("at", "<u8"), ("bytes", "<u8"), ("first", "<u8")])
STREAM = np.dtype(
    [("segments", "<u8"), ("abort", "<u8"), ("chunks", "<u8"), ("blocks", "<u4"), ("rounds", "<u4"), ("stages", "<u4"),
     ("poll_budget", "<u4")]
)  # fmt: skip
BARRIERS, MAX_STAGES, THREADS = 256, 16, 64  # bytes before the ring; as in cuda/stream.cu
STAGES = (6, 8, 10, 11, 13)  # ring depths that are tried
LEAST = 8 << 30  # bytes that a launch reads at least: its start and end, some 20 µs, are then 1 % of it
BEYOND_CACHE = 4 << 30  # bytes of weights whose stream no cache helps
POLL_BUDGET = 1 << 20  # polls of a wait: more than a second
RUNS = 7


@dataclass(frozen=True)
class Rate:
    """``what`` was streamed through ``stages`` stages: GB/s of each launch."""

    what: str
    stages: int
    gb_s: tuple[float, ...]

    @property
    def median(self) -> float:
        return float(np.median(self.gb_s))

    def told(self) -> dict:
        return {
            "what": self.what,
            "stages": self.stages,
            "gb_s": round(self.median, 1),
            "each": [round(x, 1) for x in self.gb_s],
        }


def segments(arrays: list[tuple[int, int]]) -> tuple[np.ndarray, int]:
    """(SEGMENT[n + 1], chunks) of matrices given as (address, bytes).  Raises MkvizError where bytes are no whole fragments."""
    table, chunks = np.zeros(len(arrays) + 1, SEGMENT), 0
    for i, (address, count) in enumerate(arrays):
        if count % 512 or address % 16 or not count:
            raise MkvizError(f"a matrix of {count} bytes at {address:#x}", "a multiple of 512 bytes, aligned to 16")
        table[i] = address, count, chunks
        chunks += -(-count // CHUNK)
    table[-1] = 0, 0, chunks
    return table, chunks


def stream_params(table: int, abort: int, chunks: int, blocks: int, rounds: int, stages: int) -> np.ndarray:
    """STREAM[1] for one launch; ``table`` and ``abort`` are addresses on the device."""
    params = np.zeros(1, STREAM)
    params[0] = table, abort, chunks, blocks, rounds, stages, POLL_BUDGET
    return params


class ReadStream:
    """Streams matrices on one device; nothing else may run there meanwhile."""

    def __init__(self, device: Device):
        self.device, self.cupy = device, device.cupy
        cubin, _ = compile_cubin(device_file("stream.cu").read_text(encoding="utf-8"), device.arch, name="stream.cu")
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "stream.cubin"
            path.write_bytes(cubin)
            self._kernel = self.cupy.RawModule(path=str(path)).get_function("stream")
            self._kernel.max_dynamic_shared_size_bytes = device.shared
        self._stream = self.cupy.cuda.Stream(non_blocking=True)
        self._abort = self.cupy.zeros(1, np.uint32)

    def rate(self, what: str, arrays: list[Any], stages: int, runs: int = RUNS) -> Rate:
        """Read all of ``arrays`` (as often as it takes to be :data:`LEAST`) ``runs`` times, and twice before for nothing."""
        table, chunks = segments([(int(a.data.ptr), a.nbytes) for a in arrays])
        total = sum(a.nbytes for a in arrays)
        rounds = -(-LEAST // total)
        on_device = self.cupy.asarray(table.view(np.uint64))
        params = stream_params(on_device.data.ptr, self._abort.data.ptr, chunks, self.device.sms, rounds, stages)
        self.cupy.cuda.Device().synchronize()
        launches = [self._launch(params, stages) for _ in range(runs + 2)]
        if int(self._abort.get()[0]):
            raise MkvizError(
                f"read stream through {stages} stages: a wait ran out of polls", "report this, and on which device"
            )
        return Rate(what, stages, tuple(total * rounds / us / 1e3 for us in launches[2:]))

    def _launch(self, params: np.ndarray, stages: int) -> float:
        """Microseconds."""
        begin, end = self.cupy.cuda.Event(), self.cupy.cuda.Event()
        begin.record(self._stream)
        self._kernel((self.device.sms,), (THREADS,), (params,), shared_mem=BARRIERS + stages * CHUNK, stream=self._stream)
        end.record(self._stream)
        self._stream.synchronize()
        return self.cupy.cuda.get_elapsed_time(begin, end) * 1e3

    def rates(self, weights: list[Any], own: int) -> list[Rate]:
        """The model's own weights at each depth, the kernel's ring of ``own`` stages among them; where a cache could hold much
        of them, a buffer that none holds as well, at the same depths."""
        most = min(MAX_STAGES, (self.device.shared - BARRIERS) // CHUNK)
        depths = sorted({s for s in (*STAGES, own) if s <= most})
        rates = [self.rate("weights", weights, stages) for stages in depths]
        if sum(a.nbytes for a in weights) < BEYOND_CACHE:
            with self._stream:
                buffer = self.cupy.arange(BEYOND_CACHE // 4, dtype=np.uint32)
                buffer *= np.uint32(2654435761)  # no two words alike: bits that are all zero can be read faster
            rates += [self.rate("buffer", [buffer], stages) for stages in depths]
        return rates


def ceiling(rates: list[Rate]) -> Rate:
    """The highest median, of the buffer where one was needed: what part of the weights a cache held is no matter then."""
    return max((r for r in rates if r.what == rates[-1].what), key=lambda r: r.median)
