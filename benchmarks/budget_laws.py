"""The inter-token budget against machines on paper, whose steps take what a stated law says: no model, no device, no waiting.

    python benchmarks/budget_laws.py [--laws stairs,h200] [--budgets 3,6,12] [--prompts 100,300,…]

The batcher is the engine's own, its clock that of the law.  One request for each prompt length arrives at once and decodes
until all prompts have been read: *cold*.  Then others of these lengths arrive while half as many decode, and each ends with its
first token: *warm*.  Gaps between tokens are counted while prompts are read.  *share*: of the rows of prompts a second that a
batcher reads which knows the law and need not learn it.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
from evidence import write

from engine.batching import Batcher
from engine.kv import PagePool
from engine.layers import LayerSpec
from engine.sampling import SamplingParams
from engine.sequence import Sequence
from engine.step_time import StepTime

PROMPTS = (100, 300, 1000, 2000, 4000, 8000, 15_000, 30_000)
MOST = 120_000  # steps of a round after which what was read by then counts
CONFIG = SimpleNamespace(experts=0, top_k=0, window=0, layers=(LayerSpec("full", True, "dense", 8),))


@dataclass(frozen=True)
class Law:
    """ms of a step: ``sizes`` {rows at most: (ms, ms a row)}, ``key`` ms of a row and 1,000 keys, times a lognormal factor of
    deviation ``noise``; one step in ``seldom`` takes ``longer`` times as long; the first one of each size ``first`` ms more."""

    about: str
    sizes: dict[int, tuple[float, float]]
    key: float = 0.0
    noise: float = 0.0
    seldom: int = 0
    longer: float = 3.0
    first: float = 0.0

    def ms(self, rows: int, keys: float) -> float:
        """Without noise."""
        base, each = self.sizes[min(size for size in self.sizes if size >= rows)]
        return base + each * rows + self.key * 1e-3 * keys


STAIRS = {8: (1.6, 0.02), 16: (2.4, 0.03), 32: (3.8, 0.03), 64: (6.0, 0.03)}
LAWS = {
    "line": Law("one line for all sizes", {64: (2.0, 0.1)}, 1e-4, 0.03, 1000),
    "stairs": Law("jumps of a half", {1: (0.8, 0.0), 2: (1.0, 0.0), 4: (1.3, 0.0), **STAIRS}, 1e-4, 0.03, 1000),
    "rough": Law("jumps, much noise, one step in 150 three times as long", STAIRS, 1e-4, 0.1, 150, 3.0, 20.0),
    "h200": Law(
        "made to resemble the step times of h200_serving_budget_6L.json: no measurement",
        {1: (1.3, 0.0), 8: (1.6, 0.1), 16: (2.8, 0.06), 32: (3.8, 0.09), 64: (5.5, 0.065)}, 1e-3, 0.02, 1000, 3.0, 5.0,
    ),
}  # fmt: skip


class Knows(StepTime):
    """The law itself, and what noise adds to it but for 7 steps in 1,000."""

    def __init__(self, law: Law):
        super().__init__(CONFIG)
        self._law, self.margin = law, float(np.exp(2.457 * law.noise))

    def observe(self, spans, ns): ...
    def known(self, rows):
        return True

    def fresh(self, rows):
        return True

    def estimate(self, rows, keys):
        return self._law.ms(rows, keys) * 1e6 * self.margin


class Machine:
    """Runs a batcher on a law's clock; ns."""

    def __init__(self, law: Law, budget_ms: float, step_time: StepTime, max_rows: int, batch: int, pages: int, seed: int = 0):
        self.law, self.now, self._seen, self._rng = law, 1, set(), np.random.default_rng(seed)
        self.step_time = step_time
        self.batcher = Batcher(PagePool(pages), step_time, max_rows=max_rows, batch=batch, budget_ns=budget_ms * 1e6,
                               prefix_cache=False)  # fmt: skip
        self.gaps: list[tuple[int, int]] = []  # (when, ns)
        self.read = 0
        self._numbers = 0

    def submit(self, length: int, answer: int) -> Sequence:
        sequence = Sequence(self._numbers, [0] * length, SamplingParams(max_tokens=answer), None)
        self._numbers, sequence.first_token = self._numbers + 1, 0
        sequence.arrived = self.now
        self.batcher.waiting.add(sequence)
        return sequence

    def step(self) -> None:
        self.batcher.admit()
        step = self.batcher.plan(self.now)
        if not step.rows:
            return
        spans = step.spans
        ns = self._ns(spans)
        self.now += ns
        self.step_time.observe(spans, ns)
        for sequence, count in step.rows:
            self.batcher.computed(sequence, count)
            self.read += count if sequence.state != "decode" else 0
            if sequence.left:
                continue
            sequence.tokens.append(0)
            if sequence.state == "decode":
                self.gaps.append((self.now, self.now - sequence.last_token))
            else:
                sequence.first_token = self.now
            sequence.state, sequence.last_token = "decode", self.now
            if sequence.generated == sequence.params.max_tokens:
                self.end(sequence)

    def end(self, sequence: Sequence) -> None:
        self.batcher.remove(sequence)
        self.batcher.release(sequence)

    def _ns(self, spans) -> int:
        rows, keys = self.step_time.load(spans)
        law, ms = self.law, self.law.ms(rows, keys)
        ms *= float(self._rng.lognormal(0, law.noise)) if law.noise else 1.0
        if law.seldom and self._rng.random() < 1 / law.seldom:
            ms *= law.longer
        size = min(size for size in law.sizes if size >= rows)
        if size not in self._seen:
            self._seen.add(size)
            ms += law.first
        return int(ms * 1e6)


def round_of(machine: Machine, lengths: tuple[int, ...], answer: int) -> tuple[dict, list[Sequence]]:
    """(figures, its requests) while these prompts are read."""
    begin, read, first = machine.now, machine.read, len(machine.gaps)
    sequences = [machine.submit(n, answer) for n in lengths]
    for _ in range(MOST):
        if all(s.first_token for s in sequences):
            break
        machine.step()
    gaps = np.array([ns for _, ns in machine.gaps[first:]]) / 1e6
    budget = machine.batcher.budget_ns / 1e6
    figures = {"prompt_rows_s": round((machine.read - read) / (machine.now - begin) * 1e9)}
    figures["first_token_ms"] = {
        s.prompt_tokens: round((s.first_token - s.arrived) / 1e6, 1) for s in sequences if s.first_token
    }
    if len(gaps):
        p50, p99 = np.quantile(gaps, (0.5, 0.99))
        figures |= {"gaps": len(gaps), "p50_ms": round(p50, 2), "p99_ms": round(p99, 2), "max_ms": round(gaps.max(), 2),
                    "longer_percent": round(100 * (gaps > budget).mean(), 2)}  # fmt: skip
    return figures, sequences


def measure(law: Law, budget_ms: float, lengths=PROMPTS, max_rows: int = 64, answer: int = 4096, step_time=None) -> dict:
    """{"cold": figures, "warm": figures}."""
    answer_pages = sum(PagePool.pages_for(n + answer) for n in lengths)
    machine = Machine(law, budget_ms, step_time or StepTime(CONFIG), max_rows, 2 * len(lengths), 4 * answer_pages)
    cold, _ = round_of(machine, lengths, answer)
    for sequence in list(machine.batcher):
        machine.end(sequence)
    for _ in lengths[::2]:
        machine.submit(50, 1 << 40)
    while any(s.state != "decode" for s in machine.batcher):
        machine.step()
    warm, _ = round_of(machine, lengths, 1)
    return {"cold": cold, "warm": warm}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--laws", default=",".join(LAWS), help=f"of {', '.join(LAWS)}, by comma")
    parser.add_argument("--budgets", default="3,6,12", help="ms, by comma")
    parser.add_argument("--prompts", default=",".join(map(str, PROMPTS)), help="tokens of each prompt, by comma")
    parser.add_argument("--name", default="budget_laws", help="of the file of figures")
    args = parser.parse_args()
    lengths, figures = tuple(int(n) for n in args.prompts.split(",")), {}
    for name in args.laws.split(","):
        law = LAWS[name]
        figures[name] = {"law": law.about, "sizes_ms": {str(k): v for k, v in law.sizes.items()}}
        for budget in map(float, args.budgets.split(",")):
            runs, best = measure(law, budget, lengths), measure(law, budget, lengths, step_time=Knows(law))
            for phase, run in runs.items():
                run["share"] = round(run["prompt_rows_s"] / best[phase]["prompt_rows_s"], 3)
            figures[name][f"{budget:g} ms"] = runs
    write(args.name, {"prompts": lengths, "laws": figures}, notes="a simulation: no step was run")


if __name__ == "__main__":
    main()
