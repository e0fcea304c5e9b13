"""The command ``mkviz check``: whether a trace keeps to limits, as an exit code."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from mkviz.commands import steps_argument


class CheckCommand:
    name, help = "check", "whether a trace keeps to limits, as an exit code: 0 it does, 1 it does not, 2 that cannot be told"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        from mkviz.rules import EXAMPLES, RULES

        parser.allow_abbrev = False  # --max-step is a rule, --max-ste a mistake
        parser.add_argument("trace", type=Path, help="a trace (.mkt folder or zip)")
        for rule in RULES.values():
            words = f"{rule.help}, {EXAMPLES[rule.kind]}".replace("%", "%%")
            parser.add_argument(f"--{rule.name}", metavar="LIMIT", help=words)
        parser.add_argument("--steps", type=steps_argument, metavar="A[-B]", help="only these steps (default: all)")
        parser.add_argument("--json", action="store_true", help="print the verdicts as JSON, times in ns, shares of 1")

    def run(self, args: argparse.Namespace) -> int:
        from mkviz.diff_command import steps_within
        from mkviz.rules import RULES, check_rules, exit_code
        from mkviz.trace import Trace

        given = {name: value for name in RULES if (value := getattr(args, name.replace("-", "_"))) is not None}
        trace = Trace.open(args.trace)
        verdicts = check_rules(trace, given, steps_within(trace, args.steps))
        code = exit_code(verdicts)
        if args.json:
            print(json.dumps({"label": trace.label, "code": code, "rules": [v.to_json() for v in verdicts]}, indent=2))
        else:
            words = {0: "all are kept", 1: "not all are kept", 2: "not all could be checked"}[code]
            count = f"{len(verdicts)} rule{'s' * (len(verdicts) > 1)}"
            print("\n".join([trace.label, *map(str, verdicts), f"{count}: {words}"]))
        return code
