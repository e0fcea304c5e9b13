"""mkviz's own subcommands; each imports what it needs when it runs."""

from __future__ import annotations

import argparse
import json
from pathlib import Path


class Summary:
    name, help = "summary", "what a trace says in one screen: rates, steps, where SM time went, totals per op"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("trace", type=Path, help="a trace (.mkt folder or zip)")
        parser.add_argument("--json", action="store_true", help="print the figures as JSON, times in ns")

    def run(self, args: argparse.Namespace) -> int:
        from mkviz.summary import summarise
        from mkviz.trace import Trace

        summary = summarise(Trace.open(args.trace))
        print(json.dumps(summary.to_json(), indent=2) if args.json else summary.to_text())
        return 0


class View:
    name, help = "view", "the dashboard in a window of its own: traces, and live generation where an engine is installed"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("trace", type=Path, nargs="*", help="traces to open (.mkt folders or zips); none: live only")
        parser.add_argument("--port", type=int, default=0, help="port on this machine (default: any free one)")
        parser.add_argument("--no-window", action="store_true", help="only print the address")

    def run(self, args: argparse.Namespace) -> int:
        from mkviz.dashboard.serve import serve

        serve(args.trace, args.port, window=not args.no_window)
        return 0
