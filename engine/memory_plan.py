"""MemoryPlan: what opening a model will take, told and checked before anything of it is taken."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass

from engine.progress import LEAST
from mkviz.errors import MkvizError


@dataclass(frozen=True)
class MemoryPlan:
    """``parts``: purpose -> bytes of memory of ``place`` (as in "host memory"); ``free`` bytes of it; ``mapped`` bytes of files
    that are read in place, which need no memory of their own."""

    place: str
    parts: dict[str, int]
    free: int
    mapped: int = 0

    @property
    def needed(self) -> int:
        return sum(self.parts.values())

    def __str__(self) -> str:
        parts = ", ".join(f"{name} {_gb(count)}" for name, count in self.parts.items() if count)
        mapped = f"; weights {_gb(self.mapped)} mapped from their files" if self.mapped else ""
        return f"{self.place}: {_gb(self.needed)} needed ({parts}), {_gb(self.free)} free{mapped}"

    def enter(self, remedy: str) -> None:
        """Print the plan to stderr where it is about a gigabyte or more.  Raises MkvizError when more is needed than free."""
        if self.needed > self.free:
            raise MkvizError(str(self), remedy)
        if self.needed + self.mapped >= LEAST:
            print(self, file=sys.stderr, flush=True)


def _gb(count: int) -> str:
    return f"{count / 1e9:.2f} GB"


def free_host_memory() -> int:
    """Bytes that the system can hand out without swapping; where it does not say (not Linux), all that it has."""
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            return next(int(line.split()[1]) * 1024 for line in file if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
