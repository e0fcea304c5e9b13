"""Schedule: which SM runs which tasks in which order."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, eq=False)
class Schedule:
    """Lists of owned tasks per SM, and one queue from which SMs claim.

    SM s first walks ``order[order_ptr[s]:order_ptr[s+1]]`` in order, then claims from ``queue`` (in queue order, one ticket
    per claim) until it is empty.  ``load_order`` has the shape of ``order`` and says in which order the loader puts each
    SM's weights into the shared ring; it must equal the order of consumption, and the validator says so when it does not.
    """

    sms: int
    order_ptr: np.ndarray  # i32[sms + 1]
    order: np.ndarray  # i32[owned tasks]
    queue: np.ndarray  # i32[claimed tasks]
    load_order: np.ndarray  # i32[owned tasks]
    policy: str

    @classmethod
    def from_lists(cls, lists: list[list[int]], queue: list[int] | np.ndarray = (), policy: str = "lists") -> Schedule:
        ptr = np.zeros(len(lists) + 1, np.int32)
        np.cumsum([len(x) for x in lists], out=ptr[1:])
        order = np.array([t for x in lists for t in x], np.int32)
        return cls(len(lists), ptr, order, np.asarray(queue, np.int32).reshape(-1), order.copy(), policy)

    def tasks_of(self, sm: int) -> np.ndarray:
        return self.order[self.order_ptr[sm] : self.order_ptr[sm + 1]]

    def sm_of(self, tasks: int) -> np.ndarray:
        """i16[tasks]: the owning SM of each task, -1 where it is claimed at run time."""
        out = np.full(tasks, -1, np.int16)
        out[self.order] = np.repeat(np.arange(self.sms, dtype=np.int16), np.diff(self.order_ptr))
        return out
