"""Record the traces that the repository ships: two steps each of the demo model and of six North Mini Code layers.

python benchmarks/record_traces.py OUT_FOLDER
"""

from __future__ import annotations

import sys
from pathlib import Path

from cuda_tracing import make_plan

from engine.cuda.backend import CudaBackend
from engine.engine import Engine
from engine.generator import EngineGenerator
from engine.shapes import shape
from mkviz.drain import Drain
from mkviz.protocols import GenerateRequest, StepInfo
from mkviz.trace import Trace, TraceWriter


def demo(folder: Path) -> None:
    engine = Engine(backend="cuda")
    writer = TraceWriter(folder / "demo-all.mkt", kind="measured", device=engine.backend.device.name, overwrite=True)
    engine.add_sink(writer)
    prompt = "Write a Python function that reverses a string."
    print("".join(p.text for p in EngineGenerator(engine, live=False).stream(GenerateRequest(prompt))))
    engine.remove_sink(writer)
    writer.close()
    engine.close()
    trace = Trace.open(folder / "demo-all.mkt")
    steps = trace.steps.column("step").to_pylist()
    two = [s for s in steps if s >= steps[len(steps) // 2]][:2]
    trace.slice(folder / "demo.mkt", steps=two, overwrite=True).zip(folder / "h200-demo.mkt.zip", overwrite=True)


def north(folder: Path, layers: int = 6, context: int = 8192) -> None:
    config = shape("north-mini-code", layers, max_positions=context + 1024)
    plan = make_plan(1, context)
    backend = CudaBackend(config, None, pages=plan.pages.size, trace=1)
    for _ in range(3):
        backend.run(plan, 8)
    drain = Drain(backend.rings.link(), expects_meta=True)
    drain.poll(), drain.poll()
    label = f"measured ({backend.device.name}): North Mini Code shape, {layers} layers, random weights"
    writer = TraceWriter(folder / "north.mkt", kind="measured", device=backend.device.name, overwrite=True, label=label)
    drain.add_sink(writer)
    drain.graph(0, *backend.graphs[0])
    first = backend.serial
    result = backend.run(plan, 2)
    for step in (first, first + 1):
        drain.step_meta(StepInfo(step, result.graph, result.begin, result.end, [], result.routes))
    print(drain.close())
    writer.close()
    two = Trace.open(folder / "north.mkt").slice(folder / "north-two.mkt", steps=[first, first + 1], overwrite=True)
    two.zip(folder / f"h200-north-{layers}L-8K.mkt.zip", overwrite=True)


def main() -> None:
    folder = Path(sys.argv[1])
    demo(folder)
    north(folder)
    for file in sorted(folder.glob("*.zip")):
        print(file.name, file.stat().st_size)


if __name__ == "__main__":
    main()
