"""Wave sweep: the waves of a large capture, all of its steps in one compiled pass."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mkviz.faults import Faults
from mkviz.sweep import Lanes, Sweep, Swept, joined_faults
from mkviz.trace import Trace
from mkviz.wave_tails import FINISHER, RANKS, WAVE

if TYPE_CHECKING:
    from mkviz.graph import Graph


def waves_of(trace: Trace, steps=None) -> tuple[tuple[str, ...], np.ndarray, np.ndarray, Faults]:
    """(ops, WAVE[n], FINISHER[m], faults), as ``tails`` finds them step by step.  Raises as it does."""
    sweep = Sweep(trace, steps)
    return sweep.all_of([WaveSums(sweep)])[0]


class WaveSums:
    """What a sweep finds of waves: see ``waves_of``."""

    columns = ()

    def __init__(self, sweep: Sweep):
        self._graphs, self._ops = sweep.graphs, sweep.ops()
        self._plans = {i: _plan(graph, self._ops) for i, (graph, _) in sweep.graphs.items()}

    def worker(self) -> _Adder:
        return _Adder(self._graphs, self._plans)

    def found(self, workers: list[_Adder]) -> tuple[tuple[str, ...], np.ndarray, np.ndarray, Faults]:
        waves, finishers = (
            np.concatenate([np.zeros(0, dtype), *(rows for worker in workers for rows in getattr(worker, name))])
            for name, dtype in (("waves", WAVE), ("finishers", FINISHER))
        )
        return tuple(self._ops), waves, finishers, joined_faults(worker.lanes for worker in workers)


def _plan(graph: Graph, ops: dict[str, int]) -> tuple[np.ndarray, np.ndarray]:
    """(wave of each task, op and layer of each wave), the waves ascending."""
    op = np.array([ops.get(name, -1) for name in graph.ops], np.int64)[graph.op]
    op_layer, of = np.unique(np.stack([op, graph.layer.astype(np.int64)], axis=1), axis=0, return_inverse=True)
    return of.reshape(-1), op_layer


class _Adder:
    """``waves``, ``finishers``: arrays of WAVE and FINISHER, one for each step."""

    def __init__(self, graphs: dict[int, tuple[Graph, int]], plans: dict[int, tuple[np.ndarray, np.ndarray]]):
        self.lanes, self._plans = Lanes(graphs), plans
        self.waves: list[np.ndarray] = []
        self.finishers: list[np.ndarray] = []

    def add(self, step: Swept) -> None:
        from mkviz.wave_kernels import FINISHER_FIELDS, WAVE_FIELDS, add_waves

        lanes, (wave_of, op_layer) = self.lanes, self._plans[step.graph]
        if not lanes.take(step):
            return
        out = np.empty((len(op_layer), WAVE_FIELDS), np.int64)
        finishers = np.empty((len(op_layer) * RANKS, FINISHER_FIELDS), np.int64)
        n, m = add_waves(lanes.times, lanes.ptr, lanes.left, lanes.open_end, step.number, wave_of, op_layer, out, finishers)
        self.waves.append(out[:n].view(WAVE)[:, 0])
        self.finishers.append(finishers[:m].view(FINISHER)[:, 0])
