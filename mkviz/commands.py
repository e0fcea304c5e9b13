"""mkviz's own subcommands; each imports what it needs when it runs."""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path


class Summary:
    name, help = "summary", "what a trace says in one screen: rates, steps, where SM time went, totals per op"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("trace", type=Path, help="a trace (.mkt folder or zip)")
        parser.add_argument("--waterfall", action="store_true",
                            help="instead: what the step of median time takes beyond its bytes, by what held it")  # fmt: skip
        parser.add_argument("--json", action="store_true", help="print the figures as JSON, times in ns")

    def run(self, args: argparse.Namespace) -> int:
        from mkviz.summary import summarise
        from mkviz.trace import Trace
        from mkviz.waterfall import waterfall

        summary = waterfall(args.trace) if args.waterfall else summarise(Trace.open(args.trace))
        print(json.dumps(summary.to_json(), indent=2) if args.json else summary.to_text())
        return 0


class View:
    name, help = "view", "the dashboard in a window of its own: traces, and live generation where an engine is installed"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("trace", type=Path, nargs="*", help="traces to open (.mkt folders or zips); none: live only")
        parser.add_argument("--port", type=int, default=0, help="port on this machine (default: any free one)")
        parser.add_argument("--no-window", action="store_true", help="only print the address")
        parser.add_argument("--attach", nargs="?", const="", metavar="NAME|PATH",
                            help="show a running server: its name or socket; by itself the only one that runs")  # fmt: skip

    def run(self, args: argparse.Namespace) -> int:
        from mkviz.attach.places import socket_of
        from mkviz.dashboard.serve import serve

        attach = None if args.attach is None else socket_of(args.attach)
        serve(args.trace, args.port, window=not args.no_window, attach=attach)
        return 0


class Export:
    name, help = "export", "a range of a trace as HTML that needs no server, PNG, SVG, or a table as CSV"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("trace", type=Path, help="a trace (.mkt folder or zip)")
        parser.add_argument("out", type=Path, help="what to write: OUT.html, OUT.png, OUT.svg or OUT.csv")
        which = parser.add_mutually_exclusive_group()
        words = "a step, or the first and the last one (default: all)"
        which.add_argument("--steps", type=steps_argument, metavar="A[-B]", help=words)
        which.add_argument("--range", type=_span, metavar="A-B", help="µs since the first step began, as in the page's address")
        parser.add_argument("--table", choices=("ops", "waits", "steps", "why", "requests"), default="ops",
                            help="which one a CSV holds")  # fmt: skip
        parser.add_argument("--dark", action="store_true", help="dark colours")
        parser.add_argument("--overwrite", action="store_true", help="replace what is there")

    def run(self, args: argparse.Namespace) -> int:
        from dataclasses import replace

        from mkviz.dashboard.units import size
        from mkviz.exports import excerpt_of, form_of, render
        from mkviz.exports.saved import save

        form = form_of(args.out, args.overwrite)
        excerpt = excerpt_of(args.trace, args.steps, args.range)
        excerpt = replace(excerpt, look=replace(excerpt.look, dark=args.dark))
        data = render(excerpt, form, args.table)
        print(f"{excerpt.title} · {excerpt.words}\nwriting {args.out}: {size(len(data))}", flush=True)
        save(data, args.out)
        return 0


def steps_argument(text: str) -> tuple[int, int]:
    first, _, last = text.partition("-")
    try:
        return int(first), int(last or first)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: a step like 12, or the first and the last one like 12-20") from None


def _span(text: str) -> tuple[float, float]:
    first, _, last = text.partition("-")
    try:
        span = float(first) * 1000, float(last) * 1000
    except ValueError:
        span = math.nan, math.nan
    if not all(map(math.isfinite, span)):
        raise argparse.ArgumentTypeError(f"{text!r}: two times in µs like 120.5-180")
    return span
