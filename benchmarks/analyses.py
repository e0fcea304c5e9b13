"""Speed of the analyses against the size of a capture: opening, summary, accounting and the others, with their peak memory.

    python benchmarks/analyses.py make /tmp/captures 1 5 50      # simulated captures of so many million records
    python benchmarks/analyses.py measure /tmp/captures/50M.mkt  # tests/evidence/analyses_50M.json

Each analysis runs in a process of its own, which reads nothing before; the file is in the page cache.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

import mkviz

RECORDING = Path(mkviz.__file__).parent / "recordings" / "h200-north-mini-code-6-layers-8K.mkt.zip"
DIFFERENT = 64  # simulated steps that a capture is tiled of, each with costs of its own
SPREAD = 0.2  # their costs are the machine's, times a normal number around 1


def make(path: Path, records: int) -> None:
    """A capture of the recording's graph: every step is one of DIFFERENT simulated ones, 3 µs after the one before."""
    from mkviz.costs import COSTS_OF_TASK, Costs
    from mkviz.machine import H200
    from mkviz.protocols import Row, StepInfo, TokenInfo
    from mkviz.simulator import simulate
    from mkviz.trace import Trace, TraceWriter

    graph, schedule = next(iter(Trace.open(RECORDING).graphs.values()))
    rng = np.random.default_rng(0)
    steps, base = [], Costs.of_machine(graph, H200)
    for _ in range(DIFFERENT):
        spread = {name: np.maximum(1, getattr(base, name) * rng.normal(1, SPREAD, len(graph))).astype(np.int64)
                  for name in COSTS_OF_TASK}  # fmt: skip
        steps.append(simulate(graph, schedule, H200, costs=Costs(**spread)))
    writer = TraceWriter(path, kind="simulated", device=H200.name, overwrite=True, segment_records=1 << 21)
    writer.graph(0, graph, schedule)
    now = 10**9
    for number in range(-(-records // len(graph))):
        step = steps[int(rng.integers(DIFFERENT))]
        events = step.events.copy()
        events["step"] = number
        for name in ("claim", "ready", "begin", "end", "publish"):
            events[name] += now
        writer.step(StepInfo(number, 0, now, now + step.makespan, [Row(0, 0, number, 1, "decode")]), events)
        writer.token(TokenInfo(0, number, 1, "a", number, now + step.makespan))
        now += step.makespan + 3000
    writer.close()
    if writer.error:
        raise SystemExit(writer.error)


def _open(path):
    from mkviz.trace import Trace

    trace = Trace.open(path)
    return f"{len(trace.steps)} steps, {len(trace.graphs)} graphs"


def _summary(path):
    from mkviz.summary import summarise
    from mkviz.trace import Trace

    return summarise(Trace.open(path)).shares


def _accounting(path):
    from mkviz.accounting import account

    return account(path).totals


def _blame(path):
    from mkviz.blame import blame

    return blame(path, 3).totals


def _blame_steps(path):
    from mkviz.blame_steps import blame_steps
    from mkviz.machine import H200

    found = blame_steps(path, machine=H200)
    return found.waterfall(), found.frame()


def _many_steps(path):
    from mkviz.many_steps import many_steps

    found = many_steps(path)
    return found.groups(), found.outliers()


def _tails(path):
    from mkviz.wave_tails import tails

    return tails(path).faults


def _occupancy(path):
    from mkviz.busy import occupancy

    return occupancy(path).rate()


def _hops(path):
    from mkviz.hops import hops

    found = hops(path)
    return found.by("counter"), found.by("producer_op", "op"), found.histogram("op")


def _check(path):
    from mkviz.rules import RULES, check_rules
    from mkviz.trace import Trace

    limits = {name: {"share": "5%", "time": "1ms"}.get(rule.kind, "1") for name, rule in RULES.items()}
    return [str(verdict) for verdict in check_rules(Trace.open(path), limits)]


def _diff(path):
    from mkviz.diff import diff
    from mkviz.trace import Trace

    trace = Trace.open(path)
    steps = np.sort(trace.table("steps", ["step"])["step"].to_numpy())
    found = diff(trace, trace, *np.array_split(steps, 2))
    return found.waterfall(), found.frame()


def _report(path):
    from mkviz.report import Report

    return len(Report.of(path).to_html())


def _flight(path):
    from mkviz.flight import FlightRecorder
    from mkviz.trace import Trace

    recorder = FlightRecorder()
    Trace.open(path).replay(recorder)
    return recorder.many_steps().groups()


def _dashboard(path):
    from mkviz.store import store_of_trace

    return len(store_of_trace(path).snapshot())


ANALYSES = {
    "open": _open, "summary": _summary, "accounting": _accounting, "blame of a step": _blame, "many steps": _many_steps,
    "open in the dashboard": _dashboard, "wave tails": _tails, "occupancy": _occupancy, "hops": _hops,
    "blame paths": _blame_steps, "check of all limits": _check, "diff of two halves": _diff, "report": _report,
    "flight recorder": _flight,
}  # fmt: skip


def measure(path: Path, only: list[str], runs: int) -> dict:
    """{analysis: {"s": wall seconds of the call, "cpu_s": of all its threads, "peak_mb": of its process, "load": how many
    processes wanted the machine}}, of the fastest of some runs; imports are not counted."""
    found = {}
    for name in runs * list(only or ANALYSES):
        out = subprocess.run([sys.executable, __file__, "one", str(path), name], capture_output=True, text=True, check=False)
        one = json.loads(out.stdout.splitlines()[-1]) if out.returncode == 0 else {"failed": out.stderr[-300:]}
        print(name, one, file=sys.stderr, flush=True)
        found[name] = min(found.get(name, one), one, key=lambda figures: figures.get("s", 0))
    return found


def one(path: Path, name: str) -> dict:
    import pandas  # noqa: F401
    import pyarrow.parquet  # noqa: F401

    import mkviz.summary  # noqa: F401

    begin, cpu = time.perf_counter(), time.process_time()
    ANALYSES[name](path)
    seconds, cpu = time.perf_counter() - begin, time.process_time() - cpu
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"s": round(seconds, 3), "cpu_s": round(cpu, 3), "peak_mb": round(peak), "load": round(os.getloadavg()[0], 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    actions = parser.add_subparsers(dest="action", required=True)
    p = actions.add_parser("make")
    p.add_argument("folder", type=Path)
    p.add_argument("millions", type=float, nargs="+")
    for action in ("measure", "one"):
        p = actions.add_parser(action)
        p.add_argument("capture", type=Path)
        p.add_argument("analysis", nargs="*" if action == "measure" else None)
        p.add_argument("--notes", default="")
        p.add_argument("--runs", type=int, default=1)
    args = parser.parse_args()
    if args.action == "make":
        args.folder.mkdir(parents=True, exist_ok=True)
        for millions in args.millions:
            make(args.folder / f"{millions:g}M.mkt", int(millions * 1e6))
    elif args.action == "one":
        print(json.dumps(one(args.capture, args.analysis)))
    else:
        import evidence

        files = [f for f in args.capture.iterdir() if f.suffix == ".parquet"]
        figures = {"records": json.loads((args.capture / "meta.json").read_text())["rows"]["records"],
                   "disk_mb": round(sum(f.stat().st_size for f in files) / 1e6), "cores": os.cpu_count(),
                   "runs": args.runs, "analyses": measure(args.capture, args.analysis, args.runs)}  # fmt: skip
        evidence.write(
            f"analyses_{args.capture.stem}",
            figures,
            notes=f"wall seconds, files in the page cache, imports before; {args.notes}",
        )


if __name__ == "__main__":
    main()
