"""Inter-token times while others prefill, and times to the first token, against the inter-token budget.

    python benchmarks/serving_budget.py [--backend cuda] [--rows 64] [--shape north-mini-code] [--budgets 5,9] [--prompts 99,…]

One request for each prompt length arrives at once and decodes until the last of them has had 32 tokens.  Counted are the gaps
between tokens that end before the last prompt has been read.  The same requests run without a budget (as many prompt rows as
fit a step) and with prefill that pauses decode.  ``--shape``: random weights of a published shape, on a GPU; otherwise a model.
"""

from __future__ import annotations

import argparse
import time
from itertools import pairwise

import numpy as np
from evidence import gpu, write

from engine.engine import Engine
from engine.kv import PagePool
from engine.sampling import SamplingParams
from engine.shapes import SHAPES, shape

PROMPTS = (100, 300, 1000, 2000, 4000, 8000, 15_000, 30_000)
TAIL = 32  # tokens of the last request before all are stopped


def measure(engine: Engine, lengths: list[int], answer: int, seed: int) -> dict:
    """Figures in ms of one run; prompts are random tokens, and others in each run, so that none is in the cache."""
    rng = np.random.default_rng(seed)
    prompts = [rng.integers(10, engine.config.vocab, n).tolist() for n in lengths]
    sequences = [
        engine.submit(p, SamplingParams(max_tokens=min(answer, engine.context - len(p)), ignore_eos=True)) for p in prompts
    ]
    while not all(s.generated >= TAIL or s.ended for s in sequences):
        time.sleep(0.01)
    for sequence in sequences:
        sequence.cancelled = True
    times = [[s.arrived + piece.time for piece in engine.stream(s) if piece.token >= 0] for s in sequences]
    read = max(t[0] for t in times)
    gaps = np.array([b - a for t in times for a, b in pairwise(t) if b <= read]) / 1e6
    figures = {"first_token_ms": {s.prompt_tokens: round((s.first_token - s.arrived) / 1e6, 1) for s in sequences}}
    if len(gaps):
        p50, p99 = np.quantile(gaps, (0.5, 0.99))
        figures |= {"gaps": len(gaps), "p50_ms": round(p50, 2), "p99_ms": round(p99, 2), "max_ms": round(gaps.max(), 2)}
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--backend", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--model", help="a directory, a fetched model's name, or demo (the default)")
    parser.add_argument("--shape", choices=list(SHAPES), help="random weights of this shape instead (cuda)")
    parser.add_argument("--layers", type=int, help="only the first layers of the shape")
    parser.add_argument("--rows", type=int, choices=(8, 16, 32, 64), help="rows of a step at most (cuda; else as many as fit)")
    parser.add_argument("--budgets", default="5,10,20,40", help="ms, by comma")
    parser.add_argument("--prompts", default=",".join(map(str, PROMPTS)), help="tokens of each prompt, by comma")
    parser.add_argument("--answer", type=int, default=4096, help="tokens of an answer at most (default 4096)")
    parser.add_argument("--name", default="serving_budget", help="of the file of figures")
    args = parser.parse_args()
    if args.rows and args.backend == "cpu":
        parser.error("--rows: the cuda backend only")
    lengths = [int(n) for n in args.prompts.split(",")]
    model = shape(args.shape, args.layers) if args.shape else args.model
    more = {"rows": args.rows} if args.rows else {}
    engine = Engine(
        model, backend=args.backend, batch=len(lengths), trace=False, itl_budget_ms=1e9,
        context=max(lengths) + args.answer, pages=sum(PagePool.pages_for(n + args.answer) for n in lengths), **more,
    )  # fmt: skip
    cases = {"paused": (None, True), "unlimited": (None, False)}
    cases |= {f"{ms} ms": (float(ms) * 1e6, False) for ms in args.budgets.split(",")}
    figures = {}
    for seed, (name, (budget, paused)) in enumerate({"warm-up": (1e15, False), **cases}.items()):
        engine.batcher.budget_ns, engine.batcher.pause_decode = budget, paused
        figures[name] = measure(engine, lengths, args.answer, seed)
    figures.pop("warm-up")
    engine.close()
    device = gpu() if args.backend == "cuda" else None
    about = {"model": args.shape or engine.model, "layers": len(engine.config.layers), "rows": engine.batcher.max_rows}
    write(args.name, about | {"prompts": lengths, "context": engine.context, "runs": figures}, device)


if __name__ == "__main__":
    main()
