"""A step of three tasks on two lanes, small enough to work out by hand."""

import numpy as np

from mkviz import lod
from mkviz.dashboard.scene import Look, Scene
from mkviz.graph import GraphBuilder
from mkviz.protocols import StepInfo
from mkviz.record import EVENT, NO_WAIT
from mkviz.schedule import Schedule
from mkviz.store import LiveStore


def two_lanes():
    """SM 0: qkv 0..400.  SM 1: qkv 0..300, then waits for both qkv until 420, attention 450..900.  The step ends at 1000."""
    builder = GraphBuilder("two", ("qkv", "attention"))
    done = builder.counter("qkv of layer 3")
    builder.task("qkv", layer=3, tile=0, raises=[done])
    builder.task("qkv", layer=3, tile=1, raises=[done])
    builder.task("attention", layer=3, bytes=4096, waits=[done])
    store = LiveStore("simulated", "simulated")
    store.graph(0, builder.build(), Schedule.from_lists([[0], [1, 2]]))
    events = np.zeros(3, EVENT)
    rows = [(0, 0, 0, 0, 400, 410, NO_WAIT), (1, 1, 0, 0, 300, 310, NO_WAIT), (2, 1, 420, 450, 900, 910, 0)]
    for event, (task, sm, ready, begin, end, publish, last) in zip(events, rows, strict=True):
        event["task"], event["sm"], event["last_wait"], event["step"] = task, sm, last, 7
        event["claim"] = event["ready"] = ready + 5000
        event["begin"], event["end"], event["publish"] = begin + 5000, end + 5000, publish + 5000
    store.step(StepInfo(7, 0, 5000, 6000), events)
    snapshot = store.snapshot()
    return Scene(snapshot, lod.GraphTables(snapshot), Look(), 0.0, 1000.0, 100)
