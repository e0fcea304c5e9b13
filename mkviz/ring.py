"""Ring: where a writing warp leaves its records, and the link through which a reader sees them.

The contract of a writer, the same in host and in device memory:

1. ``index = head``.  When ``index < limit[ring]`` it stores the record's eight words at ``records[ring, index % capacity]``,
   with ``seq = index + 1`` (u32) and ``lap = index // capacity + 1`` (u8).  Otherwise (capture mode, ring full) it stores
   nothing.
2. It stores ``head = index + 1`` with release, whether it stored the record or not: so ``head`` counts what was written, and
   lost = head - received stays exact.
3. ``step`` of its live line is the step it works in; after its last record of step s it stores s + 1 with release.  So a step
   is over when every ring's ``step`` lies beyond it.  A ring whose warp had no task in a step says so in the same way.
   Steps count from what the line says before the first record: 0 in fresh rings.
4. It stores an anchor before its first record and at least every 2 s while it writes.

One writer per ring and per line, no atomics, nothing that waits for the reader.
"""

from __future__ import annotations

import time
from typing import Protocol

import numpy as np

from mkviz.errors import MkvizError
from mkviz.record import LIVE, NO_TASK, NO_WAIT, STEP_MASK, TASK_BITS, TASK_MASK, pack_tail

NEVER = np.uint64(2**64 - 1)  # the limit of a ring that overwrites
SATURATED = 0xFFFFFFFF


def _zeros(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Zeros that start on a 128-byte line, so that no two writers share one."""
    size = int(np.prod(shape)) * dtype.itemsize
    raw = np.zeros(size + 128, np.uint8)
    skip = -raw.ctypes.data % 128
    return raw[skip : skip + size].view(dtype).reshape(shape)


class HostRings:
    """Rings in host memory, written by the CPU interpreter and read by a drain.

    ``records`` u32[n_rings, capacity, 8] (words of ``RECORD``), ``live`` LIVE[n_rings], ``limit`` u64[n_rings] (written by the
    reader only: index from which on a writer must not store), ``ring_sm`` u16 and ``ring_role`` u8 say whose ring it is.
    ``capacity``: a power of two.  ``capture=False`` overwrites the oldest; ``True`` stops at full and keeps what is unread.
    """

    def __init__(self, n_rings: int, capacity: int, ring_sm=None, ring_role=None, *, capture: bool = False):
        if n_rings < 1:
            raise MkvizError(f"rings: n_rings {n_rings}", "at least one")
        if capacity < 4 or capacity & (capacity - 1):
            raise MkvizError(f"rings: capacity {capacity}", "a power of two, at least 4")
        self.n_rings, self.capacity, self.capture = n_rings, capacity, capture
        self.ring_sm = np.arange(n_rings, dtype=np.uint16) if ring_sm is None else np.asarray(ring_sm, np.uint16)
        self.ring_role = np.zeros(n_rings, np.uint8) if ring_role is None else np.asarray(ring_role, np.uint8)
        for name, table in (("ring_sm", self.ring_sm), ("ring_role", self.ring_role)):
            if table.shape != (n_rings,):
                raise MkvizError(f"rings: {name} has shape {table.shape}", f"one entry for each of {n_rings} rings")
        self.records = _zeros((n_rings, capacity, 8), np.dtype("<u4"))
        self.live = _zeros((n_rings,), LIVE)
        self.live["task"] = NO_TASK
        self.limit = np.full(n_rings, capacity if capture else NEVER, np.uint64)

    def link(self) -> HostLink:
        return HostLink(self)


class Link(Protocol):
    """How a reader reaches rings, wherever they lie.  All calls come from one thread at a time."""

    n_rings: int
    capacity: int
    capture: bool
    ring_sm: np.ndarray
    ring_role: np.ndarray
    cycles_per_ns: float  # nominal
    fixed_rate: bool  # the nominal rate is exact, no fit

    def read_live(self) -> np.ndarray:
        """LIVE[n_rings], a copy taken now."""

    def read_records(self, start: np.ndarray, stop: np.ndarray) -> np.ndarray:
        """u32[sum(stop - start), 8]: of each ring in turn the records start..stop (i64 indices in its life, at most
        ``capacity`` of them; the link wraps them).  Taken after the last ``read_live`` returned, in as few copies as the link
        likes."""

    def write_limit(self, limit: np.ndarray) -> None:
        """Set ``limit`` (i64[n_rings]); called in capture mode only."""

    def clock_pair(self) -> tuple[int, int] | None:
        """The same instant as (ns on the records' clock, ``time.monotonic_ns``), or None when they are one clock."""


class HostLink:
    """The link to :class:`HostRings`."""

    cycles_per_ns, fixed_rate = 1.0, True

    def __init__(self, rings: HostRings):
        self._rings = rings
        self.n_rings, self.capacity, self.capture = rings.n_rings, rings.capacity, rings.capture
        self.ring_sm, self.ring_role = rings.ring_sm, rings.ring_role

    def read_live(self) -> np.ndarray:
        return self._rings.live.copy()

    def read_records(self, start: np.ndarray, stop: np.ndarray) -> np.ndarray:
        parts, mask = [], self.capacity - 1
        for ring in np.flatnonzero(stop > start).tolist():
            records, a, b = self._rings.records[ring], int(start[ring]) & mask, int(stop[ring] - start[ring])
            parts.append(records[a : a + b])
            if a + b > self.capacity:
                parts.append(records[: a + b - self.capacity])
        return np.concatenate(parts) if parts else np.zeros((0, 8), np.uint32)

    def write_limit(self, limit: np.ndarray) -> None:
        self._rings.limit[:] = limit.astype(np.uint64)

    def clock_pair(self) -> None:
        return None


class RingWriter:
    """A writer in plain Python: the contract above, for tests and tools."""

    def __init__(self, rings: HostRings, ring: int):
        self._rings, self._ring = rings, ring
        self._line = rings.live[ring : ring + 1]

    @property
    def head(self) -> int:
        return int(self._line["head"][0])

    def anchor(self, ns: int | None = None, cycles: int | None = None, step: int = 0) -> None:
        ns = time.monotonic_ns() if ns is None else ns
        self._line["anchor_ns"], self._line["anchor_cycles"], self._line["anchor_step"] = (
            ns,
            ns if cycles is None else cycles,
            step,
        )

    def step(self, step: int) -> None:
        self._line["step"] = step

    def write(self, task: int, step: int, claim: int, ready: int, begin: int, end: int, publish: int, *,
              last_wait: int = NO_WAIT, fill: int = 0, flags: int = 0) -> None:  # fmt: skip
        """``claim`` in ns, the other stamps as cycles since claim, saturated by the caller."""
        index, rings = self.head, self._rings
        if index < int(rings.limit[self._ring]):
            lap = index // rings.capacity + 1
            rings.records[self._ring, index % rings.capacity] = (
                claim & 0xFFFFFFFF, ready, begin, (index + 1) & 0xFFFFFFFF, end, publish,
                (task & TASK_MASK) | (step & STEP_MASK) << TASK_BITS, pack_tail(last_wait, fill, flags, lap),
            )  # fmt: skip
        self._line["head"] = index + 1
