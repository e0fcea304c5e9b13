"""The table of docs/performance.md between its marks, from what `mkviz bench decode --ablate --json` wrote.

python benchmarks/ablation_table.py tests/evidence/h200_ablations.json [another.json …]
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

PAGE = Path(__file__).parents[1] / "docs" / "performance.md"
BEGIN, END = "<!-- ablations -->\n", "<!-- end of ablations -->\n"


def table(told: dict) -> str:
    """Markdown: a row for each ablation, two columns for each batch and context, and what it was measured on."""
    points = [p for p in told["points"] if "ablations" in p]
    heads = [f"{p['batch']}, {p['context']}: ms/step | against as it is (95 %)" for p in points]
    lines = [f"| batch, context | {' | '.join(heads)} |", "| --- |" + " --- | --- |" * len(points)]
    of = [{entry["name"]: entry for entry in p["ablations"]} for p in points]
    for name, first in of[0].items():
        lines.append(f"| {first['words']} | {' | '.join(_cells(entries[name]) for entries in of)} |")
    conditions = f"{told['device']['name']}, {told['model']}, {told['layers']} layers, policy {told['policy']}, tracing off; "
    conditions += f"{told['launches']} launches of {told['steps_per_launch']} steps of each, in turn; "
    conditions += f"commit {told['commit']}, {told['time']}."
    return "\n".join([*lines, "", conditions, f"`{told['command']}`", ""])


def _cells(entry: dict) -> str:
    if "left_out" in entry:
        return "– | –"
    if entry["name"] == "as-it-is":
        return f"{entry['ms_step']:.3f} | "
    more = [entry["ratio"]["mean"], *entry["ratio"]["interval_95"]]
    mean, low, high = (f"{x - 1:+.1%}".replace("%", " %") for x in more)
    return f"{entry['ms_step']:.3f} | {mean} ({low} to {high})"


def main() -> None:
    text = PAGE.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    tables = "\n".join(table(json.loads(Path(path).read_text(encoding="utf-8"))) for path in sys.argv[1:])
    PAGE.write_text(before + BEGIN + tables + END + rest.split(END)[1], encoding="utf-8")


if __name__ == "__main__":
    main()
