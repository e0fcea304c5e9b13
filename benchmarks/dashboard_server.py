"""The server that benchmarks/dashboard.py measures, as a process of its own: the page over made-up steps.

    python benchmarks/dashboard_server.py PORT STEPS TASKS     a source of STEPS steps that has ended
    python benchmarks/dashboard_server.py PORT live TASKS      one that gets ten steps a second, in a store of 128 MB

132 lanes, ten ops, log-normal durations of 0.5 to 20 µs, a tenth of the tasks after a wait, TASKS a step.  Times are made up,
and the label says so: what is measured is the page, not them.
"""

from __future__ import annotations

import sys
import threading
import time

import numpy as np
import panel as pn

from mkviz.dashboard.hub import Hub
from mkviz.dashboard.page import page
from mkviz.graph import GraphBuilder
from mkviz.protocols import StepInfo
from mkviz.record import EVENT
from mkviz.schedule import Schedule
from mkviz.store import LiveStore

LANES, OPS = 132, tuple(f"op {k}" for k in range(10))
LIVE_BYTES, LIVE_HZ = 128 << 20, 10


class Steps:
    """Made-up steps of ``tasks`` tasks, written one by one to a store."""

    def __init__(self, tasks: int, max_bytes: int):
        rng = np.random.default_rng(0)
        builder = GraphBuilder(f"{tasks} made-up tasks", OPS)
        for task in range(tasks):
            builder.task(OPS[task * 7 % len(OPS)], layer=task * 40 // tasks, bytes=16384)
        lists = [list(range(lane, tasks, LANES)) for lane in range(LANES)]
        self.store = LiveStore("simulated: made-up times", "simulated", max_bytes)
        self.store.graph(0, builder.build(), Schedule.from_lists(lists))
        self._events, self._clock, self.count = np.zeros(tasks, EVENT), 0, 0
        work = np.clip(rng.lognormal(8, 0.8, tasks), 500, 20_000).astype(np.int64)
        wait = np.where(rng.random(tasks) < 0.1, rng.integers(500, 8000, tasks), 0)
        for lane, ids in enumerate(lists):
            end = np.cumsum(work[ids] + wait[ids] + 100)
            lane_events = self._events[ids]
            lane_events["task"], lane_events["sm"], lane_events["end"] = ids, lane, end
            lane_events["begin"] = end - work[ids]
            lane_events["ready"] = lane_events["claim"] = lane_events["begin"] - 50
            lane_events["publish"] = end + 50
            self._events[ids] = lane_events
        self._length = int(self._events["publish"].max())

    def write(self) -> None:
        events = self._events.copy()
        for name in ("claim", "ready", "begin", "end", "publish"):
            events[name] += self._clock
        events["step"] = self.count
        self.store.step(StepInfo(self.count, 0, self._clock, self._clock + self._length), events)
        self._clock += self._length + 5000
        self.count += 1

    def write_on(self) -> None:
        due = time.monotonic()
        while True:
            self.write()
            due += 1 / LIVE_HZ
            time.sleep(max(0, due - time.monotonic()))


def main() -> None:
    port, steps, tasks = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    made = Steps(tasks, LIVE_BYTES if steps == "live" else 2 << 30)
    if steps == "live":
        threading.Thread(target=made.write_on, daemon=True).start()
    else:
        for _ in range(int(steps)):
            made.write()
        made.store.close()
    hub = Hub(openers={})
    hub.add_source("made-up steps", made.store)
    pn.serve({"/": lambda: page(hub)}, port=port, show=False, websocket_origin=f"localhost:{port}")


if __name__ == "__main__":
    main()
