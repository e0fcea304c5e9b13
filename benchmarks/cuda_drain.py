"""Draining live: decode at full speed for a while and check what arrives.

    python benchmarks/cuda_drain.py [--seconds 60] [--layers 6] [--context 8192]

Says how many whole steps a second the drain delivers while the kernel runs, whether a delivered step has a hole, whether
received + lost = written, whether heads advance inside a launch, and how far the clocks of the SMs are apart.
"""

from __future__ import annotations

import argparse
import time
from itertools import pairwise

import numpy as np
from cuda_tracing import make_plan
from evidence import gpu, write

from engine.cuda.backend import CudaBackend
from engine.shapes import shape
from mkviz.drain import Drain


class Collector:
    """Counts delivered steps, and holes: tasks of the graph without exactly one record."""

    def __init__(self):
        self.steps, self.holes, self.disorder, self.keep = 0, 0, 0, None

    def graph(self, *_): ...
    def token(self, *_): ...
    def request(self, *_): ...
    def lost(self, *_): ...
    def close(self, *_): ...

    def step(self, info, events):
        self.steps += 1
        self.holes += not np.array_equal(np.sort(events["task"]), np.arange(len(events))) or len(events) != self.tasks
        order = [events[n] for n in ("claim", "ready", "begin", "end", "publish")]
        self.disorder += sum(int((a > b).sum()) for a, b in pairwise(order))
        self.keep = events


def main() -> None:
    a = argparse.ArgumentParser()
    a.add_argument("--seconds", type=float, default=60)
    a.add_argument("--layers", type=int, default=6)
    a.add_argument("--context", type=int, default=8192)
    args = a.parse_args()
    config = shape("north-mini-code", args.layers, max_positions=args.context + 1024)
    plan = make_plan(1, args.context)
    backend = CudaBackend(config, None, pages=plan.pages.size, trace=1)
    backend.run(plan, 4)
    drain = Drain(backend.rings.link(), expects_meta=False)
    sink = Collector()
    graph, schedule = backend.graphs[0]
    sink.tasks = len(graph)
    drain.add_sink(sink)
    drain.graph(0, graph, schedule)
    launches, advanced, inside, begin, first = 0, 0, 0, time.monotonic(), backend.serial
    link = backend.rings.link()
    while time.monotonic() - begin < args.seconds:
        backend.start(plan, backend.max_steps)
        launches += 1
        if launches % 50 == 1:  # heads seen to move while the kernel runs
            one = link.read_live()["head"].sum()
            time.sleep(0.005)
            two = link.read_live()["head"].sum()
            running = not backend._stream.done
            inside, advanced = inside + running, advanced + bool(running and two > one)
        while not backend._stream.done:
            drain.poll()
        backend.finish()
    seconds = time.monotonic() - begin
    stats = drain.close()
    written = int(link.read_live()["head"].sum())
    figures = {
        "seconds": round(seconds, 1), "launches": launches, "steps_run": backend.serial - first, "tasks_per_step": len(graph),
        "steps_delivered": sink.steps, "steps_delivered_per_second": round(sink.steps / seconds, 1),
        "steps_with_a_hole": sink.holes,
        "stamps_out_of_order": sink.disorder, "written": written, "delivered": stats.delivered, "lost": stats.lost,
        "withheld": stats.withheld, "torn": stats.torn, "received_plus_lost_equals_written":
        stats.delivered + stats.lost + stats.withheld == stats.written == written,
        "checks_inside_a_launch": inside, "heads_advanced_inside_a_launch": advanced, "clock_error_ns": drain.clocks.error_ns,
        "tick_ns": drain.clocks.tick_ns, "step_us": round(seconds / max(1, backend.serial - first) * 1e6, 1),
    }  # fmt: skip
    write("h200_drain", figures, gpu())


if __name__ == "__main__":
    main()
