"""Table: rows for people and programs alike: plain numbers whose columns have units."""

from __future__ import annotations

from dataclasses import dataclass, field

from mkviz.dashboard.units import duration, percent, signed, size


def _count(n: float) -> str:
    return f"{n:,.0f}".replace(",", " ")


UNITS = {"": str, "ns": duration, "+ns": signed, "bytes": size, "of 1": percent, "GB/s": "{:.1f}".format, "n": _count}


@dataclass(frozen=True)
class Table:
    """``columns`` names the columns and the unit of each (one of UNITS); ``values`` are plain texts and numbers, None: there is
    none; ``goes_to`` what a row leads to: (step number, task), task -1 for a whole step.  Without it rows lead nowhere.
    ``caption``: what it is of, where it is not what was asked for."""

    columns: dict[str, str]
    values: list[list] = field(default_factory=list)
    goes_to: list[tuple[int, int]] = field(default_factory=list)
    caption: str = ""

    @property
    def head(self) -> tuple[str, ...]:
        return tuple(self.columns)

    @property
    def rows(self) -> list[list[str]]:
        """As texts for people."""
        words = [UNITS[unit] for unit in self.columns.values()]
        return [["–" if v is None else word(v) for v, word in zip(row, words, strict=True)] for row in self.values]

    def to_json(self) -> dict:
        """Columns with their units, and the plain values."""
        return {"columns": self.columns, "rows": self.values}
