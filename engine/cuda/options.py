"""Options: what a cuda backend may be opened with, checked before there is a device."""

from __future__ import annotations

from engine.cuda import abi
from mkviz.errors import MkvizError
from mkviz.policies import POLICIES

POLLS = 1 << 32  # the kernel counts them in a word


def check_options(policy: str, trace: int, rows: int | None, ring_capacity: int | None, pages: int, max_steps: int,
                  poll_budget: int) -> None:  # fmt: skip
    """Raises MkvizError naming the option, its value and what would be right; see :class:`engine.cuda.backend.CudaBackend`."""
    owning = [name for name in POLICIES if name != "claimed"]  # the kernel walks lists that the host has dealt out
    for name, value, ok, right in (
        ("trace", trace, trace in (0, 1, 2), "0 (off), 1 (a record a task) or 2 (with the phases inside)"),
        ("rows", rows, rows in (*abi.BUCKETS, None), f"one of {', '.join(map(str, abi.BUCKETS))}"),
        ("ring_capacity", ring_capacity, ring_capacity is None or _ring(ring_capacity), "a power of two, at least 4"),
        ("policy", policy, not policy or policy in owning, f"one of {', '.join(owning)} on the cuda backend"),
        ("pages", pages, pages >= 1, "at least 1"),
        ("max_steps", max_steps, max_steps >= 1, "at least 1"),
        ("poll_budget", poll_budget, 1 <= poll_budget < POLLS, f"1 to {POLLS - 1:,} polls of a wait"),
    ):
        if not ok:
            raise MkvizError(f"{name}: {value!r}", right)


def _ring(capacity: int) -> bool:
    return capacity >= 4 and not capacity & (capacity - 1)
