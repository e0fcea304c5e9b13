"""What drawing in the kernel costs: microseconds a step of greedy rows and of the same rows drawn, in turns, on one backend.

    python benchmarks/cuda_sampling.py [--layers 6] [--rows 1 8] [--context 1024]

Random weights give logits flatter than a language model's, so that top_p alone would be left to the host.
"""

from __future__ import annotations

import argparse
from dataclasses import replace

import numpy as np
from cuda_tracing import make_plan, timed
from evidence import gpu, write

from engine.cuda.backend import CudaBackend
from engine.sampling import SamplingParams
from engine.shapes import shape
from engine.tiling import PAGE

KINDS = {
    "greedy": None, "temperature": {}, "top_k 40": {"top_k": 40}, "top_k 40, top_p 0.95": {"top_k": 40, "top_p": 0.95},
    "top_k 40, 20 log-probabilities": {"top_k": 40, "logprobs": 20},
}  # fmt: skip


def main() -> None:
    a = argparse.ArgumentParser()
    a.add_argument("--shape", default="north-mini-code")
    a.add_argument("--layers", type=int, default=6)
    a.add_argument("--rows", type=int, nargs="+", default=[1, 8])
    a.add_argument("--context", type=int, default=1024)
    a.add_argument("--steps", type=int, default=16, help="steps a launch")
    a.add_argument("--runs", type=int, default=40)
    args = a.parse_args()
    config = shape(args.shape, args.layers, max_positions=args.context + 1024)
    backend = CudaBackend(config, None, pages=max(args.rows) * (args.context // PAGE + 8), trace=0, sampling=True)
    figures = {
        "shape": args.shape,
        "layers": len(config.layers),
        "vocabulary": config.vocab,
        "context": args.context,
        "rows": {},
    }
    for rows in args.rows:
        plan = replace(make_plan(rows, args.context), wants_logits=np.ones(rows, bool))
        plans = {}
        for name, kind in KINDS.items():
            asks = None if kind is None else [SamplingParams(**{"temperature": 0.8, "seed": i} | kind) for i in range(rows)]
            plans[name] = replace(plan, sampling=asks)
        us = {name: [] for name in KINDS}
        for run in range(args.runs + 3):
            for name, drawn in plans.items():
                took = timed(backend, drawn, args.steps)
                if len(backend.greedy_steps) < args.steps:
                    raise SystemExit(f"{name}: a row was left to the host; its time says nothing")
                if run >= 3:
                    us[name].append(took)
        base = np.array(us["greedy"])
        figures["rows"][rows] = at = {
            name: {"us_per_step": round(float(np.median(t)), 1), "more_us": round(float(np.median(np.array(t) - base)), 1)}
            for name, t in us.items()
        }
        print(rows, at, flush=True)
    write(f"h200_sampling_{args.shape}_{len(config.layers)}L", figures, gpu())


if __name__ == "__main__":
    main()
