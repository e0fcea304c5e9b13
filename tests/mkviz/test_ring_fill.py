"""Ring fill: readings by hand, held until the next, mean over the SMs that have one; words for those that have none."""

import numpy as np
import pytest

from mkviz import role_kernels, role_numpy
from mkviz.graph import GraphBuilder
from mkviz.protocols import StepInfo
from mkviz.record import EVENT, FLAG_BYTES_LAST
from mkviz.ring_fill import readings, ring_fill
from mkviz.schedule import Schedule
from mkviz.store import LiveStore

BOTH = pytest.mark.parametrize("kernels", [role_kernels, role_numpy], ids=["numba", "numpy"])


def store_of_readings(readings, end=1000):
    """``readings``: (lane, begin, sixteenths, flags) of tasks of 10 ns, in one step 0 ... ``end``."""
    builder = GraphBuilder("ring", ("load",))
    for _ in readings:
        builder.task("load", bytes=1)
    store = LiveStore("simulated", "simulated")
    store.graph(0, builder.build(), Schedule.from_lists([[], []]))
    rows = [
        (0, b, b, b, b + 10, b + 10, t, lane, 0xFFF, 0, fill, flags, 0) for t, (lane, b, fill, flags) in enumerate(readings)
    ]
    store.step(StepInfo(0, 0, 0, end), np.array(rows, EVENT))
    return store.snapshot()


@BOTH
def test_each_reading_holds_until_the_next(kernels):
    snapshot = store_of_readings([(0, 200, 8, 0), (0, 500, 0, FLAG_BYTES_LAST), (0, 700, 0, 0), (1, 400, 12, 0)])
    assert readings(snapshot, slice(None)).tolist() == [8, 0, -1, 12]  # the third took nothing from the ring
    fill = ring_fill(snapshot, 0, 1000, 10, range(2), kernels)
    assert fill.readings == 3 and fill.dx == 100
    # 200..400: 8/16 alone; 400..500: of 8/16 and 12/16; from 500: of 0 and 12/16, past the task at 700 that is no reading
    assert fill.mean == pytest.approx([np.nan, np.nan, 0.5, 0.5, 0.625, 0.375, 0.375, 0.375, 0.375, 0.375], nan_ok=True)
    assert ring_fill(snapshot, 0, 1000, 10, range(1, 2), kernels).mean[4:] == pytest.approx(np.full(6, 0.75))


@BOTH
def test_a_column_is_the_mean_over_its_time(kernels):
    snapshot = store_of_readings([(0, 250, 8, 0), (0, 275, 4, 0)], end=320)
    # 250..275: 8/16, 275..300: 4/16; nothing is claimed for 200..250; to the step's end at 320, and no further
    assert ring_fill(snapshot, 200, 400, 2, range(2), kernels).mean == pytest.approx([0.375, 0.25])
    assert np.isnan(ring_fill(snapshot, 320, 420, 2, range(2), kernels).mean).all()


def test_a_trace_without_readings_says_so():
    snapshot = store_of_readings([(0, 200, 0, 0), (1, 300, 0, 0)])
    fill = ring_fill(snapshot, 0, 1000, 4, range(2))
    assert fill.readings == 0 and np.isnan(fill.mean).all()
