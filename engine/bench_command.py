"""The command ``mkviz bench NAME``: what is measured, each in a module of its own."""

from __future__ import annotations

import argparse

from engine.bench.decode import BenchDecode
from engine.bench.serve import BenchServe

BENCHES = (BenchServe, BenchDecode)


class Bench:
    """A bench is a class with ``name``, ``help``, ``add_arguments(parser)`` and ``run(args) -> exit code``, as a command is."""

    name = "bench"
    help = "measure, and write the figures as JSON"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        names = parser.add_subparsers(dest="bench", required=True, metavar="NAME")
        for kind in BENCHES:
            bench = kind()
            own = names.add_parser(bench.name, help=bench.help, description=bench.help)
            bench.add_arguments(own)
            own.set_defaults(run_bench=bench.run)

    def run(self, args: argparse.Namespace) -> int:
        return args.run_bench(args)
