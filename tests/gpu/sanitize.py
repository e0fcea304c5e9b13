"""A few steps of the demo model, or of a tiny one, for compute-sanitizer, without torch and pytest.

compute-sanitizer --tool memcheck python tests/gpu/sanitize.py
compute-sanitizer --tool racecheck python tests/gpu/sanitize.py --tiny --sms 2 --steps 1
"""

import argparse
from dataclasses import replace

import numpy as np

from engine.checkpoint import Weights
from engine.config import load_config
from engine.cuda.backend import CudaBackend
from engine.models import DEMO
from engine.plan import StepPlan


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--sms", type=int, help="blocks of the grid (default: all SMs)")
    parser.add_argument("--tiny", action="store_true", help="one dense and one MoE layer of random weights, 256 tokens")
    parser.add_argument("--steps", type=int, default=4, help="steps: prefill of 8 rows first, then decode (default 4)")
    args = parser.parse_args()
    config, i32 = load_config(DEMO), np.int32
    weights = Weights.open(DEMO, config)
    if args.tiny:
        config, weights = replace(config, layers=config.layers[:2], vocab=256, max_positions=64), None
    backend = CudaBackend(config, weights, pages=2, sms=args.sms, trace=1, poll_budget=1 << 30)
    for step in range(args.steps):
        rows, at = (8, 0) if step == 0 else (1, 7 + step)
        tokens, positions = np.arange(20, 20 + rows, dtype=i32), np.arange(at, at + rows, dtype=i32)
        result = backend.step(StepPlan(tokens, positions, np.zeros(rows, i32), np.ones(rows, bool), np.zeros((1, 1), i32)))
        assert np.isfinite(result.logits).all()
    if args.steps > 1:
        backend.run(StepPlan(tokens, positions + 1, np.zeros(1, i32), np.ones(1, bool), np.zeros((1, 1), i32)), 3)
    print("steps run:", backend.serial)


if __name__ == "__main__":
    main()
