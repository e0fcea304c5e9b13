"""The blame path of one step, beside its bounds."""

from __future__ import annotations

from mkviz.accounting import refuse_thinned
from mkviz.blame import CAUSES, Blame, blame_of
from mkviz.dashboard.units import duration
from mkviz.errors import MkvizError
from mkviz.findings.finding import Finding
from mkviz.findings.verdict import verdict
from mkviz.reading import Reading
from mkviz.step_records import steps_of
from mkviz.table import Table

TOP = 12  # rows of the table; all are in the plot and in the figures


def of_path(reading: Reading) -> Finding:
    """What held the step of median time among those asked for."""
    if reading.one is None:
        raise MkvizError("each of these steps lost records: what held them cannot be told", "steps that are whole")
    refuse_thinned(reading.of)
    step = next(iter(steps_of(reading.of, reading.one)))
    path = blame_of(step, reading.machine, reading.label)
    said = verdict(path, step, reading.machine)
    return Finding(
        reading.label, said.text, [path.plot], {"what held the step": waterfall(path, TOP), "bounds": _bounds(path)},
        [*path.notes, *([] if reading.machine else ["nobody measured this machine's memory: there is no bandwidth floor"])],
        path.faults, path.to_json() | {"verdict": said.to_json()},
    )  # fmt: skip


def waterfall(path: Blame, most: int = 0) -> Table:
    """Cause, op, time and share of the makespan, most first (the first ``most``, 0: all); a row leads to the task of its
    longest segment."""
    caption = f"what held step {path.step}, {duration(path.makespan)}"
    table = Table({"cause": "", "op": "", "time": "ns", "share": "of 1"}, caption=caption)
    longest = _longest(path)
    for cause, op, _, ns in path.largest()[: most or None]:
        table.values.append([cause, op, ns, ns / path.makespan])
        table.goes_to.append((path.step, longest[cause, op]))
    return table


def _longest(path: Blame) -> dict[tuple[str, str], int]:
    """The task of the longest segment of each cause and op, -1 for none."""
    found: dict[tuple[str, str], tuple[int, int]] = {}
    for begin, end, cause, task, _ in path.segments.tolist():
        key = CAUSES[cause], path.graph.ops[path.graph.op[task]] if task >= 0 else ""
        found[key] = max(found.get(key, (-1, -1)), (end - begin, task))
    return {key: task for key, (_, task) in found.items()}


def _bounds(path: Blame) -> Table:
    rows = [("the step", path.makespan), ("longest chain of dependencies", path.critical), ("bandwidth floor", path.floor)]
    table = Table({"": "", "time": "ns", "share": "of 1"})
    table.values.extend([name, ns, ns / path.makespan if path.makespan else None] for name, ns in rows if ns is not None)
    return table
