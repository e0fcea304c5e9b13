"""How long the task tables of all step shapes take to build, and what they take of a GPU's memory; without GPU and weights.

    python benchmarks/task_tables.py [--shape north-mini-code] [--contexts 32768,262144] [--rows 64] [--sms 132]

Graph, schedule, its check and the tables of tasks, one shape after the other, as the cuda backend builds them at its opening
where there is an inter-token budget, and else when a step first needs one.
"""

from __future__ import annotations

import argparse
import os
import time
from dataclasses import replace

from evidence import write

from engine.builder import StepShape, build_graph
from engine.config import ModelConfig
from engine.cuda.program import make_program
from engine.cuda.weights import PackedWeights
from engine.shapes import SHAPES, shape
from engine.tiling import Tiling
from mkviz.policies import make_schedule
from mkviz.validate import check


class Nowhere(PackedWeights):
    """Weights of which only the places count, all of them the same."""

    def __init__(self, config: ModelConfig):
        self.config = config

    def address(self, name: str) -> int:
        return 4096


def measure(config: ModelConfig, step: StepShape, sms: int) -> tuple[float, int, int]:
    """(seconds, bytes on the device, tasks) of a step shape's table."""
    begin = time.perf_counter()
    tiling = Tiling.for_tensor_cores(config, sms, sampling=True)
    built = build_graph(config, step, replace(tiling, norm_tasks=step.rows > 8, top_k_tasks=step.rows > 1))
    schedule = make_schedule(built.graph, sms, "round_robin")
    check(built.graph, schedule)
    program = make_program(config, built, schedule, Nowhere(config))
    return time.perf_counter() - begin, program.tasks.nbytes + 128 * len(built.graph.counters), len(built.graph)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--shape", choices=list(SHAPES), default="north-mini-code")
    parser.add_argument("--contexts", default="32768,262144", help="tokens of the longest request, by comma")
    parser.add_argument("--rows", type=int, default=64, help="rows of a step at most")
    parser.add_argument("--sms", type=int, default=132)
    args = parser.parse_args()
    config, tables, figures = shape(args.shape), {}, {}
    for context in map(int, args.contexts.split(",")):
        steps = StepShape.up_to(args.rows, context)
        for step in steps:
            if step not in tables:
                tables[step] = measure(config, step, args.sms)
        seconds, size, _ = (sum(values) for values in zip(*(tables[s] for s in steps), strict=True))
        figures[context] = {"tables": len(steps), "seconds": round(seconds, 1), "device_gb": round(size / 1e9, 2)}
    each = {f"{s.rows} rows, {s.splits} splits": {"seconds": round(t, 2), "tasks": n} for s, (t, _, n) in tables.items()}
    notes = f"load of the machine at the end: {os.getloadavg()[0]:.1f}"
    write("task_tables", {"shape": args.shape, "sms": args.sms, "contexts": figures, "each": each}, notes=notes)


if __name__ == "__main__":
    main()
