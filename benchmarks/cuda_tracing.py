"""What tracing costs: step time with level 1 (and 2) against off, interleaved, on a few layers of the North Mini Code shape.

    python benchmarks/cuda_tracing.py [--layers 6] [--context 8192] [--rows 1] [--pairs 40] [--steps 64]

Each pair runs the same steps once without and once with tracing, in alternating order; the overhead is the mean of the pairs'
ratios, its interval the 95 % bootstrap interval of that mean.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
from evidence import gpu, write

from engine.cuda.backend import CudaBackend
from engine.plan import StepPlan
from engine.shapes import shape
from engine.tiling import PAGE


def make_plan(rows: int, context: int) -> StepPlan:
    """``rows`` decoding sequences at this context, each with pages of its own."""
    i32 = np.int32
    pages = np.arange(rows * (context // PAGE + 8), dtype=i32).reshape(rows, -1)
    return StepPlan(np.arange(100, 100 + rows, dtype=i32), np.full(rows, context, i32), np.arange(rows, dtype=i32),
                    np.zeros(rows, bool), pages)  # fmt: skip


def timed(backend: CudaBackend, plan: StepPlan, steps: int) -> float:
    """Microseconds a step, from events around one launch."""
    backend.run(plan, steps)
    return backend.device_us / steps


def main() -> None:
    a = argparse.ArgumentParser()
    a.add_argument("--layers", type=int, default=6)
    a.add_argument("--context", type=int, default=8192)
    a.add_argument("--rows", type=int, default=1)
    a.add_argument("--pairs", type=int, default=40)
    a.add_argument("--steps", type=int, default=64)
    a.add_argument("--levels", type=int, nargs="+", default=[1, 2])
    args = a.parse_args()
    config = shape("north-mini-code", args.layers, max_positions=args.context + 1024)
    plan = make_plan(args.rows, args.context)
    begin = time.monotonic()
    backends = {level: CudaBackend(config, None, pages=plan.pages.size, trace=level) for level in [0, *args.levels]}
    for b in backends.values():  # of one set of weights and buffers: where they lie alone moves a step by 1 to 2 %
        b.weights, b._arrays, b._tags = backends[0].weights, backends[0]._arrays, backends[0]._tags
        for _ in range(3):
            timed(b, plan, args.steps)
    print(f"ready after {time.monotonic() - begin:.1f} s")
    figures = {"layers": args.layers, "context": args.context, "rows": args.rows, "steps_per_launch": args.steps}
    _, program, _, _ = next(iter(backends[0]._programs.values()))
    figures["tasks"] = len(program.graph)
    rng = np.random.default_rng(0)
    for level in args.levels:
        off, on = [], []
        for i in range(args.pairs):
            for which in (0, level) if i % 2 else (level, 0):
                (on if which else off).append(timed(backends[which], plan, args.steps))
        ratio = np.array(on) / np.array(off) - 1
        means = rng.choice(ratio, (4000, len(ratio))).mean(1)
        figures[f"level_{level}"] = {
            "off_us": round(float(np.median(off)), 2), "on_us": round(float(np.median(on)), 2), "pairs": args.pairs,
            "overhead_percent": round(float(ratio.mean()) * 100, 3),
            "interval_95_percent": [round(float(x) * 100, 3) for x in np.quantile(means, [0.025, 0.975])],
        }  # fmt: skip
    write(f"h200_tracing_{args.layers}L_{args.rows}rows", figures, gpu())


if __name__ == "__main__":
    main()
