"""What a step would take under another schedule or other costs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mkviz.costs_judge import Judged
from mkviz.dashboard.units import duration
from mkviz.errors import MkvizError
from mkviz.findings.finding import Finding, rows_of
from mkviz.policies import POLICIES
from mkviz.reading import Reading
from mkviz.table import Table
from mkviz.whatif import whatif


@dataclass(frozen=True)
class Kind:
    """A change that can be asked for: in words, and what its value is like ("": it has none)."""

    words: str
    like: str = ""


CHANGES = {
    "kernel_per_op": Kind("a kernel per op"),
    "no_prefetch": Kind("no prefetch across tasks"),
    "in_sequence": Kind("in sequence with an op", "o_proj"),
    "faster": Kind("an op some times faster", "attention=2"),
    "bandwidth": Kind("some times the bandwidth", "1.5"),
    "sms": Kind("another number of SMs", "64"),
    "split": Kind("the longest task, or those of an op, in two", "longest"),
    "policy": Kind(f"another policy: {', '.join(POLICIES)}", "list"),
    "rows": Kind("another batch", "8"),
}


def change_of(name: str, value: str) -> dict[str, Any]:
    """The option of :func:`mkviz.whatif.whatif` that a form's name and value ask for.  Raises MkvizError for what is none."""
    if name not in CHANGES:
        raise MkvizError(f"change {name!r}", f"one of {', '.join(CHANGES)}")
    kind, value = CHANGES[name], value.strip()
    if not kind.like:
        return {name: True}
    try:
        if name == "faster":
            op, _, k = value.rpartition("=")
            return {name: {op.strip(): float(k)}}
        return {name: {"bandwidth": float, "sms": int, "rows": int}.get(name, str)(value or kind.like)}
    except ValueError:
        raise MkvizError(f"{kind.words}: {value!r}", f"a value like {kind.like}") from None


def of_whatif(reading: Reading, name: str = "kernel_per_op", value: str = "", judge=None) -> Finding:
    """Of the step of median time among those asked for; ``judge``: a source to judge the costs by op on."""
    if reading.one is None:
        raise MkvizError("each of these steps lost records: none can be replayed", "steps that are whole")
    found = whatif(reading.snapshot_or_trace(), reading.one, reading.machine, judge, **change_of(name, value))
    p = found.predictions[0]
    recorded, before, after = map(duration, (p.fitted.step.makespan, p.before_ns, p.after.makespan))
    error, change = f"{p.fitted.error:+.2%}".replace("-", "−"), f"{p.change:+.1%}".replace("-", "−")
    answer = (
        f"Replayed as it was, step {p.step} takes {before}, recorded {recorded}: an error of {error}. "
        f"With {found.change.words} it takes {after}, {change}{p.doubt}."
    )
    table = Table({"cause": "", "as it was": "ns", "changed": "ns", "change": "+ns"})
    table.values.extend([cause, before, after, after - before] for cause, before, after in p.causes() if before or after)
    notes = list(found.notes)
    if found.held_out:
        others = ", ".join(f"{error:+.1%} on step {step}" for step, error in found.held_out)
        notes.append(f"{found.costs} alone, on steps that they were not fitted to, are off by {others}")
    label, tables = f"simulated from: {reading.label}", {"on the blame path": table}
    plots = [lambda dark: _relabelled(found, dark)]
    if (judged := found.judged) is not None:
        plots.append(judged.plot)
        tables |= {f"costs by op, judged on {judged.on}": _kinds(judged), "math of each op": _ops(judged)}
    return Finding(label, answer, plots, tables, notes, {}, found.to_json())


def _kinds(judged: Judged) -> Table:
    """Steps that the costs were not fitted to, by kind."""
    table = Table({"rows": "", "of prefill": "", "steps": "", "recorded": "ns", "with spread of costs": "ns", "error": "of 1",
                   "from means by op": "ns", "error of means": "of 1"})  # fmt: skip
    names = ("rows", "prefill", "steps", "recorded", "spread", "spread_error", "predicted", "error")
    table.values.extend(rows_of(judged.frame(), *names))
    return table


def _ops(judged: Judged) -> Table:
    table = Table({"rows": "", "op": "", "recorded": "ns", "predicted": "ns", "error": "of 1"})
    table.values.extend(rows_of(judged.frame("op"), "rows", "op", "recorded", "predicted", "error"))
    return table


def _relabelled(found, dark: bool):
    """A prediction is a simulation, whatever it was made from."""
    from dataclasses import replace

    return replace(found, label=f"simulated from: {found.label}").plot(dark=dark)
