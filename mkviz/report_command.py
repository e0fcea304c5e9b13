"""The command ``mkviz report``: what all analyses say of a trace, in one file."""

from __future__ import annotations

import argparse
import json
from pathlib import Path


class ReportCommand:
    name, help = "report", "what bounds the steps of a trace: all analyses in one HTML file that needs no server and no network"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("trace", type=Path, help="a trace (.mkt folder or zip)")
        parser.add_argument("-o", "--out", type=Path, metavar="OUT.html", help="default: the trace's name and -report.html")
        words = "12, 10-20, worst or median (default: all); what looks at one step takes the one of median time among them"
        parser.add_argument("--steps", default="", help=words)
        parser.add_argument("--json", action="store_true", help="print the figures as JSON; an HTML file only with --out")
        parser.add_argument("--dark", action="store_true", help="dark colours")
        parser.add_argument("--overwrite", action="store_true", help="replace what is there")

    def run(self, args: argparse.Namespace) -> int:
        from mkviz.dashboard.units import size
        from mkviz.errors import MkvizError
        from mkviz.exports import form_of
        from mkviz.exports.saved import save
        from mkviz.report import Report

        name = args.trace.name.removesuffix(".zip").removesuffix(".mkt")
        out = args.out or (None if args.json else Path(f"{name}-report.html"))
        if out is not None and form_of(out, args.overwrite) != "html":
            raise MkvizError(f"{out}: a report is HTML", "a name that ends in .html")
        report = Report.of(args.trace, args.steps)
        if args.json:
            print(json.dumps(report.to_json(), indent=2, ensure_ascii=False))
        if out is not None:
            data = report.to_html(args.dark).encode()
            save(data, out)
            if not args.json:
                print(f"{report.trace.label}\n{report.answer}\nwrote {out}: {size(len(data))}")
        return 0
