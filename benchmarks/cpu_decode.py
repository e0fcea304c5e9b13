"""Decode speed of the CPU backend against transformers eager: same machine, same model, same tokens, fp32, batch 1.

    python benchmarks/cpu_decode.py [--model DIR] [--tokens 128] [--runs 7] [--threads 2] [--sms 16]

Both decode the same prompt greedily and must produce the same tokens.  Runs alternate; a run's figure is the tokens after the
first over the time between the first and the last; the ratio is that of the medians.  transformers runs the plainest loop there
is, a forward pass and an argmax a token, without what ``generate`` adds.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from pathlib import Path

import torch
import transformers
from evidence import write
from transformers import AutoModelForCausalLM

from engine.engine import Engine
from engine.models import resolve_model
from engine.sampling import SamplingParams

PROMPT = "def quicksort(items):"


def cpu_name() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return "unknown"


def ours(engine: Engine, prompt: list[int], tokens: int) -> tuple[list[int], float]:
    """(tokens, tokens per second)"""
    params = SamplingParams(max_tokens=tokens, ignore_eos=True)
    pieces = list(engine.stream(engine.submit(prompt, params)))
    return [p.token for p in pieces], (tokens - 1) / (pieces[-1].time - pieces[0].time) * 1e9


@torch.inference_mode()
def theirs(model, prompt: list[int], tokens: int) -> tuple[list[int], float]:
    out = model(torch.tensor([prompt]), use_cache=True)
    made = [int(out.logits[0, -1].argmax())]
    begin = time.perf_counter()
    for _ in range(tokens - 1):
        out = model(torch.tensor([made[-1:]]), past_key_values=out.past_key_values, use_cache=True)
        made.append(int(out.logits[0, -1].argmax()))
    return made, (tokens - 1) / (time.perf_counter() - begin)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", help="a directory, a fetched model's name, or demo (the default)")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--sms", type=int, default=16)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    model = AutoModelForCausalLM.from_pretrained(resolve_model(args.model), dtype=torch.float32, attn_implementation="eager")
    model.eval()
    engines = {traced: Engine(args.model, sms=args.sms, workers=args.threads, trace=traced) for traced in (False, True)}
    prompt = engines[False].tokenizer.encode(PROMPT)
    sides = {
        "transformers": lambda: theirs(model, prompt, args.tokens),
        "mkviz": lambda: ours(engines[False], prompt, args.tokens),
        "mkviz_traced": lambda: ours(engines[True], prompt, args.tokens),
    }
    want, speeds = sides["transformers"]()[0], {name: [] for name in sides}  # the first round warms up
    for run in range(args.runs + 1):
        for name, side in sides.items():
            time.sleep(0.5)  # torch's threads spin for a while after their last product
            made, speed = side()
            assert made == want, f"{name} produced other tokens"
            if run:
                speeds[name].append(speed)
    for engine in engines.values():
        engine.close()
    median = {name: statistics.median(s) for name, s in speeds.items()}
    figures = {
        "model": engines[False].model, "dtype": "fp32", "batch": 1, "threads": args.threads, "sms": args.sms,
        "prompt_tokens": len(prompt), "tokens": args.tokens, "runs": args.runs,
        "tokens_per_second": {name: [round(s, 1) for s in each] for name, each in speeds.items()},
        "median": {name: round(m, 1) for name, m in median.items()},
        "ratio": round(median["mkviz"] / median["transformers"], 2),
        "ratio_traced": round(median["mkviz_traced"] / median["transformers"], 2),
        "torch": torch.__version__, "transformers": transformers.__version__,
    }  # fmt: skip
    load = [round(x, 2) for x in os.getloadavg()]
    write("cpu_decode", figures, {"cpu": cpu_name(), "cores": os.cpu_count(), "load_average": load})


if __name__ == "__main__":
    main()
