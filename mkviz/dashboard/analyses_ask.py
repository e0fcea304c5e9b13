"""AnalysesAsk: what each panel of the page of analyses can be asked with, and the finding that answers it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mkviz.errors import MkvizError
from mkviz.findings import ANALYSES, Finding
from mkviz.findings.changed import CHANGES
from mkviz.reading import Reading
from mkviz.report import sides

if TYPE_CHECKING:
    from mkviz.dashboard.hub import Hub
    from mkviz.protocols import Source

BY = ("op", "layer", "sm", "step")
DEFAULTS = {
    "accounting": {"by": "op"},
    "whatif": {"change": "kernel_per_op", "value": "", "judge": ""},
    "diff": {"with": "", "steps_b": ""},
}
"""Of the analyses that can be asked with something, by the names that it has in the page's address."""


def fields(name: str, values: dict[str, str], sources: list[str]) -> list[dict]:
    """The form of an analysis, [] for one that has none; see :class:`mkviz.dashboard.analysis_form.AnalysisForm`."""
    if name == "accounting":
        words = {"op": "op", "layer": "layer", "sm": "SM", "step": "step"}
        return [{"name": "by", "label": "by", "value": values["by"], "options": [[by, words[by]] for by in BY]}]
    if name == "whatif":
        kinds = [[key, kind.words] for key, kind in CHANGES.items()]
        found = [{"name": "change", "label": "what if", "value": values["change"], "options": kinds}]
        if like := CHANGES[values["change"]].like:
            found.append({"name": "value", "label": "", "value": values["value"], "like": f"like {like}"})
        if values["change"] == "rows":
            options = [["", "this source"], *([source, source] for source in sources)]
            found.append({"name": "judge", "label": "judged on", "value": values["judge"], "options": options})
        return found
    if name == "diff":
        options = [["", "the same source"], *([source, source] for source in sources)]
        return [
            {"name": "with", "label": "compare with", "value": values["with"], "options": options},
            {"name": "steps_b", "label": "steps", "value": values["steps_b"], "like": "all" if values["with"] else "worst"},
        ]
    return []


def settle(name: str, values: dict[str, str], changed: dict[str, str]) -> dict[str, str]:
    """Values after the user changed some; another change begins with the value that it is like."""
    new = {key: changed.get(key, value).strip() for key, value in values.items()}
    if name == "whatif":
        if new["change"] not in CHANGES:
            new["change"] = values["change"]
        if new["change"] != values["change"]:
            new["value"] = changed["value"].strip() if changed.get("value", values["value"]) != values["value"] else ""
    if name == "accounting" and new["by"] not in BY:
        new["by"] = values["by"]
    return new


def find(name: str, reading: Reading, values: dict[str, str], hub: Hub) -> Finding:
    """Raises MkvizError for what cannot be told."""
    analysis = ANALYSES[name]
    if name == "accounting":
        return analysis.find(reading, values["by"])
    if name == "whatif":
        value = values["value"]
        if not value and values["change"] == "faster":
            value = f"{_largest(reading)}=2"
        judge = _other(values["judge"], hub) if values["change"] == "rows" and values["judge"] else None
        return analysis.find(reading, values["change"], value, judge)
    if name == "diff":
        return analysis.find(*_sides(reading, values["with"], values["steps_b"], hub))
    return analysis.find(reading)


def _sides(reading: Reading, other: str, steps: str, hub: Hub) -> tuple[Reading, Reading]:
    if not other:
        return (reading, reading.only(steps)) if steps else sides(reading)
    return reading, Reading.of_source(_other(other, hub), steps)


def _other(name: str, hub: Hub) -> Source:
    """Raises MkvizError for a source that is not there."""
    source = hub.source(name)
    if source is None:
        raise MkvizError(f"there is no source {name!r}", "one of those to choose from")
    return source


def _largest(reading: Reading) -> str:
    """The op that reads most."""
    graphs = reading.of.graphs
    if not graphs:
        raise MkvizError("this source has no graph", "one that tells what waits for what")
    graph = next(iter(graphs.values()))[0]
    return graph.ops[int(np.argmax(np.bincount(graph.op, graph.bytes, len(graph.ops))))]
