"""The command ``mkviz schedule``: look at the graph and schedule of a model's step without running it."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import numpy as np

from mkviz.errors import MkvizError


class Schedule:
    """``mkviz schedule show|dump|check|simulate``."""

    name = "schedule"
    help = "show, dump, check or simulate the task graph and schedule of a model's step"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        actions = parser.add_subparsers(dest="action", required=True, metavar="show|dump|check|simulate")
        for action, text in (
            ("show", "tasks, bytes, flops and waits per op, and the load of the SMs"),
            ("dump", "every task as a line of JSON: op, SM, bytes, waits, raises"),
            ("check", "run the validator and say what it found"),
            ("simulate", "replay the step on a model of an H200 and say how long it takes"),
        ):
            p = actions.add_parser(action, help=text)
            p.add_argument("--model", help="a directory, a fetched model's name, or demo (the default)")
            p.add_argument("--sms", type=int, default=132, help="SMs (default 132, an H200)")
            p.add_argument("--rows", type=int, default=1, help="rows of the step (default 1)")
            p.add_argument("--context", type=int, help="keys of the longest row (default: as many as rows)")
            p.add_argument("--policy", default="round_robin", help="scheduling policy")
            if action == "simulate":
                p.add_argument("--no-prefetch", action="store_true", help="load a task's bytes only when it is its turn")
                p.add_argument("--barrier-per-op", action="store_true", help="a kernel per op: launch, run, wait for all")
                p.add_argument(
                    "--against", metavar="TRACE.mkt", type=Path, help="replay the steps of a trace instead, and say how far off"
                )
                p.add_argument("--trace", metavar="OUT.mkt", type=Path, help="write the simulated step as a trace")
            if action == "dump":
                p.add_argument("--out", type=Path, help="write there instead of stdout")

    def run(self, args: argparse.Namespace) -> int:
        if args.action == "simulate" and args.against:
            return _against(args)
        graph, schedule = step_schedule(args.model, args.sms, args.rows, args.context, args.policy)
        if args.action == "dump":
            return _dump(graph, schedule, args.out)
        if args.action == "simulate":
            return _simulate(graph, schedule, args)
        if args.action == "check":
            return _check(graph, schedule)
        _show(graph, schedule)
        return 0


def step_schedule(model: str | None, sms: int, rows: int, context: int | None, policy: str):
    """(Graph, Schedule) of a step of ``rows`` rows, the longest of which sees ``context`` keys."""
    from engine.builder import StepShape, build_graph
    from engine.config import load_config
    from engine.models import resolve_model
    from engine.tiling import Tiling
    from mkviz.policies import make_schedule

    config = load_config(resolve_model(model))
    if sms < 1:
        raise MkvizError(f"--sms: {sms}", "at least 1")
    context = rows if context is None else context
    if not rows <= context <= config.max_positions:
        raise MkvizError(f"--context: {context}", f"at least the {rows} rows, at most the model's {config.max_positions}")
    graph = build_graph(config, StepShape.covering(rows, context), Tiling.for_sms(config, sms)).graph
    return graph, make_schedule(graph, sms, policy)


def _show(graph, schedule) -> None:
    print(f"{graph.name}: {len(graph)} tasks, {len(graph.counters)} counters, {len(graph.wait_counter)} waits")
    print(f"{'op':<12}{'tasks':>8}{'bytes':>12}{'share':>8}{'MFLOP':>10}{'waits/task':>12}")
    total, waits = max(1, int(graph.bytes.sum())), np.diff(graph.wait_ptr)

    def line(name: str, mine) -> None:
        size, flops = int(graph.bytes[mine].sum()), graph.flops[mine].sum() / 1e6
        print(f"{name:<12}{mine.sum():>8}{human(size):>12}{size / total:>8.1%}{flops:>10.2f}{waits[mine].mean():>12.2f}")

    for i, op in enumerate(graph.ops):
        if (graph.op == i).any():
            line(op, graph.op == i)
    line("all", np.ones(len(graph), bool))
    print(f"\nschedule {schedule.policy}: {schedule.sms} SMs, {len(schedule.order)} owned tasks, {len(schedule.queue)} claimed")
    if len(schedule.order):
        sm = schedule.sm_of(len(graph))
        load = np.bincount(sm[sm >= 0], weights=graph.bytes[sm >= 0], minlength=schedule.sms)
        print(f"bytes per SM: least {human(load.min())}, mean {human(load.mean())}, most {human(load.max())}")


def _dump(graph, schedule, out: Path | None) -> int:
    lines = "".join(json.dumps(line) + "\n" for line in _tasks(graph, schedule))
    if out is None:
        sys.stdout.write(lines)
        return 0
    try:
        out.write_text(lines, encoding="utf-8")
    except OSError as error:
        raise MkvizError(f"--out {out}: {error.strerror}", "a file that can be written") from None
    return 0


def _tasks(graph, schedule):
    sm = schedule.sm_of(len(graph))
    for t in range(len(graph)):
        yield {
            "task": t, "op": graph.ops[graph.op[t]], "layer": int(graph.layer[t]), "slot": int(graph.slot[t]),
            "tile": int(graph.tile[t]), "sm": int(sm[t]), "bytes": int(graph.bytes[t]), "flops": int(graph.flops[t]),
            "waits": [[graph.counters[c], n] for c, n in graph.waits(t)],
            "raises": [graph.counters[c] for c in graph.raises(t)],
        }  # fmt: skip


def _check(graph, schedule) -> int:
    from mkviz.validate import problems

    found = problems(graph, schedule)
    for line in found:
        print(line)
    if not found:
        print(f"{graph.name}, {schedule.policy} over {schedule.sms} SMs: acyclic, every wait satisfiable, no deadlock, "
              "ring order equals consumption order")  # fmt: skip
    return 1 if found else 0


def _simulate(graph, schedule, args) -> int:
    from dataclasses import replace

    from mkviz.machine import H200
    from mkviz.protocols import StepInfo
    from mkviz.simulator import simulate

    machine = H200 if schedule.sms == H200.sms else replace(H200, name=f"{H200.name}, {schedule.sms} SMs", sms=schedule.sms)
    result = simulate(graph, schedule, machine, prefetch=not args.no_prefetch, barrier_per_op=args.barrier_per_op)
    floor = result.bytes / machine.bandwidth * 1e9
    print(f"{graph.name}, {schedule.policy} over {schedule.sms} SMs, {result.label}")
    print(
        f"step {result.makespan / 1e3:.1f} µs for {human(result.bytes)}: {result.gbps:.0f} GB/s, "
        f"{floor / result.makespan:.0%} of the {machine.bandwidth / 1e12:.2f} TB/s ceiling"
    )
    if args.trace is not None:
        from mkviz.trace import TraceWriter

        writer = TraceWriter(args.trace, kind="simulated", device=machine.name)
        writer.graph(0, graph, schedule)
        writer.step(StepInfo(0, 0, 0, int(result.makespan)), result.events)
        writer.close()
        print(f"trace: {args.trace}")
    return 0


def _against(args) -> int:
    from mkviz.calibration import replayed
    from mkviz.trace import Trace

    for option in ("trace", "no_prefetch", "barrier_per_op"):
        if getattr(args, option):
            raise MkvizError(
                f"--against with --{option.replace('_', '-')}", "one of them: a trace's steps are replayed as they ran"
            )
    for graph in replayed(Trace.open(args.against)):
        print(graph.to_text())
    return 0


def human(size: float) -> str:
    """Bytes with a unit, powers of 1000."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.2f} {unit}"
        size /= 1000
    return f"{size:.2f} TB"
