"""Busy sweep: SM time and landed bytes of a large capture over time, all of its steps in one compiled pass."""

from __future__ import annotations

import numpy as np

from mkviz.busy import Occupancy, edges_of
from mkviz.faults import Faults
from mkviz.sweep import Lanes, Sweep, Swept, joined_faults
from mkviz.trace import Trace


def binned(trace: Trace, steps, bins: int, ring_bytes: int) -> tuple[Occupancy, Faults]:
    """As ``occupancy`` finds it step by step; ``ring_bytes``: of an SM's ring, 0: not known.  Raises as it does."""
    span = None
    while True:  # once again only where records lie before all steps, or after them, as the host tells of these
        sweep = Sweep(trace, steps)
        asked, edges = span or _span(sweep), edges_of(*(span or _span(sweep)), bins)
        columns = ("claim", "publish", "fill") if any(graph.bytes.any() for graph, _ in sweep.graphs.values()) else ()
        workers = sweep.run(lambda sweep=sweep, asked=asked, edges=edges: _Adder(sweep, asked, edges, ring_bytes), columns)
        span = _span(sweep)
        if span == asked:
            break
    busy, landed = (sum(getattr(worker, name) for worker in workers) for name in ("busy", "landed"))
    read, dated = (sum(getattr(worker, name) for worker in workers) for name in ("read", "dated"))
    sms = max((sweep.graph_of(graph)[1] for graph in np.unique(sweep.table["graph"]).tolist()), default=0)
    faults = joined_faults(worker.lanes for worker in workers)
    return Occupancy(span[0], edges, tuple(sweep.ops()), sms, busy, landed, read, float(dated)), faults


def _span(sweep: Sweep) -> tuple[int, int]:
    begin, end = sweep.table["begin"], np.maximum(sweep.table["begin"], sweep.table["end"])
    return (int(begin.min()), int(end.max())) if len(begin) else (0, 0)


class _Adder:
    """``busy`` i64[ops, bins], ``landed`` f64[bins], ``read`` and ``dated`` bytes of its steps."""

    def __init__(self, sweep: Sweep, span: tuple[int, int], edges: np.ndarray, ring_bytes: int):
        self.lanes, self._sweep, self._span, self._edges, self._ring = Lanes(sweep.graphs), sweep, span, edges, ring_bytes
        ops = sweep.ops()
        self._plans = {
            i: (np.array([ops.get(op, -1) for op in graph.ops], np.int64)[graph.op], np.empty(len(graph), np.int64))
            for i, (graph, _) in sweep.graphs.items()
        }
        self.busy, self.landed = np.zeros((len(ops), len(edges) - 1), np.int64), np.zeros(len(edges) - 1)
        self.read = self.dated = 0

    def add(self, step: Swept) -> None:
        from mkviz.busy_kernels import add_busy, add_landings

        lanes, edges = self.lanes, self._edges
        if not lanes.take(step) or step.since < self._span[0] or step.until > self._span[1]:
            return
        (op_of, chunk), size_of = self._plans[step.graph], self._sweep.bytes_of(step)
        offset = step.since - self._span[0]
        first = min(int(np.searchsorted(edges, offset, "right")) - 1, len(edges) - 2)
        add_busy(lanes.times, lanes.ptr, op_of, offset, edges, first, self.busy)
        if size_of.any():
            c = step.column
            early = step.since - min(step.until - step.since, step.since + (1 << 63))
            read, dated = add_landings(
                lanes.times, lanes.ptr, c("task"), c("flags"), c("fill"), c("claim"), c("begin"), c("publish"), step.first,
                step.stop, step.since, step.until, early, size_of, self._ring, offset, edges, first, chunk, self.landed,
            )  # fmt: skip
            self.read, self.dated = self.read + read, self.dated + dated
