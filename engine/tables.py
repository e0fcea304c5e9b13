"""Tables: the task tables of all step shapes, built ahead, so that no request waits for one while others run."""

from __future__ import annotations

import sys
import time

from engine.builder import StepShape
from engine.plan import Backend

SILENT = 10.0  # seconds after which whoever waits is told how far it is


def build_tables(backend: Backend, keys: int) -> None:
    """Have ``backend`` build those of its steps of up to ``keys`` keys; tells stderr how far it is where that takes long."""
    shapes, told = StepShape.up_to(backend.max_rows, keys), time.monotonic()
    for done, shape in enumerate(shapes, 1):
        backend.program(shape)
        if time.monotonic() - told > SILENT:
            print(f"task tables: {done} of {len(shapes)}", file=sys.stderr, flush=True)
            told = time.monotonic()
