"""How far apart the SMs' global timers are, by two-way flag hops.

    python benchmarks/cuda_clock.py

For SM pairs (0, i): offset = ((seen - sent) - (received - answered)) / 2, averaged over many rounds, which cancels the hop
where it costs the same both ways.  The largest offset bounds the error of comparing records of different SMs.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from evidence import gpu, write

from engine.cuda.build import compile_cubin
from engine.cuda.device import open_device

ROUNDS = 2000


def main() -> None:
    device = open_device()
    cupy = device.cupy
    source = (Path(__file__).parent / "clock_hops.cu").read_text(encoding="utf-8")
    cubin, _ = compile_cubin(source, device.arch, name="clock_hops.cu")
    path = Path("/tmp/clock_hops.cubin")
    path.write_bytes(cubin)
    kernel = cupy.RawModule(path=str(path)).get_function("hops")
    offsets, hops = [], []
    for partner in range(1, device.sms):
        flags, stamps = cupy.zeros(64, cupy.uint32), cupy.zeros((ROUNDS, 4), cupy.uint64)
        # one block an SM: the shared memory asked for leaves no room for a second
        kernel.max_dynamic_shared_size_bytes = device.shared
        kernel((device.sms,), (32,), (flags, stamps, np.uint32(ROUNDS), np.uint32(partner)), shared_mem=device.shared)
        sent, seen, answered, received = stamps.get().astype(np.int64)[ROUNDS // 10 :].T
        assert (received > 0).all(), "a hop timed out"
        offsets.append((((seen - sent) - (received - answered)) / 2).mean())
        hops.append((((seen - sent) + (received - answered)) / 2).mean())
    figures = {
        "pairs": len(offsets), "rounds": ROUNDS, "largest_offset_ns": round(float(np.abs(offsets).max()), 1),
        "spread_ns": round(float(np.max(offsets) - np.min(offsets)), 1), "one_way_hop_ns": round(float(np.median(hops)), 1),
    }  # fmt: skip
    write("h200_clock_hops", figures, gpu())


if __name__ == "__main__":
    main()
