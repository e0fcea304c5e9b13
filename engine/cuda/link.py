"""DeviceLink: how a drain reads the rings while the kernel that writes them fills every SM.

Only copies are used, on a stream of their own: a kernel would not get an SM before the megakernel ends.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from engine.cuda.abi import STORERS
from mkviz.record import LIVE, NO_TASK
from mkviz.ring import NEVER


class DeviceRings:
    """Rings of ``capacity`` records for each storer of each SM, in device memory, and their pinned twins on the host."""

    def __init__(self, cupy: Any, sms: int, capacity: int, capture: bool = False):
        import cupyx

        self.n_rings, self.capacity, self.capture = sms * STORERS, capacity, capture
        self.ring_sm = np.repeat(np.arange(sms, dtype=np.uint16), STORERS)
        self.ring_role = np.zeros(self.n_rings, np.uint8)  # the record of a task, whoever wrote it
        self.records = cupy.zeros((self.n_rings, capacity, 8), cupy.uint32)
        live = np.zeros(self.n_rings, LIVE)
        live["task"] = NO_TASK
        self.live = cupy.asarray(live.view(np.uint8))
        self.limit = cupy.asarray(np.full(self.n_rings, capacity if capture else NEVER, np.uint64))
        self._cupy, self._stream = cupy, cupy.cuda.Stream(non_blocking=True)
        self._live_host = cupyx.empty_pinned((self.live.nbytes,), np.uint8)
        self._records_host = cupyx.empty_pinned(self.records.shape, np.uint32)
        self._limit_host = cupyx.empty_pinned((self.n_rings,), np.uint64)

    def link(self) -> DeviceLink:
        return DeviceLink(self)


class DeviceLink:
    """See :class:`mkviz.ring.Link`."""

    cycles_per_ns, fixed_rate = 1.98, False  # nominal H200 SM clock; the anchors say what it is

    def __init__(self, rings: DeviceRings):
        self._r = rings
        self.n_rings, self.capacity, self.capture = rings.n_rings, rings.capacity, rings.capture
        self.ring_sm, self.ring_role = rings.ring_sm, rings.ring_role

    def _copy(self, array: Any, out: np.ndarray) -> np.ndarray:
        array.get(stream=self._r._stream, out=out, blocking=False)
        self._r._stream.synchronize()
        return out

    def read_live(self) -> np.ndarray:
        return self._copy(self._r.live, self._r._live_host).copy().view(LIVE)

    def read_records(self, start: np.ndarray, stop: np.ndarray) -> np.ndarray:
        """One copy of all rings: at 132 SMs x 4 that is cheaper than as many small ones."""
        if not (stop > start).any():
            return np.zeros((0, 8), np.uint32)
        host = self._copy(self._r.records, self._r._records_host)
        count = np.maximum(stop - start, 0)
        ring = np.repeat(np.arange(self.n_rings), count)
        offset = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
        return host[ring, (np.repeat(start, count) + offset) & (self.capacity - 1)]

    def write_limit(self, limit: np.ndarray) -> None:
        self._r._limit_host[:] = limit.astype(np.uint64)
        self._r.limit.set(self._r._limit_host, stream=self._r._stream)
        self._r._stream.synchronize()

    def clock_pair(self) -> tuple[int, int] | None:
        """The device's and the host's clock have no common instant here: live-line anchors date the records on the device's."""
        return None
