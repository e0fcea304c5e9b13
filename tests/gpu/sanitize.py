"""A few steps of the demo model, or of a tiny one, for compute-sanitizer, without torch and pytest.

compute-sanitizer --tool memcheck python tests/gpu/sanitize.py
compute-sanitizer --tool racecheck python tests/gpu/sanitize.py --tiny --sms 2 --steps 1
compute-sanitizer --tool memcheck python tests/gpu/sanitize.py --rows 64 --sampling
"""

import argparse
from dataclasses import replace

import numpy as np

from engine.checkpoint import Weights
from engine.config import load_config
from engine.cuda.backend import CudaBackend
from engine.models import DEMO
from engine.plan import StepPlan
from engine.sampling import SamplingParams


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--sms", type=int, help="blocks of the grid (default: all SMs)")
    parser.add_argument("--tiny", action="store_true", help="one dense and one MoE layer of random weights, 256 tokens")
    parser.add_argument("--steps", type=int, default=4, help="steps: prefill of 8 rows first, then decode (default 4)")
    parser.add_argument("--rows", type=int, default=8, help="rows of the first step, and of the largest kernel (default 8)")
    parser.add_argument("--sampling", action="store_true", help="draw every row in the kernel")
    args = parser.parse_args()
    config, i32 = load_config(DEMO), np.int32
    weights = Weights.open(DEMO, config)
    if args.tiny:
        config, weights = replace(config, layers=config.layers[:2], vocab=256, max_positions=128), None
    backend = CudaBackend(config, weights, pages=2, sms=args.sms, trace=1, poll_budget=1 << 30, rows=args.rows,
                          sampling=args.sampling)  # fmt: skip
    ask = SamplingParams(temperature=1.0, top_k=20, top_p=0.9, logprobs=3) if args.sampling else None
    for step in range(args.steps):
        rows, at = (args.rows, 0) if step == 0 else (1, args.rows - 1 + step)
        tokens, positions = np.arange(20, 20 + rows, dtype=i32), np.arange(at, at + rows, dtype=i32)
        plan = StepPlan(tokens, positions, np.zeros(rows, i32), np.ones(rows, bool), np.arange(2, dtype=i32)[None])
        result = backend.step(replace(plan, sampling=[ask] * rows))
        assert np.isfinite(result.logits).all() and (result.greedy >= 0).all()
    if args.steps > 1:
        backend.run(StepPlan(tokens, positions + 1, np.zeros(1, i32), np.ones(1, bool), np.arange(2, dtype=i32)[None]), 3)
    print("steps run:", backend.serial)


if __name__ == "__main__":
    main()
