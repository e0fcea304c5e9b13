"""Decode at full size: microseconds a step of the megakernel, tracing off, for several batches.  Random weights, random KV.

    python benchmarks/cuda_decode.py [--shape north-mini-code] [--layers N] [--rows 1 2 4 8] [--context 8192]

Bytes are those of the step's graph at batch 1, where every expert slot is used; at larger batches the distinct experts are not
counted here, so no share is given.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
from cuda_tracing import make_plan, timed
from evidence import gpu, write

from engine.cuda.abi import BUCKETS
from engine.cuda.backend import CudaBackend
from engine.shapes import shape
from engine.tiling import PAGE
from mkviz.machine import H200


def kv_bytes(config, context: int) -> int:
    """Bytes of keys and values that a token at position ``context`` reads."""
    keys = sum(min(context, config.window) if spec.attention == "sliding" else context for spec in config.layers)
    return keys * 2 * config.kv_heads * config.head_dim * 2


def main() -> None:
    a = argparse.ArgumentParser()
    a.add_argument("--shape", default="north-mini-code")
    a.add_argument("--layers", type=int)
    a.add_argument("--rows", type=int, nargs="+", default=[1, 2, 4, 8])
    a.add_argument("--context", type=int, default=8192)
    a.add_argument("--steps", type=int, default=16, help="steps a launch")
    a.add_argument("--runs", type=int, default=12)
    args = a.parse_args()
    config = shape(args.shape, args.layers, max_positions=args.context + 1024)
    begin = time.monotonic()
    pages = max(args.rows) * (args.context // PAGE + 8)
    bucket = next(b for b in BUCKETS if b >= max(args.rows))
    backend = CudaBackend(config, None, pages=pages, trace=0, rows=bucket)
    print(f"ready after {time.monotonic() - begin:.1f} s")
    figures = {"shape": args.shape, "layers": len(config.layers), "context": args.context, "steps_per_launch": args.steps,
               "read_ceiling_tb_s": H200.bandwidth / 1e12, "batches": []}  # fmt: skip
    for rows in args.rows:
        plan = make_plan(rows, args.context)
        for _ in range(3):
            timed(backend, plan, args.steps)
        us = np.array([timed(backend, plan, args.steps) for _ in range(args.runs)])
        at = {"rows": rows, "us_per_step": round(float(np.median(us)), 1), "fastest_us": round(float(us.min()), 1),
              "tok_s": round(rows * 1e6 / float(np.median(us)), 1)}  # fmt: skip
        if rows == 1:
            graph = list(backend.graphs.values())[-1][0]
            read = int(graph.bytes[graph.op != graph.ops.index("attention")].sum()) + kv_bytes(config, args.context)
            share = read / H200.bandwidth * 1e6 / float(np.median(us))
            at |= {"gb_per_step": round(read / 1e9, 3), "share_of_ceiling": round(share, 4)}
        figures["batches"].append(at)
        print(at, flush=True)
    name = f"h200_decode_{args.shape}_{len(config.layers)}L_{args.context}"
    write(name, figures, gpu(), "ceiling as in mkviz.machine, not measured in this run")


if __name__ == "__main__":
    main()
