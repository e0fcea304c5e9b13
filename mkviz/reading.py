"""Reading: the steps of a source or a trace that analyses are asked about, by words: 12, 10-20, worst, median."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from mkviz.errors import MkvizError
from mkviz.machine import Machine, named_in
from mkviz.many_steps import ManySteps, of_times, times_of

if TYPE_CHECKING:
    from mkviz.protocols import Source
    from mkviz.store import Snapshot
    from mkviz.trace import Trace

MOST_RECORDS = 1_000_000  # of the steps whose records are read; of more steps the newest are
RIGHT = "a step like 12, the first and last one like 10-20, worst, or median; nothing for all"


@dataclass(eq=False)
class Reading:
    """``of``: a trace, or one snapshot of a source.  ``steps`` i64: the numbers of those asked for whose records are read,
    ascending; ``times``: of all steps of the source.  ``notes`` say what was left out."""

    of: Snapshot | Trace
    label: str
    kind: str
    times: ManySteps
    steps: np.ndarray
    words: str
    notes: list[str] = field(default_factory=list)

    @classmethod
    def of_source(cls, source: Source | Trace | str | Path, text: str = "") -> Reading:
        """Raises MkvizError for words that name no steps, and for a source that has none of those."""
        if isinstance(source, str | Path):
            from mkviz.trace import Trace

            source = Trace.open(source)
        label, kind = source.label, source.kind
        of = source.snapshot() if hasattr(source, "snapshot") else source
        times = of_times(label, *times_of(of))
        steps, words = chosen(times, text)
        kept, notes = _newest(of, steps)
        return cls(of, label, kind, times, kept, words, notes)

    @cached_property
    def machine(self) -> Machine | None:
        return named_in(self.label)

    @cached_property
    def one(self) -> int | None:
        """The step for what looks at one: of those asked for the first whole one of median time among steps of the kind that
        most are of; None where each lost records."""
        times = of_times(self.label, self.times.times[np.isin(self.times.times["step"], self.steps)], self.times.graphs)
        return times.typical(next(iter(times.shapes))) if times.shapes else None

    @property
    def worst(self) -> int | None:
        """The slowest whole step of the kind that most steps of the source are of."""
        return _slowest(self.times)

    def snapshot_or_trace(self):
        """``of`` with the label that a snapshot does not carry."""
        return self.of if hasattr(self.of, "label") else _Labelled(self.of, self.label, self.kind)

    def only(self, text: str) -> Reading:
        """Other steps of the same.  Raises MkvizError as ``of_source`` does."""
        steps, words = chosen(self.times, text)
        kept, notes = _newest(self.of, steps)
        return Reading(self.of, self.label, self.kind, self.times, kept, words, notes)


@dataclass(frozen=True)
class _Labelled:
    """A source that stands still."""

    taken: Snapshot
    label: str
    kind: str

    @property
    def cut(self) -> str:
        return self.taken.cut

    def snapshot(self) -> Snapshot:
        return self.taken


def chosen(times: ManySteps, text: str) -> tuple[np.ndarray, str]:
    """The numbers of the steps that ``text`` names, ascending, and them in words."""
    numbers, text = np.unique(times.times["step"]), text.strip().lower()
    if not len(numbers):
        raise MkvizError("there are no steps yet", "a source that holds some")
    if text in ("", "all"):
        return numbers, f"all {len(numbers):,} steps" if len(numbers) > 1 else f"step {numbers[0]}, the only one"
    if text in ("worst", "median"):
        if not times.shapes:
            raise MkvizError(f"the {text} step cannot be told", "a source of which a step lost no record")
        step = _slowest(times) if text == "worst" else times.typical(next(iter(times.shapes)))
        return np.array([step]), f"step {step}, {'the slowest' if text == 'worst' else 'of median time'}"
    first, _, last = text.replace("–", "-").partition("-")
    try:
        low, high = int(first), int(last or first)
    except ValueError:
        raise MkvizError(f"steps {text!r}", RIGHT) from None
    found = numbers[(numbers >= low) & (numbers <= high)]
    if not len(found):
        raise MkvizError(f"there is no step {text}", f"one from {numbers[0]} to {numbers[-1]}")
    return found, f"step {found[0]}" if len(found) == 1 else f"{len(found):,} steps, {found[0]} to {found[-1]}"


def _slowest(times: ManySteps) -> int | None:
    if not times.shapes:
        return None
    rows = next(iter(times.shapes.values()))
    return int(times.times["step"][rows[np.argmax(times.times["ns"][rows])]])


def _newest(of: Snapshot | Trace, steps: np.ndarray) -> tuple[np.ndarray, list[str]]:
    """As many of the steps, counted from the last, as have MOST_RECORDS records (one at least), and words where not all do."""
    if hasattr(of, "lane_ptr"):
        number, count = of.steps["step"], of.lane_ptr[:, -1] - of.lane_ptr[:, 0]
    else:
        table = of.table("steps", ["step", "records"])
        number, count = (table[name].to_numpy().astype(np.int64) for name in ("step", "records"))
    order = np.argsort(number, kind="stable")[::-1]
    order = order[np.isin(number[order], steps)]
    fitting = max(1, int(np.searchsorted(np.cumsum(count[order]), MOST_RECORDS, "right")))
    kept = np.unique(number[order][:fitting])
    if len(kept) == len(steps):
        return steps, []
    return kept, [f"records are read of the newest {len(kept):,} of {len(steps):,} steps, {kept[0]} to {kept[-1]}"]
