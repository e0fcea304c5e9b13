"""Traces of a bench's launches: two steps in the midst of one, recorded whole, with what each row and slot was."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from engine.bench.runners import CudaRunner
from engine.builder import StepShape
from engine.plan import StepPlan
from mkviz.drain import Drain
from mkviz.errors import MkvizError
from mkviz.protocols import Row, StepInfo
from mkviz.trace import Trace, TraceWriter

STEPS = 2


def record(runner: CudaRunner, backend: Any, plan: StepPlan, path: Path, words: str) -> Path:
    """A launch of ``backend``, one that traces and shares the runner's buffers, as the zipped trace ``path``; ``words`` end its
    label.  Raises MkvizError when records are lost."""
    infos, chain = [], plan
    for _ in range(STEPS):
        rows = [Row(i, i, int(chain.position[i]), int(chain.token[i]), "decode") for i in range(len(plan))]
        routes, chain = runner._step(chain)
        infos.append((rows, routes))
    backend.serial = runner._traced.serial  # all write to the same rings
    backend.run(plan, STEPS)
    drain = Drain(backend.rings.link(), expects_meta=True)
    for _ in range(2):  # past what is there
        drain.poll()
    label = f"measured ({backend.device.name}): {words}"
    with tempfile.TemporaryDirectory() as folder:
        whole = Path(folder) / "bench.mkt"
        writer = TraceWriter(whole, kind="measured", device=backend.device.name, label=label)
        drain.add_sink(writer)
        graph_id = backend.program(StepShape.covering(len(plan), int(plan.position.max()) + STEPS))[0]
        drain.graph(graph_id, *backend.graphs[graph_id])
        first = backend.serial
        result = backend.run(plan, STEPS)
        for i, (rows, routes) in enumerate(infos):
            drain.step_meta(StepInfo(first + i, graph_id, result.begin, result.end, rows, routes))
        drain.close()
        writer.close()
        runner._traced.serial = backend.serial
        two = Trace.open(whole).slice(Path(folder) / "two.mkt", steps=range(first, first + STEPS))
        if [info.lost for info in two.infos()] != [0] * STEPS:
            raise MkvizError(f"{path}: records of {STEPS} steps did not fit into the rings", "larger ones")
        return two.zip(path, overwrite=True)
