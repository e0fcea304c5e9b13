"""Finding: what one analysis says of a reading, as a page and a report show it: an answer, plots, tables, and what is wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mkviz.table import Table

if TYPE_CHECKING:
    from bokeh.plotting import figure

FAULT_WORDS = {  # of several and of one, as mkviz.faults.Faults counts them
    "lost": ("{} records are lost: the time of their steps is unknown", "{} record is lost: the time of its step is unknown"),
    "strays": ("{} records name an SM or a task that is not there", "{} record names an SM or a task that is not there"),
    "broken": ("{} records have no end after their begin, or a time that did not fit: time until the next task is unknown",
               "{} record has no end after its begin, or a time that did not fit: time until the next task is unknown"),
    "repeated": ("{} records are second ones of their task: not counted", "{} record is a second one of its task: not counted"),
    "overlapping": ("{} records begin before the task before them had ended: time that two share counts once",
                    "{} record begins before the task before it had ended: time that the two share counts once"),
    "clipped": ("{} records reach beyond their step: cut to it", "{} record reaches beyond its step: cut to it"),
}  # fmt: skip


@dataclass
class Finding:
    """``answer``: in a sentence or two, computed; ``plots``: functions that draw for a light (False) or dark page; ``tables``:
    each under its caption; ``notes``: what could not be told; ``faults`` of records, by name; ``figures``: all numbers behind
    it, ready for JSON, times in ns."""

    label: str
    answer: str
    plots: list[Callable[[bool], figure]]
    tables: dict[str, Table]
    notes: list[str] = field(default_factory=list)
    faults: dict[str, int] = field(default_factory=dict)
    figures: dict = field(default_factory=dict)

    @property
    def remarks(self) -> list[str]:
        """Notes and faults, in words."""
        return [*self.notes, *fault_words(self.faults)]

    def to_json(self) -> dict:
        tables = {name: table.to_json() for name, table in self.tables.items()}
        return {"label": self.label, "answer": self.answer, "figures": self.figures, "tables": tables, "notes": self.notes,
                "faults": self.faults}  # fmt: skip


def fault_words(faults: dict[str, int]) -> list[str]:
    return [FAULT_WORDS[name][n == 1].format(f"{n:,}".replace(",", " ")) for name, n in faults.items() if n]


def rows_of(frame, *names: str) -> list[list]:
    """Plain values of a dataframe's columns, None where there is none."""
    return [[_plain(value) for value in row] for row in frame[list(names)].itertuples(index=False)]


def _plain(value):
    import pandas as pd

    if pd.isna(value):
        return None
    return value.item() if hasattr(value, "item") else value
