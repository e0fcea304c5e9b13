"""Costs by op, out of sample: fitted to steps of one batch, judged on steps of others, all of them measured.

    python benchmarks/cost_model.py [--model demo --model smollm2] [--rounds 12] [--tokens 8] [--realtime] [--keep FOLDER]
    python benchmarks/cost_model.py --traces BATCH1.mkt BATCH8.mkt [OTHER.mkt ...] [--traces ...] [--evidence NAME]

Records the CPU engine with two SMs on two threads, one a core, decoding 1, 2, 4 and 8 requests at once; rounds go through the
batches in an order drawn anew for each, so that what changes on the machine meanwhile meets all of them.  Every request begins
with a prompt of 8 tokens, so that a batch of n also has a step of 8n rows of prefill.  Of each kind of step the six nearest to
its median time stand for it.  With 16 SMs, more than there are threads, one model is recorded again.  Or takes traces of any
device: replays the steps of each unchanged, fits costs to the first and judges them on each of the others.
"""

from __future__ import annotations

import argparse
import os
import random
import tempfile
from pathlib import Path

from cpu_decode import cpu_name
from evidence import write

from mkviz.costs_judge import Judged, judge
from mkviz.replayable import Replayable
from mkviz.trace import Trace, TraceWriter

BATCHES, PROMPT, WORKERS = (1, 2, 4, 8), 8, 2
TEXT = "def quicksort(items):\n    if len(items) < 2:\n        return items\n    pivot = items[0]\n    left = items\n"
CASES = {  # (rows, of which prefill) of the steps that costs are fitted to
    "batch 1": [(1, 0)],
    "batch 1 and its prompts": [(1, 0), (8, 8)],
    "batches 1 and 2": [(1, 0), (2, 0)],
    "batches 1 and 8": [(1, 0), (8, 0)],
    "batch 8": [(8, 0)],
    "batch 8 and its prompts": [(8, 0), (64, 64)],
    "prompts": [(8, 8), (16, 16), (32, 32), (64, 64)],
    "batches 1, 2, 4 and 8": [(1, 0), (2, 0), (4, 0), (8, 0)],
}


def record(path: Path, model: str, sms: int, rounds: int, tokens: int) -> Trace:
    from engine.engine import Engine
    from engine.sampling import SamplingParams

    engine = Engine(None if model == "demo" else model, sms=sms, workers=WORKERS, pages=64, prefix_cache=False, lossless=True)
    text, order = engine.tokenizer.encode(TEXT), random.Random(1)
    assert len(text) >= PROMPT + max(BATCHES) - 1

    def decode(batch: int, count: int) -> None:
        params = SamplingParams(max_tokens=count, ignore_eos=True)
        for sequence in [engine.submit(text[i : i + PROMPT], params) for i in range(batch)]:
            list(engine.stream(sequence))

    for batch in BATCHES:
        decode(batch, 3)  # compiles, and builds the task tables
    writer = TraceWriter(path, kind="measured", device="cpu", label=f"measured (cpu): {model}, {sms} SMs", overwrite=True)
    engine.add_sink(writer)
    for _ in range(rounds):
        for batch in order.sample(BATCHES, len(BATCHES)):
            decode(batch, tokens)
    engine.remove_sink(writer)
    writer.close()
    engine.close()
    return Trace.open(path)


def steps_of(of: Replayable, kinds: list[tuple[int, int]] | None, others: bool = False) -> list[int]:
    """Of these kinds of steps, or of all others, those that stand for them."""
    near = of.near_medians()
    return [i.step for i in near if ((len(i.rows), sum(r.kind == "prefill" for r in i.rows)) in kinds) != others]


def same_kind(trace: Trace, of: Replayable) -> list[dict]:
    """What is left where the costs are fitted to steps of the very kind: half of each predict the other half."""
    out = []
    for batch in BATCHES:
        steps = steps_of(of, [(batch, 0)])
        (kind,) = judge(trace, trace, steps[::2], steps[1::2]).to_json()["kinds"]
        out.append({"rows": batch, "error": kind["error"]})
    return out


def figures_of(found: Judged) -> dict:
    """The kinds of steps with the errors of their ops: those that take at least 1 % of the step's math."""
    told = found.to_json()
    kinds = []
    for kind in told["kinds"]:
        ops = [op for op in told["ops"] if (op["rows"], op["prefill"]) == (kind["rows"], kind["prefill"])]
        whole = sum(op["recorded"] for op in ops)
        ns = {name: round(kind[name]) for name in ("recorded", "predicted", "spread")}
        kinds.append({**kind, **ns, "error": round(kind["error"], 4),
                      "spread_error": round(kind["spread_error"], 4), "ops": {
            op["op"]: round(op["error"], 3) for op in ops if op["recorded"] >= 0.01 * whole}})  # fmt: skip
    return {"fitted": told["fitted"], "kinds": kinds, "notes": told["notes"]}


def show(name: str, found: Judged) -> dict:
    print(f"\n{name}\n{found.to_text()}", flush=True)
    return figures_of(found)


def replays(trace: Trace) -> list[dict]:
    """Of each whole step: its ns as recorded, as replayed unchanged, and the error."""
    of = Replayable.of(trace)
    out = [
        {"step": f.step.step, "recorded": f.step.makespan, "replayed": f.case.replay.makespan, "error": round(f.error, 4)}
        for f in of.fitted([info.step for info in of.whole()])
    ]
    for told in out:
        took = f"recorded {told['recorded'] / 1e3:.1f} µs, replayed unchanged {told['replayed'] / 1e3:.1f} µs"
        print(f"{trace.path.name} step {told['step']}: {took}, error {told['error']:+.2%}", flush=True)
    return out


def judge_traces(groups: list[list[Path]], name: str) -> None:
    traces = {path: Trace.open(path) for group in groups for path in group}
    unchanged = {path.name: {"label": trace.label, "steps": replays(trace)} for path, trace in traces.items()}
    judged = {}
    for first, *others in groups:
        for other in others:
            pair = f"fitted to {first.name}, judged on {other.name}"
            judged[pair] = show(pair, judge(traces[first], traces[other]))
    device = {"name": traces[groups[0][0]].meta["device"]}
    write(name, {"unchanged replay": unchanged, "costs by op": judged}, device)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", action="append", help="demo (the default), a fetched model's name or a directory")
    parser.add_argument("--traces", nargs="+", type=Path, action="append", metavar="TRACE",
                        help="fit to the first, judge on the others, record nothing")  # fmt: skip
    parser.add_argument("--evidence", default="cost_model_traces", help="name of what is written of traces")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--tokens", type=int, default=8)
    parser.add_argument("--realtime", action="store_true", help="before all others on this machine (needs the right to)")
    parser.add_argument("--keep", type=Path, help="a folder for the recordings")
    args = parser.parse_args()
    if args.traces:
        judge_traces(args.traces, args.evidence)
        return
    if args.realtime:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(10))  # threads that are started from here on, too
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:WORKERS])
    folder, models, figures = args.keep or Path(tempfile.mkdtemp()), args.model or ["demo"], {}
    for model, sms in [*((model, WORKERS) for model in models), (models[0], 16)]:
        name = f"{Path(model).name}, {sms} SMs"
        trace = record(folder / f"{Path(model).name}-{sms}.mkt", model, sms, args.rounds, args.tokens)
        of = Replayable.of(trace)
        cases = {case: show(f"{name}: fitted to {case}", judge(trace, trace, steps_of(of, kinds), steps_of(of, kinds, True)))
                 for case, kinds in CASES.items()}  # fmt: skip
        figures[name] = {"same kind": same_kind(trace, of), "fitted to": cases}
    for name, found in figures.items():
        same = ", ".join(f"{kind['rows']} {kind['error']:+.1%}" for kind in found["same kind"])
        print(f"\n{name}: error of the step\n{'the same kind of step':<24} {same}")
        for case, told in found["fitted to"].items():
            errors = (f"{k['rows']}{'p' if k['prefill'] else ''} {k['error']:+.1%}" for k in told["kinds"])
            print(f"{case:<24} {', '.join(errors)}")
    about = {"rounds": args.rounds, "tokens": args.tokens, "realtime": args.realtime}
    load = [round(x, 2) for x in os.getloadavg()]
    write("cost_model", about | figures, {"cpu": cpu_name(), "cores": os.cpu_count(), "load_average": load})


if __name__ == "__main__":
    main()
