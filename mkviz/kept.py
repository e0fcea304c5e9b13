"""What is computed from a graph once, and kept as long as the graph is."""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, TypeVar
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from collections.abc import Callable

    from mkviz.graph import Graph

T = TypeVar("T")


def kept_with_graph(compute: Callable[[Graph], T]) -> Callable[[Graph], T]:
    """``compute`` of a graph, which is called once for each.  Everybody gets the same object: nobody may change it."""
    kept: WeakKeyDictionary[Graph, T] = WeakKeyDictionary()

    @wraps(compute)
    def of(graph: Graph) -> T:
        if graph not in kept:
            kept[graph] = compute(graph)
        return kept[graph]

    return of
