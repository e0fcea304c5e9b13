"""Machine: what the simulator and the cost-driven policies know of a GPU."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields

import numpy as np

from mkviz.errors import MkvizError
from mkviz.graph import Graph


@dataclass(frozen=True)
class Machine:
    """A GPU as the simulator sees it.  Another machine is ``dataclasses.replace(H200, sms=64)``.

    ``bandwidth`` (bytes/s) is shared evenly by the SMs that load, none of which gets more than ``sm_bandwidth``.  An SM's
    ring holds ``ring_bytes`` in stages of ``chunk_bytes``; a chunk lands ``latency_ns`` after its last byte was sent.
    A producer's counters are released ``publish_ns`` after its math ended and seen elsewhere ``hop_ns`` later; the feeder of
    the consumer needs ``feed_ns`` more to prepare the activations, beside the math of other tasks.  Math begins
    ``task_overhead_ns`` after all operands are there, does ``sm_flops`` flop/s and reads its bytes from shared memory at
    ``sm_math_bandwidth`` bytes/s, both at once.  A ticket of the queue costs ``claim_ns``; a kernel starts ``launch_ns`` after
    the one before it ended.
    """

    name: str
    sms: int
    bandwidth: float
    sm_bandwidth: float
    sm_flops: float
    sm_math_bandwidth: float
    ring_bytes: int
    chunk_bytes: int
    latency_ns: int
    publish_ns: int
    hop_ns: int
    feed_ns: int
    task_overhead_ns: int
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

    @property
    def hand_over_ns(self) -> int:
        """ns from the end of a producer's math to the earliest begin of its consumer."""
        return self.publish_ns + self.hop_ns + self.feed_ns

    def math_ns(self, graph: Graph) -> np.ndarray:
        """i64[T]: ns of math of each task with all its bytes at hand, 1 at least."""
        done, read = graph.flops * 1e9 / self.sm_flops, graph.bytes * 1e9 / self.sm_math_bandwidth
        return np.maximum(1, np.ceil(np.maximum(done, read))).astype(np.int64)

    def task_ns(self, graph: Graph, sms: int) -> np.ndarray:
        """i64[T]: ns of each task when ``sms`` SMs share the bandwidth: the longer of bytes and math, and the overhead."""
        share = min(self.sm_bandwidth, self.bandwidth / sms) * 1e-9
        return np.maximum(self.math_ns(graph), np.ceil(graph.bytes / share).astype(np.int64)) + self.task_overhead_ns


H200 = Machine(
    name="H200",  # every figure but sm_flops was measured on one; (*): by tests/evidence/h200_machine.cu
    sms=132,
    bandwidth=4.55e12,  # read ceiling, 4.5 to 4.6 TB/s by run (16 KiB chunks, 6 in flight per SM)
    sm_bandwidth=130e9,  # (*) one SM by itself, 11 chunks in flight
    sm_flops=989.4e12 / 132,  # NVIDIA H200 data sheet: dense bf16
    sm_math_bandwidth=70.6e9,  # fitted to the two recordings of the package: docs/decisions/0005-math-reads-shared-memory.md
    ring_bytes=176 << 10,  # 11 stages: what the engine leaves for it in shared memory
    chunk_bytes=16 << 10,  # the unit in which the engine packs weights and pages
    latency_ns=440,  # (*) one chunk by itself takes 568 ns, 126 of them at the pace of a full stream
    publish_ns=2100,  # from last tile to known experts is a chain of two hand-overs, 10 µs: half of it less flag and feeder
    hop_ns=390,  # one-way flag between SMs
    feed_ns=2500,  # a new activation vector, loaded and normed
    task_overhead_ns=0,  # math goes on without a pause: the LM head streams at the ceiling
    claim_ns=200,  # (*) an atomic there and back while all SMs take tickets, 402 cycles at 1.98 GHz
    launch_ns=550,  # (*) from one empty kernel to the next in a CUDA graph
)


def named_in(label: str) -> Machine | None:
    """The machine that a source's label names, None for one that nobody measured."""
    return next((machine for machine in (H200,) if re.search(rf"\b{machine.name}\b", label)), None)
