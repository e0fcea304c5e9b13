"""Baseline: the best kernel-per-op decode that torch offers, of the same weights and the same KV, timed in turn with ours."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import numpy as np
import torch

from engine.bench.runners import Runner
from engine.bench.torch_decode import Ops, Recipe, TorchDecode, TorchWeights, as_torch
from engine.bench.torch_ops import ATTENTION
from engine.config import ModelConfig
from engine.plan import StepPlan
from mkviz.errors import MkvizError

SPARE = 4 << 30  # bytes for what is unpacked by and by, for graphs and copies of chosen experts
TRIALS = 5  # launches that a way of running the step is judged by
APART = 0.5  # logits so far apart are of another computation; unrelated ones are 1.4 apart


class Baseline:
    """Torch's copy of a runner's packed weights, which lie on the device of ``xp``.  On a GPU a step is a CUDA graph, replayed;
    on a CPU it is called.  ``kv_bytes``: that a batch will take at most."""

    def __init__(self, config: ModelConfig, weights: Any, xp: Any, kv_bytes: int = 0):
        self.config, self.xp = config, xp
        self.gpu = xp is not np
        if self.gpu:
            _check_memory(weights.nbytes + kv_bytes + SPARE, xp)
            torch._dynamo.config.recompile_limit = 64  # one function serves all layers and batches
        dtype = torch.bfloat16 if self.gpu else torch.float32
        self.weights = TorchWeights(config, weights.matrices, weights.vectors, xp, dtype)
        if self.gpu:
            xp.get_default_memory_pool().free_all_blocks()
        self._ops = {False: Ops(config)}
        if self.gpu:
            compiled = partial(torch.compile, fullgraph=True, dynamic=False, options={"coordinate_descent_tuning": True})
            self._ops[True] = Ops(config, compiled)

    def prepare(self, runner: Runner, plan: StepPlan, steps: int) -> TorchLaunch:
        """The fastest way of running the plan's step, ready to be launched."""
        launch = TorchLaunch(self, runner, plan)
        launch.choose(steps, self._ways())
        return launch

    def _ways(self) -> list[list[dict]]:
        """What is tried, a choice after the other: each goes on from the best of the one before."""
        routed = any(spec.mlp == "moe" for spec in self.config.layers)
        attention = [{"attention": name} for name in ATTENTION if self.gpu or name != "flex"]
        eager = [{"compiled": False, "experts": name} for name in ("grouped", "gathered")[: 2 if routed else 1]]
        compiled = [{"compiled": True, "experts": name} for name in ("matvec", "grouped", "gathered")[: 3 if routed else 1]]
        return [attention, eager + compiled if self.gpu else eager]


class TorchLaunch:
    """One batch and context, run as ``recipe`` says.  The position stays: each replay reads what a step at the plan's position
    reads, of the token that the replay before picked.  ``distance``: norm of the difference of its logits and the runner's, for
    the plan's own tokens, over that of the runner's."""

    def __init__(self, baseline: Baseline, runner: Runner, plan: StepPlan):
        self.b, self.plan, self.position = baseline, plan, int(plan.position[0])
        self.decode = TorchDecode(baseline.config, baseline.weights, baseline._ops, len(plan), self.position + 1)
        for layer in range(len(baseline.config.layers)):
            self._copy_kv(runner, layer)
        self._angles = self.decode.angles(self.position)
        self.recipe, self.tried, self._replay = Recipe(), [], None
        self._expected = runner.logits(plan)

    def _reset(self) -> None:
        self.decode.token.copy_(torch.from_numpy(self.plan.token.astype(np.int64)))

    def _copy_kv(self, runner: Runner, layer: int) -> None:
        for row, pages in enumerate(self.plan.pages):
            for to, found in zip((self.decode.k, self.decode.v), runner.kv(layer, pages), strict=True):
                to[layer, row] = as_torch(found, self.b.xp, to.dtype)[:, : self.position + 1]

    def choose(self, steps: int, ways: list[list[dict]]) -> None:
        """Time each way and keep the fastest; a way that fails is noted with its error."""
        for choice in ways:
            times: dict[Recipe, float] = {}
            for change in choice:
                recipe = replace(self.recipe, **change)
                note = asdict(recipe)
                begin = time.monotonic()
                try:
                    self._open(recipe)
                    note["logits_distance"] = self.distance
                    if not self.distance < APART:
                        raise ValueError(f"logits {self.distance:.2g} apart from ours")
                    times[recipe] = float(np.median([self.launch(steps) for _ in range(TRIALS)]))
                    note["ms_step"] = round(times[recipe], 4)
                except Exception as error:  # torch versions differ in what they compile, capture and support
                    note |= {"failed": f"{type(error).__name__}: {str(error).splitlines()[0][:200] if str(error) else ''}"}
                self.tried.append(note | {"seconds": round(time.monotonic() - begin, 1)})
            if not times:
                raise MkvizError(f"--baseline: no way of {', '.join(map(str, choice))} ran", f"see {self.tried[-1]['failed']}")
            self.recipe = min(times, key=times.get)
        self._open(self.recipe)

    def _open(self, recipe: Recipe) -> None:
        self._replay = None  # gives its memory back first
        step = partial(self.decode.step, self.position, self._angles, recipe)
        self._reset()
        logits = step().float().cpu().numpy()
        self.distance = float(np.linalg.norm(logits - self._expected) / np.linalg.norm(self._expected))
        self._replay = _captured(step) if self.b.gpu else step

    def launch(self, steps: int) -> float:
        """Milliseconds a step."""
        if not self.b.gpu:
            begin = time.perf_counter()
            for _ in range(steps):
                self._replay()
            return (time.perf_counter() - begin) * 1e3 / steps
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        begin.record()
        for _ in range(steps):
            self._replay()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) / steps


def _captured(step: Callable[[], Any]) -> Callable[[], None]:
    """The step as a CUDA graph.  It is run before, on another stream, so that all is compiled and allocated."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def _check_memory(needed: int, xp: Any) -> None:
    xp.get_default_memory_pool().free_all_blocks()
    free, _ = xp.cuda.runtime.memGetInfo()
    if needed > free:
        raise MkvizError(
            f"--baseline: {needed / 1e9:.1f} GB for a second copy of weights and KV, {free / 1e9:.1f} GB free",
            "fewer --layers, a smaller --batch or --context, or no --baseline",
        )
