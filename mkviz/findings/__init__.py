"""Findings: each analysis as something to show: an answer in words, plots, tables, and what could not be told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from mkviz.findings.beyond import of_waterfall
from mkviz.findings.changed import of_whatif
from mkviz.findings.finding import Finding
from mkviz.findings.idle import of_tails, of_waits
from mkviz.findings.path import of_path
from mkviz.findings.steps import of_diff, of_steps
from mkviz.findings.time import of_accounting, of_occupancy


@dataclass(frozen=True)
class Analysis:
    """``asks``: the question it answers; ``means``: its definition in a sentence; ``section``: that of docs/analyses.md;
    ``find``: makes the finding of a reading."""

    title: str
    asks: str
    means: str
    section: str
    find: Callable[..., Finding]


ANALYSES = {
    "blame": Analysis(
        "Blame path", "What held this step?",
        "From the end of the step backwards, always to what came last; each nanosecond is in exactly one segment.",
        "Blame path", of_path,
    ),
    "waterfall": Analysis(
        "Waterfall", "What does the step take beyond its bytes?",
        "What memory could have brought and did not is charged to what held the step meanwhile: math and stalls in it "
        "(compute), done and not published (publish), published and not seen (hop), ready without bytes (starved), ready and "
        "not begun (overhead), nothing left to do (tail). Below 0: a cache brought more than memory can.",
        "Waterfall", of_waterfall,
    ),
    "accounting": Analysis(
        "Accounting", "Where did SM time go?",
        "Every nanosecond of each SM's math role is exactly one of compute, wait, starved, overhead, tail, unknown.",
        "Accounting", of_accounting,
    ),
    "occupancy": Analysis(
        "Occupancy and bytes", "How many SMs worked, and how fast was memory read?",
        "SM time of each op in each bin over the bin's length; bytes are dated by the ring's fill.",
        "Occupancy and bytes over time", of_occupancy,
    ),
    "waits": Analysis(
        "Waits", "Who waited for whom?",
        "Exposed is what an SM stood idle for the last producer of a counter; what was hidden behind other work is slack.",
        "Hops", of_waits,
    ),
    "tails": Analysis(
        "Wave tails", "How do ops end?",
        "Of each op and layer: idle SM time from an SM's last task of it to the end of all, and what other work filled.",
        "Wave tails", of_tails,
    ),
    "whatif": Analysis(
        "What if", "What would the step take, changed?",
        "A replay of the step as it was, whose error is told first, and one with something changed.",
        "What if", of_whatif,
    ),
    "diff": Analysis(
        "Diff", "Why does one take longer than the other?",
        "The change of the median step by cause of its blame path; the changes add up.",
        "Diff", of_diff,
    ),
    "steps": Analysis(
        "Many steps", "Are all steps alike?",
        "Percentiles, drift and outliers of steps of one graph with as many rows.",
        "Many steps", of_steps,
    ),
}  # fmt: skip
