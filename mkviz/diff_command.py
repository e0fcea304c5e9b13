"""The command ``mkviz diff``: why the steps of one trace take longer than those of another."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from mkviz.commands import steps_argument
from mkviz.dashboard.units import duration, signed
from mkviz.errors import MkvizError
from mkviz.robust import FEWEST

if TYPE_CHECKING:
    from mkviz.diff import Diff
    from mkviz.trace import Trace

SHOWN = 12  # rows of a table; what is less is added up


class DiffCommand:
    name, help = "diff", "why the steps of one trace take longer than those of another, by cause and by task"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("a", type=Path, help="a trace (.mkt folder or zip)")
        parser.add_argument("b", type=Path, nargs="?", help="another one; without it --steps-a and --steps-b are needed")
        for side in "ab":
            words = f"steps of {side} (default: those with as many rows that both have most of)"
            parser.add_argument(f"--steps-{side}", type=steps_argument, metavar="A[-B]", help=words)
        parser.add_argument("--json", action="store_true", help="print the figures as JSON, times in ns")

    def run(self, args: argparse.Namespace) -> int:
        from mkviz.diff import diff
        from mkviz.trace import Trace

        if args.b is None and (args.steps_a is None or args.steps_b is None):
            raise MkvizError("one trace to compare with itself", "a second trace, or --steps-a and --steps-b")
        a = Trace.open(args.a)
        b = a if args.b is None else Trace.open(args.b)
        found = diff(a, b, steps_within(a, args.steps_a), steps_within(b, args.steps_b))
        print(json.dumps(found.to_json(), indent=2, default=float) if args.json else text(found))
        return 0


def steps_within(trace: Trace, span: tuple[int, int] | None) -> np.ndarray | None:
    """The numbers of a trace's steps from the first of ``span`` to the last, None for None.  Raises MkvizError for none."""
    if span is None:
        return None
    numbers = trace.table("steps", ["step"])["step"].to_numpy()
    found = np.unique(numbers[(numbers >= span[0]) & (numbers <= span[1])])
    if not len(found):
        has = f"from {numbers.min()} to {numbers.max()}" if len(numbers) else "none"
        raise MkvizError(f"trace {trace.path} holds no step from {span[0]} to {span[1]}", f"steps that it has: {has}")
    return found


def text(found: Diff) -> str:
    """A terminal's screen."""
    lines = []
    for name, side in (("a", found.a), ("b", found.b)):
        many = f"{len(side.steps):,} step{'s' * (len(side.steps) > 1)}"
        spread = f"{duration(side.low)} to {duration(side.high)}"
        words = f"95 % interval {spread}" if len(side.steps) >= FEWEST else f"all of them {spread}"
        lines += [f"{name}  {side.label} · {side.group} · {side.sms} SMs",
                  f"   {many}, median {duration(side.ns)} (step {side.step}), {words}"]  # fmt: skip
    share = f" ({100 * found.change / found.a.ns:+.2f} %)".replace("-", "−") if found.a.ns else ""
    doubt = "" if found.certain else ", within the intervals: it may be chance"
    doubt = doubt if found.enough else f"; of fewer than {FEWEST} steps nobody can tell it from chance"
    lines += ["", f"change of the median step: {signed(found.change)}{share}{doubt}"]
    lines += ["", "on the blame path, by cause and op"]
    path = found.waterfall()
    lines += _rows(path[["cause", "op"]].agg(" ".join, axis=1), path["a"], path["b"], path["change"])
    sm = found.accounting()
    lines += ["", "by SM time, per SM, by kind and op"]
    lines += _rows(sm[["kind", "op"]].agg(" ".join, axis=1), sm["a"] / found.a.sms, sm["b"] / found.b.sms, sm["per_sm"])
    tasks = found.frame().head(SHOWN)
    lines += ["", f"{'tasks' if found.by_task else 'ops and layers'} that changed most: work, and idle time before it"]
    names = [" · ".join([task["op"], *(f"{w} {task[w]}" for w in ("layer", "slot", "tile") if task.get(w, -1) >= 0)])
             for task in tasks.to_dict("records")]  # fmt: skip
    both = (tasks[[f"compute_{side}", f"idle_{side}"]].fillna(0).sum(axis=1) for side in "ab")
    lines += _rows(names, *both, tasks["change"], whole=False)
    return "\n".join([*lines, *([""] if found.notes else []), *(f"note: {note}" for note in found.notes)])


def _rows(names, a, b, change, whole: bool = True) -> list[str]:
    """A table of at most SHOWN rows; ``whole``: with what the others and all come to."""
    rows = [(str(name).strip(), float(x), float(y), float(d)) for name, x, y, d in zip(names, a, b, change, strict=True)]
    shown, rest = rows[:SHOWN], rows[SHOWN:]
    sums = [(f"{len(rest)} others", rest)] if rest else []
    shown += [(name, *(sum(row[i] for row in part) for i in (1, 2, 3))) for name, part in [*sums, ("all", rows)] if whole]
    width = max([24, *(len(name) for name, *_ in shown)])
    lines = [f"  {'':<{width}}{'a':>11}{'b':>11}{'change':>12}"]
    return lines + [f"  {name:<{width}}{duration(x):>11}{duration(y):>11}{signed(d):>12}" for name, x, y, d in shown]
