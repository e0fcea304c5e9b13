"""Simulations: what an open source would look like on a machine that is not here, offered beside it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING

from mkviz.machine import H200
from mkviz.simulated import SimulatedSource

if TYPE_CHECKING:
    from mkviz.graph import Graph
    from mkviz.protocols import Source


def simulations(name: str, source: Source, tiled: Callable[[Graph, int], Graph] | None = None) -> dict[str, Callable]:
    """Functions that open the simulations of a source, by the name a page offers them under: ``simulated on H200: demo`` for
    ``live: demo``.  None of what is such a simulation itself."""
    if isinstance(source, SimulatedSource):
        return {}
    of = name.partition(": ")[2] or name
    return {
        f"simulated on {H200.name}{words}: {of}": functools.partial(
            SimulatedSource, source, H200, barrier_per_op=barrier_per_op, tiled=tiled
        )
        for words, barrier_per_op in (("", False), (", a kernel per op", True))
    }
