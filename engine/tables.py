"""Tables: which task tables an inter-token budget has built before the first request, and which when nobody waits.

A table serves all shorter steps of its rows too; what such a step does not use, its tasks skip.  So at opening the table of the
longest steps is built for each number of rows, and a step takes the nearest there is.  The others follow one by one while no
request is there: building takes about a second of a large model, and no thread beside the steps, as it would hold them up.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable

from engine.builder import StepShape
from engine.plan import Backend

SILENT = 10.0  # seconds after which whoever waits is told how far it is


def build_tables(backend: Backend, keys: int) -> list[StepShape]:
    """Have ``backend`` build what serves all of its steps of up to ``keys`` keys, and take from now on what is built.  Returns
    the shapes that are left, those of the fewest rows first.  Tells stderr how far it is where that takes long."""
    shapes, told = StepShape.up_to(backend.max_rows, keys), time.monotonic()
    first = list({shape.rows: shape for shape in shapes}.values())  # the longest of each
    for done, shape in enumerate(first, 1):
        backend.program(shape)
        if time.monotonic() - told > SILENT:
            print(f"task tables: {done} of {len(first)}", file=sys.stderr, flush=True)
            told = time.monotonic()
    backend.builds = False
    return [shape for shape in shapes if shape not in first]


def nearest(shape: StepShape, built: Iterable[StepShape]) -> StepShape:
    """Of what is built, what serves steps of ``shape`` with the fewest splits to skip; ``shape`` itself where nothing does."""
    return min((s for s in built if s.rows == shape.rows and s.splits >= shape.splits), key=lambda s: s.splits, default=shape)
