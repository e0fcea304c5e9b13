"""Progress: how far a long opening is, on stderr."""

from __future__ import annotations

import sys

LEAST = 1_000_000_000  # bytes below which nobody waits long enough to be told


class Progress:
    """Counts bytes of ``total`` and prints a line at each tenth; prints nothing for less than a gigabyte."""

    def __init__(self, words: str, total: int):
        self.words, self.total, self.done = words, total, 0

    def add(self, count: int) -> None:
        before, self.done = self.done, self.done + count
        if self.total >= LEAST and self.done * 10 // self.total > before * 10 // self.total:
            print(f"{self.words}: {self.done / 1e9:.1f} of {self.total / 1e9:.1f} GB", file=sys.stderr, flush=True)
