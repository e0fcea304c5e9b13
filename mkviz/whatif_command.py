"""The command ``mkviz whatif``: a recorded step replayed as it was, then under another schedule or other costs."""

from __future__ import annotations

import argparse
import json
from pathlib import Path


class WhatIf:
    name = "whatif"
    help = "replay a step of a trace under another schedule or other costs; says its error first"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add = parser.add_argument
        add("trace", type=Path, help="a trace (.mkt folder or zip)")
        add("--step", type=int, action="append", metavar="N", help="a step, or several; default: the one of median time")
        add("--faster", type=_faster, action="append", default=[], metavar="OP=K", help="math of an op's tasks takes 1/K")
        add("--split", default="", metavar="longest|OP", help="the longest task in two halves, or every task of an op")
        add("--in-sequence", nargs="?", const="o_proj", default="", metavar="OP",
            help="what runs beside an op in its layer begins when that is done (default: o_proj, of attention)")  # fmt: skip
        add("--sms", type=int, metavar="N", help="that many SMs, same tiles")
        add("--policy", default="", help="tasks dealt out anew: round_robin, layered, list, balanced, claimed")
        add("--bandwidth", type=float, default=1.0, metavar="K", help="K times the machine's bandwidth")
        add("--no-prefetch", action="store_true", help="load a task's bytes only when it is its turn")
        add("--kernel-per-op", action="store_true", help="a kernel per op: launch, run, wait for all")
        add("--rows", type=int, metavar="N", help="a step of N rows, whose graph the trace (or the one to judge on) holds")
        add("--judge", type=Path, metavar="TRACE",
            help="costs by op, fitted to the trace, against what steps of another took, such as of another batch")  # fmt: skip
        add("--json", action="store_true", help="print the figures as JSON, times in ns")

    def run(self, args: argparse.Namespace) -> int:
        from mkviz.costs_judge import judge
        from mkviz.whatif import whatif
        from mkviz.whatif_change import Change

        fields = ("split", "in_sequence", "sms", "policy", "bandwidth", "no_prefetch", "kernel_per_op", "rows")
        change = {name: getattr(args, name) for name in fields} | {"faster": dict(args.faster)}
        if args.judge is not None and Change(**change) == Change():
            found = judge(args.trace, args.judge, args.step)
        else:
            found = whatif(args.trace, args.step, judge=args.judge, **change)
        print(json.dumps(found.to_json(), indent=2) if args.json else found.to_text())
        return 0


def _faster(text: str) -> tuple[str, float]:
    op, _, k = text.rpartition("=")
    try:
        return op, float(k)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: an op and how many times faster, like attention=2") from None
