"""Machine: what the simulator and the cost-driven policies know of a GPU."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from mkviz.errors import MkvizError
from mkviz.graph import Graph


@dataclass(frozen=True)
class Machine:
    """A GPU as the simulator sees it.  Another machine is ``dataclasses.replace(H200, sms=64)``.

    ``bandwidth`` (bytes/s) is shared evenly by the SMs that load, none of which gets more than ``sm_bandwidth``.  An SM's
    ring holds ``ring_bytes`` in stages of ``chunk_bytes``; a chunk lands ``latency_ns`` after its last byte was sent.
    Math begins ``task_overhead_ns`` after its operands are there and does ``sm_flops`` flop/s.  A producer's counters are
    released ``publish_ns`` after its math ended and seen elsewhere ``hop_ns`` later.  A ticket of the queue costs
    ``claim_ns``; a kernel starts ``launch_ns`` after the one before it ended.
    """

    name: str
    sms: int
    bandwidth: float
    sm_bandwidth: float
    sm_flops: float
    ring_bytes: int
    chunk_bytes: int
    latency_ns: int
    task_overhead_ns: int
    publish_ns: int
    hop_ns: int
    claim_ns: int
    launch_ns: int

    def __post_init__(self):
        for f in fields(self):
            value = getattr(self, f.name)
            if f.name == "name":
                continue
            if f.name.endswith("_ns"):
                if value != int(value) or value < 0:
                    raise MkvizError(f"machine {self.name}: {f.name} is {value}", "whole nanoseconds, 0 or more")
            elif not value > 0:
                raise MkvizError(f"machine {self.name}: {f.name} is {value}", "more than 0")
        if self.ring_bytes < self.chunk_bytes:
            raise MkvizError(
                f"machine {self.name}: a ring of {self.ring_bytes} bytes holds no chunk of {self.chunk_bytes}",
                "ring_bytes of at least chunk_bytes",
            )

    @property
    def stages(self) -> int:
        """Chunks that fit into the ring of one SM."""
        return int(self.ring_bytes // self.chunk_bytes)

    def math_ns(self, graph: Graph) -> np.ndarray:
        """i64[T]: ns of math of each task with all its bytes at hand, 1 at least."""
        return np.maximum(1, np.ceil(graph.flops / (self.sm_flops * 1e-9))).astype(np.int64)

    def task_ns(self, graph: Graph, sms: int) -> np.ndarray:
        """i64[T]: ns of each task when ``sms`` SMs share the bandwidth: the longer of bytes and math, and the overhead."""
        share = min(self.sm_bandwidth, self.bandwidth / sms) * 1e-9
        return np.maximum(self.math_ns(graph), np.ceil(graph.bytes / share).astype(np.int64)) + self.task_overhead_ns


H200 = Machine(
    name="H200",
    sms=132,
    bandwidth=4.55e12,  # measured read ceiling, 4.5 to 4.6 TB/s by run (16 KiB chunks, 6 in flight per SM)
    sm_bandwidth=64 * 1.755e9,  # 64 bytes per clock from L2 into one SM, at the sustained clock of 1.755 GHz
    sm_flops=989.4e12 / 132,  # NVIDIA H200 data sheet: dense bf16
    ring_bytes=176 << 10,  # what the engine leaves for it in shared memory: 11 stages
    chunk_bytes=16 << 10,  # the unit in which the engine packs weights and pages
    latency_ns=1500,  # by Little's law from a measured 2.1 TB/s with 6 chunks of 4 KiB in flight on each of 132 SMs
    task_overhead_ns=0,
    publish_ns=0,
    hop_ns=390,  # measured one-way flag between SMs
    claim_ns=780,  # an atomic there and back: two one-way flags
    launch_ns=1300,  # from one kernel to the next in a CUDA graph, as Hazy Research reports it for the H100
)
