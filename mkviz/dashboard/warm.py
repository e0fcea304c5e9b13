"""Warm-up: compile the level-of-detail loops on a thread, once per process, so that the first frame does not wait for it."""

from __future__ import annotations

import functools
import threading

import numpy as np


@functools.cache
def warm_up() -> threading.Thread:
    thread = threading.Thread(target=_compile, name="mkviz-warm-up", daemon=True)
    thread.start()
    return thread


def _compile() -> None:
    from mkviz import lod, ring_fill, roles
    from mkviz.graph import GraphBuilder
    from mkviz.protocols import StepInfo
    from mkviz.record import EVENT
    from mkviz.schedule import Schedule
    from mkviz.store import LiveStore

    builder = GraphBuilder("warm-up", ["op"])
    builder.task("op")
    store = LiveStore()
    store.graph(0, builder.build(), Schedule.from_lists([[0]]))
    store.step(StepInfo(0, 0, 0, 10), np.zeros(1, EVENT))
    snapshot = store.snapshot()
    tables = lod.GraphTables(snapshot)
    lod.image_frame(snapshot, tables, 0.0, 10.0, 4, tables.op, np.ones(1))
    lod.rect_frame(snapshot, tables, 0.0, 10.0, 4)
    lod.summary(snapshot, tables, 0.0, 10.0)
    ring_fill.ring_fill(snapshot, 0.0, 10.0, 4, range(1))
    roles.role_frame(snapshot, tables, 0.0, 10.0, 4, range(1), tables.op, np.ones(1))
