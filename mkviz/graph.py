"""Graph: the tasks and counters of one step, as plain arrays.

A task waits until each of its counters has had ``need`` arrivals in this step, works, and then raises counters.
Nothing here knows what an op computes: the engine binds meaning to tasks, anyone else's kernel may do likewise.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from mkviz.errors import MkvizError

MAX_TASKS = 1 << 22  # a record holds 22 bits of task id


@dataclass(frozen=True, eq=False)
class Graph:
    """Tasks and counters of a step.

    Arrays over T tasks: ``op`` u8 (index into ``ops``), ``layer`` i16 (-1: none), ``slot`` i16 (rank of the active
    expert, -1: not routed), ``tile`` i32, ``bytes`` i64 (read from device memory), ``flops`` i64.
    Waits and raises are CSR: task t waits on ``wait_counter[wait_ptr[t]:wait_ptr[t+1]]`` until each has ``wait_need``
    arrivals of this step, and raises ``raise_counter[raise_ptr[t]:raise_ptr[t+1]]`` once each.
    ``counters`` names the C counters.  ``meta`` is free JSON (model, rows, ...), kept in traces.
    """

    name: str
    ops: tuple[str, ...]
    op: np.ndarray
    layer: np.ndarray
    slot: np.ndarray
    tile: np.ndarray
    bytes: np.ndarray
    flops: np.ndarray
    wait_ptr: np.ndarray
    wait_counter: np.ndarray
    wait_need: np.ndarray
    raise_ptr: np.ndarray
    raise_counter: np.ndarray
    counters: tuple[str, ...]
    meta: dict = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.op)

    @cached_property
    def arrivals(self) -> np.ndarray:
        """u32[C]: how often each counter is raised in one step."""
        return np.bincount(self.raise_counter, minlength=len(self.counters)).astype(np.uint32)

    def waits(self, task: int) -> list[tuple[int, int]]:
        """[(counter, need)] of one task."""
        s = slice(self.wait_ptr[task], self.wait_ptr[task + 1])
        return list(zip(self.wait_counter[s].tolist(), self.wait_need[s].tolist(), strict=True))

    def raises(self, task: int) -> list[int]:
        return self.raise_counter[self.raise_ptr[task] : self.raise_ptr[task + 1]].tolist()

    @cached_property
    def producers(self) -> tuple[np.ndarray, np.ndarray]:
        """CSR (ptr i64[C+1], task i32[]) : which tasks raise each counter, ascending."""
        tasks = np.repeat(np.arange(len(self), dtype=np.int32), np.diff(self.raise_ptr))
        order = np.argsort(self.raise_counter, kind="stable")
        ptr = np.zeros(len(self.counters) + 1, np.int64)
        np.cumsum(self.arrivals, out=ptr[1:])
        return ptr, tasks[order]

    def label(self, task: int) -> str:
        """``expert_up · layer 3 · slot 1 · tile 7`` (parts that do not apply are left out)."""
        parts = [self.ops[self.op[task]]]
        for word, value in (("layer", self.layer[task]), ("slot", self.slot[task]), ("tile", self.tile[task])):
            if value >= 0:
                parts.append(f"{word} {int(value)}")
        return " · ".join(parts)

    @cached_property
    def hash(self) -> str:
        """Identity of the structure (not of the name): 16 hex digits."""
        h = hashlib.sha256(json.dumps([self.ops, self.counters]).encode())
        for a in (self.op, self.layer, self.slot, self.tile, self.bytes, self.flops, self.wait_ptr, self.wait_counter,
                  self.wait_need, self.raise_ptr, self.raise_counter):  # fmt: skip
            h.update(np.ascontiguousarray(a).tobytes())
        return h.hexdigest()[:16]


class GraphBuilder:
    """Collects counters and tasks one by one and freezes them into a :class:`Graph`."""

    def __init__(self, name: str, ops: tuple[str, ...] | list[str], meta: dict | None = None):
        self.name, self.ops, self.meta = name, tuple(ops), dict(meta or {})
        self._op_index = {op: i for i, op in enumerate(self.ops)}
        self._counters: list[str] = []
        self._rows: list[tuple[int, int, int, int, int, int]] = []
        self._waits: list[list[tuple[int, int | None]]] = []
        self._raises: list[list[int]] = []

    def counter(self, name: str) -> int:
        self._counters.append(name)
        return len(self._counters) - 1

    def task(self, op: str, *, layer: int = -1, slot: int = -1, tile: int = -1, bytes: int = 0, flops: int = 0,
             waits: list | tuple = (), raises: list | tuple = ()) -> int:  # fmt: skip
        """Add a task and return its id.  ``waits`` holds counters or (counter, need); a bare counter needs every arrival."""
        if op not in self._op_index:
            raise MkvizError(f"graph {self.name}: unknown op {op!r}", f"one of {', '.join(self.ops)}")
        self._rows.append((self._op_index[op], layer, slot, tile, bytes, flops))
        self._waits.append([w if isinstance(w, tuple) else (w, None) for w in waits])
        self._raises.append(list(raises))
        return len(self._rows) - 1

    def build(self) -> Graph:
        n = len(self._rows)
        if n >= MAX_TASKS:
            raise MkvizError(f"graph {self.name}: {n} tasks", f"a record holds task ids below {MAX_TASKS}")
        rows = np.array(self._rows, np.int64).reshape(n, 6)
        raise_counter = np.array([c for r in self._raises for c in r], np.int32)
        arrivals = np.bincount(raise_counter, minlength=len(self._counters))
        flat = [(c, arrivals[c] if need is None else need) for w in self._waits for c, need in w]
        waits = np.array(flat, np.int64).reshape(len(flat), 2)

        def ptr(lists):
            out = np.zeros(n + 1, np.int32)
            np.cumsum([len(x) for x in lists], out=out[1:])
            return out

        return Graph(
            self.name, self.ops, rows[:, 0].astype(np.uint8), rows[:, 1].astype(np.int16), rows[:, 2].astype(np.int16),
            rows[:, 3].astype(np.int32), rows[:, 4], rows[:, 5], ptr(self._waits), waits[:, 0].astype(np.int32),
            waits[:, 1].astype(np.uint32), ptr(self._raises), raise_counter, tuple(self._counters), self.meta,
        )  # fmt: skip
