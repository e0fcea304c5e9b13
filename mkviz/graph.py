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
ALL = -1  # need of a wait for every arrival


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
    """Collects counters and tasks, one by one or many alike at once, and freezes them into a :class:`Graph`."""

    def __init__(self, name: str, ops: tuple[str, ...] | list[str], meta: dict | None = None):
        self.name, self.ops, self.meta = name, tuple(ops), dict(meta or {})
        self._op_index = {op: i for i, op in enumerate(self.ops)}
        self._counters: list[str] = []
        self._count = 0
        # parts of three tables, each an array or a list of tuples: a task's op, layer, slot, tile, bytes, flops; a wait's task,
        # counter, need; a raise's task, counter
        self._rows, self._waits, self._raises = [[]], [[]], [[]]

    def counter(self, name: str) -> int:
        self._counters.append(name)
        return len(self._counters) - 1

    def task(self, op: str, *, layer: int = -1, slot: int = -1, tile: int = -1, bytes: int = 0, flops: int = 0,
             waits: list | tuple = (), raises: list | tuple = ()) -> int:  # fmt: skip
        """Add a task and return its id.  ``waits`` holds counters or (counter, need); a bare counter needs every arrival."""
        t = self._count
        self._rows[-1].append((self._index(op), layer, slot, tile, bytes, flops))
        self._waits[-1] += [(t, *w) if isinstance(w, tuple) else (t, w, ALL) for w in waits]
        self._raises[-1] += [(t, c) for c in raises]
        self._count += 1
        return t

    def tasks(self, op: str, n: int, *, layer: int = -1, slot=-1, tile=0, bytes=0, flops=0,
              waits: list | tuple = (), raises: list | tuple = ()) -> int:  # fmt: skip
        """Add ``n`` tasks and return the first one's id.  Slot, bytes, flops and counters are of all of them, or arrays [n] of
        one each; tiles count from ``tile`` on, or are such an array."""
        first, rows = self._count, np.empty((n, 6), np.int64)
        tiles = tile + np.arange(n) if np.ndim(tile) == 0 else tile
        for i, value in enumerate((self._index(op), layer, slot, tiles, bytes, flops)):
            rows[:, i] = value
        pairs = [w if isinstance(w, tuple) else (w, ALL) for w in waits]
        self._rows += [rows, []]
        self._waits += [_table(first, n, pairs, 3), []]
        self._raises += [_table(first, n, [(c,) for c in raises], 2), []]
        self._count += n
        return first

    def _index(self, op: str) -> int:
        if op not in self._op_index:
            raise MkvizError(f"graph {self.name}: unknown op {op!r}", f"one of {', '.join(self.ops)}")
        return self._op_index[op]

    def build(self) -> Graph:
        n = self._count
        if n >= MAX_TASKS:
            raise MkvizError(f"graph {self.name}: {n} tasks", f"a record holds task ids below {MAX_TASKS}")
        rows, waits, raises = (
            np.concatenate([np.array(part, np.int64).reshape(-1, width) for part in parts])
            for parts, width in ((self._rows, 6), (self._waits, 3), (self._raises, 2))
        )
        arrivals = np.bincount(raises[:, 1], minlength=len(self._counters))
        need = np.where(waits[:, 2] == ALL, arrivals[waits[:, 1]], waits[:, 2])

        def ptr(of_task):
            out = np.zeros(n + 1, np.int32)
            np.cumsum(np.bincount(of_task, minlength=n), out=out[1:])
            return out

        return Graph(
            self.name, self.ops, rows[:, 0].astype(np.uint8), rows[:, 1].astype(np.int16), rows[:, 2].astype(np.int16),
            rows[:, 3].astype(np.int32), rows[:, 4].copy(), rows[:, 5].copy(), ptr(waits[:, 0]), waits[:, 1].astype(np.int32),
            need.astype(np.uint32), ptr(raises[:, 0]), raises[:, 1].astype(np.int32), tuple(self._counters), self.meta,
        )  # fmt: skip


def _table(first: int, n: int, entries: list[tuple], width: int) -> np.ndarray:
    """i64[n * entries, width]: the task, then the entry's values, task by task."""
    out = np.empty((n, len(entries), width), np.int64)
    out[:, :, 0] = np.arange(first, first + n)[:, None]
    for i, values in enumerate(entries):
        for k, value in enumerate(values, 1):
            out[:, i, k] = value
    return out.reshape(-1, width)
