"""How long the task tables of all step shapes take to build, and what they take of a GPU's memory; without GPU and weights.

    python benchmarks/task_tables.py [--shape north-mini-code] [--contexts 32768,262144] [--rows 64] [--sms 132]

Graph, schedule, its check and the tables of tasks, one shape after the other, as the cuda backend builds them.  With an
inter-token budget those of the longest steps are built *at opening* and the others while no request is there, else each when a
step first needs it.  *cpu_seconds* are those of the process, which others on the machine do not lengthen much.
"""

from __future__ import annotations

import argparse
import os
import time

from evidence import write

from engine.builder import StepShape, build_graph
from engine.config import ModelConfig
from engine.cuda.abi import BUCKETS
from engine.cuda.program import dealt, make_program, tiling_of
from engine.cuda.weights import PackedWeights
from engine.shapes import SHAPES, shape
from engine.tiling import Tiling


class Nowhere(PackedWeights):
    """Weights of which only the places count, all of them the same."""

    def __init__(self, config: ModelConfig):
        self.config = config

    def address(self, name: str) -> int:
        return 4096


def measure(config: ModelConfig, step: StepShape, sms: int) -> tuple[float, float, int, int]:
    """(seconds, CPU seconds, bytes on the device, tasks) of a step shape's table."""
    begin, cpu = time.perf_counter(), time.process_time()
    bucket = next(b for b in (1, *BUCKETS) if b >= step.rows)
    built = build_graph(config, step, tiling_of(config, Tiling.for_tensor_cores(config, sms, sampling=True), bucket))
    schedule = dealt(built.graph, sms, "balanced", bucket)
    program = make_program(config, built, schedule, Nowhere(config))
    size = program.tasks.nbytes + 128 * len(built.graph.counters)
    return time.perf_counter() - begin, time.process_time() - cpu, size, len(built.graph)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--shape", choices=list(SHAPES), default="north-mini-code")
    parser.add_argument("--contexts", default="32768,262144", help="tokens of the longest request, by comma")
    parser.add_argument("--rows", type=int, default=64, help="rows of a step at most")
    parser.add_argument("--sms", type=int, default=132)
    args = parser.parse_args()
    config, tables, figures = shape(args.shape), {}, {}
    measure(shape("smollm2-135m"), StepShape(8, 4), args.sms)  # what is compiled once is not counted
    for context in map(int, args.contexts.split(",")):
        steps = StepShape.up_to(args.rows, context)
        for step in steps:
            if step not in tables:
                tables[step] = measure(config, step, args.sms)
        longest = {s.rows: s for s in steps}.values()
        for name, some in (("at opening", longest), ("in all", steps)):
            seconds, cpu, size, _ = (sum(values) for values in zip(*(tables[s] for s in some), strict=True))
            about = {"tables": len(some), "seconds": round(seconds, 1), "cpu_seconds": round(cpu, 1)}
            figures.setdefault(context, {})[name] = about | {"device_gb": round(size / 1e9, 2)}
    each = {
        f"{s.rows} rows, {s.splits} splits": {"seconds": round(t, 2), "cpu_seconds": round(c, 2), "tasks": n}
        for s, (t, c, _, n) in tables.items()
    }
    notes = f"load of the machine at the end: {os.getloadavg()[0]:.1f}"
    write("task_tables", {"shape": args.shape, "sms": args.sms, "contexts": figures, "each": each}, notes=notes)


if __name__ == "__main__":
    main()
