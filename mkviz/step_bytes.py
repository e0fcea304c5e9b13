"""Step bytes: what the tasks of a step read.  Its graph counts all the keys and expert slots that a step of it may have."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from mkviz.kept import kept_with_graph

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mkviz.graph import Graph
    from mkviz.protocols import StepInfo
    from mkviz.trace import Trace

TOLD = {"rows": ["step", "position"], "routes": ["step", "layer", "slot", "rows"]}


def by_op(graph: Graph, name: str) -> dict[str, float]:
    """By op, the number that a graph's meta has under a name.  Meta is free JSON: what has another form tells nothing."""
    said = graph.meta.get(name)
    return {op: n for op, n in said.items() if isinstance(n, int | float) and n > 0} if isinstance(said, dict) else {}


def share_of_keys(positions: list[int], block: float, rows: int = 1) -> float:
    """The keys that rows at these positions have, over those of the blocks that theirs lie in; 1 where no position is known.
    ``rows`` share tasks, which are counted once, for the longest of them: each reads its own, so that it may be above 1."""
    keys = [position + 1 for position in positions if position >= 0]
    longest = (max(keys[first : first + rows]) for first in range(0, len(keys), rows))
    return sum(keys) / sum(-(-n // block) * block for n in longest) if keys else 1.0


class Parts:
    """Of a graph.  ``part`` u16[T]: tasks of one part read the same share of what the graph counts for them; of part 0 all.

    - of an op in ``meta["slot_bytes"]`` that share of bytes is of its layer's slots, of which a step reads those that its
      routes gave rows to;
    - ops of ``meta["keys"]`` are counted for blocks of as many keys, of which each row's last block has fewer; where a task has
      several rows (``meta["task_rows"]``, else one), each of them reads its own and the task is counted for one.
    """

    def __init__(self, graph: Graph):
        self.part, self._rules = np.zeros(len(graph), np.uint16), []
        self._bytes, ops = graph.bytes, np.array(graph.ops)
        rows = by_op(graph, "task_rows")
        for op, block in by_op(graph, "keys").items():
            self._rules.append(((block, max(1, int(rows.get(op, 1)))), None))
            self.part[ops[graph.op] == op] = len(self._rules)
        for op, of_slots in by_op(graph, "slot_bytes").items():
            mine = ops[graph.op] == op
            for layer in np.unique(graph.layer[mine]).tolist():
                slots = len(np.unique(graph.slot[(graph.layer == layer) & (graph.slot >= 0)]))
                if slots:
                    self._rules.append((None, (layer, min(1.0, of_slots), slots)))
                    self.part[mine & (graph.layer == layer)] = len(self._rules)

    def __len__(self) -> int:
        return len(self._rules) + 1

    def shares(self, positions: list[int], slots: Iterable[tuple[int, int]]) -> np.ndarray:
        """f64[len(self)]: of a step, by the positions of its rows and by the (layer, slot) pairs, each once, that had rows; all
        of it where a step has none of these."""
        out, used = np.ones(len(self)), Counter(layer for layer, _ in slots)
        for i, (of_keys, of_layer) in enumerate(self._rules, 1):
            if of_layer is None:
                out[i] = share_of_keys(positions, *of_keys)
            elif there := used[of_layer[0]]:
                _, of_slots, counted = of_layer
                out[i] = 1 - of_slots * max(0.0, 1 - there / counted)
        return out

    def bytes(self, shares: np.ndarray) -> np.ndarray:
        """i64[T]"""
        return np.rint(self._bytes * shares[self.part]).astype(np.int64)


@kept_with_graph
def parts_of(graph: Graph) -> Parts:
    return Parts(graph)


def shares_of(parts: Parts, info: StepInfo) -> np.ndarray:
    """``Parts.shares`` of a step."""
    slots = {(layer, slot) for layer, slot, _, rows in info.routes if rows}  # older recordings do not say how many rows
    return parts.shares([row.position for row in info.rows], slots)


def step_bytes(graph: Graph, info: StepInfo) -> np.ndarray:
    """i64[T]: what each task of a step reads, if it runs."""
    parts = parts_of(graph)
    return graph.bytes if len(parts) == 1 else parts.bytes(shares_of(parts, info))


class TraceBytes:
    """The same of all steps of a trace, whose rows and routes it reads once, as columns; of graphs without parts neither."""

    def __init__(self, trace: Trace, graphs: Iterable[Graph]):
        self._told: dict[str, np.ndarray] | None = None
        if all(len(parts_of(graph)) == 1 for graph in graphs):
            return
        rows, routes = (trace.table(name, columns) for name, columns in TOLD.items())
        rows, routes = ({k: t[k].to_numpy().astype(np.int64) for k in t.column_names} for t in (rows, routes))
        routes = np.unique(np.stack([routes[k][routes["rows"] > 0] for k in ("step", "layer", "slot")], axis=1), axis=0)
        order = np.argsort(rows["step"], kind="stable")
        self._told = {"rows": rows["step"][order], "positions": rows["position"][order], "routes": routes}

    def of(self, step: int, graph: Graph) -> np.ndarray:
        """i64[T]: of a step (its number) of a graph."""
        parts, told = parts_of(graph), self._told
        if told is None or len(parts) == 1:
            return graph.bytes
        rows = slice(*np.searchsorted(told["rows"], [step, step + 1]))
        routes = slice(*np.searchsorted(told["routes"][:, 0], [step, step + 1]))
        return parts.bytes(parts.shares(told["positions"][rows].tolist(), told["routes"][routes, 1:].tolist()))
