"""Selection: which events of a trace are wanted, and which row groups cannot hold any of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from mkviz.errors import MkvizError
from mkviz.protocols import StepInfo

if TYPE_CHECKING:
    from mkviz.trace.reader import Trace


@dataclass(frozen=True, eq=False)
class Selection:
    """``steps`` and ``sms``: sorted i64[] or None (all); ``time``: (from, to) in ns or None; ``wanted`` says, per graph, which
    tasks have one of the ops, ``graph_of`` which graph each step ran (i64[n, 2] by step), both None for all ops."""

    steps: np.ndarray | None = None
    time: tuple[int, int] | None = None
    sms: np.ndarray | None = None
    wanted: dict[int, np.ndarray] | None = None
    graph_of: np.ndarray | None = None

    @classmethod
    def of(cls, trace: Trace, steps=None, time=None, sms=None, ops=None) -> Selection:
        """Raises MkvizError naming an argument that cannot be."""
        wanted = graph_of = None
        if ops is not None:
            names = {ops} if isinstance(ops, str) else set(ops)
            known = {op for graph, _ in trace.graphs.values() for op in graph.ops}
            if unknown := names - known:
                raise MkvizError(f"op {min(unknown)!r} is not in trace {trace.path}", f"one of {', '.join(sorted(known))}")
            wanted = {i: np.isin(g.op, [k for k, op in enumerate(g.ops) if op in names]) for i, (g, _) in trace.graphs.items()}
            table = trace.table("steps", ["step", "graph"])
            graph_of = np.stack([table["step"].to_numpy(), table["graph"].to_numpy().astype(np.int64)], axis=1)
            graph_of = graph_of[np.argsort(graph_of[:, 0])]
        return cls(_numbers("steps", steps), _window(time), _numbers("sms", sms), wanted, graph_of)

    def since(self, trace: Trace, step: int) -> Selection:
        """Only its steps from one on."""
        steps = np.sort(trace.table("steps", ["step"])["step"].to_numpy()) if self.steps is None else self.steps
        return replace(self, steps=steps[steps >= step])

    @property
    def everything(self) -> bool:
        return self.steps is None and self.time is None and self.sms is None and self.wanted is None

    def has_step(self, info: StepInfo) -> bool:
        """Whether a step belongs to it, by its number and its times."""
        if self.steps is not None and info.step not in self.steps:
            return False
        return self.time is None or (info.begin < self.time[1] and info.end >= self.time[0])

    def may_hold(self, group) -> bool:
        """False when the statistics of a Parquet row group say that none of its rows is wanted."""
        bounds = _bounds(group)
        for name, numbers in (("step", self.steps), ("sm", self.sms)):
            if numbers is not None and name in bounds:
                low, high = np.searchsorted(numbers, bounds[name][0]), np.searchsorted(numbers, bounds[name][1], "right")
                if low == high:
                    return False
        if self.time is not None and {"claim", "publish"} <= bounds.keys():
            return bounds["claim"][0] < self.time[1] and bounds["publish"][1] >= self.time[0]
        return True

    def may_span(self, group) -> bool:
        """The same for all steps from the first to the last of ``steps``."""
        low, high = _bounds(group).get("step", (self.steps[0], self.steps[-1]))
        return low <= self.steps[-1] and high >= self.steps[0]

    def mask(self, events: np.ndarray) -> np.ndarray | None:
        """bool[k] of the events that are wanted; None: all."""
        masks = []
        if self.steps is not None:
            masks.append(np.isin(events["step"], self.steps))
        if self.time is not None:
            masks.append((events["claim"] < self.time[1]) & (events["publish"] >= self.time[0]))
        if self.sms is not None:
            masks.append(np.isin(events["sm"], self.sms))
        if self.wanted is not None:
            masks.append(self._has_op(events))
        return np.logical_and.reduce(masks) if masks else None

    def _has_op(self, events: np.ndarray) -> np.ndarray:
        at = np.searchsorted(self.graph_of[:, 0], events["step"])
        graph = np.append(self.graph_of[:, 1], -1)[at]
        out = np.zeros(len(events), bool)
        for i, wanted in self.wanted.items():
            mine = graph == i
            out[mine] = wanted[events["task"][mine]]
        return out


def _bounds(group) -> dict[str, tuple[int, int]]:
    """{column: (least, most)} of a Parquet row group, of those that have statistics."""
    bounds = {}
    for i in range(group.num_columns):
        column = group.column(i)
        if column.statistics is not None and column.statistics.has_min_max:
            bounds[column.path_in_schema] = column.statistics.min, column.statistics.max
    return bounds


def _numbers(name: str, value) -> np.ndarray | None:
    if value is None:
        return None
    if isinstance(value, (int, np.integer)):
        value = [value]
    elif not isinstance(value, Iterable) or isinstance(value, str):
        raise MkvizError(f"{name} {value!r}", "a number, a range or a sequence of numbers")
    numbers = np.asarray(list(value) if not isinstance(value, np.ndarray) else value)
    if numbers.size and not np.issubdtype(numbers.dtype, np.integer):
        raise MkvizError(f"{name} {value!r}", "a number, a range or a sequence of numbers")
    return np.unique(numbers.astype(np.int64))


def _window(value) -> tuple[int, int] | None:
    if value is None:
        return None
    try:
        begin, end = (int(v) for v in value)
    except (TypeError, ValueError):
        raise MkvizError(f"time {value!r}", "a pair (from, to) in ns") from None
    if end < begin:
        raise MkvizError(f"time {value!r} ends before it begins", "a pair (from, to) in ns")
    return begin, end
