"""``mkviz bench decode``: ms a step, tok/s and share of the read ceiling, of a model or of a published shape."""

from __future__ import annotations

import argparse
import json
import sys
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from engine.bench.conditions import conditions
from engine.bench.paired import in_turn, ratio, spread
from engine.bench.runners import Runner, decode_plan, longest_chain, pages_for
from engine.bench.step_bytes import StepBytes, step_bytes
from engine.builder import StepShape
from engine.config import ModelConfig
from engine.plan import StepPlan
from engine.shapes import SHAPES
from mkviz.errors import MkvizError
from mkviz.policies import POLICIES

WARM = 3  # launches before those that count
MOST_STEPS = 256  # in a launch
RING = 1 << 13  # records in a ring, where steps are recorded: two steps of 256 rows

METHOD = (
    "Every launch begins anew at position `context`, so that all read the same; bytes are the mean over a launch's steps. "
    "Rows are greedy, each on from its own token. Weights are counted once, of experts those that traced steps of the same "
    "launch touched; K and V by each row's length and each layer's window; norms and activations are not counted. "
    "A baseline replays the launch's first step, on from its own token."
)


class BenchDecode:
    name = "decode"
    help = "ms a step, tok/s and share of the read ceiling, by batch and context"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        what = parser.add_mutually_exclusive_group()
        what.add_argument("--model", help="a directory, a fetched model's name, or demo (the default)")
        what.add_argument("--shape", choices=SHAPES, help="instead: a published shape with random weights, drawn on the GPU")
        parser.add_argument("--backend", choices=("cpu", "cuda"), help="default: cuda for a shape, else cpu")
        parser.add_argument("--layers", type=int, help="only the first layers of a shape")
        parser.add_argument("--batch", type=int, nargs="+", default=[1], help="rows of a step (default 1)")
        parser.add_argument("--context", type=int, nargs="+", default=[128], help="tokens before the first step (default 128)")
        parser.add_argument("--steps", type=int, default=16, help="steps of a launch (default 16)")
        parser.add_argument("--runs", type=int, default=12, help=f"launches that count, after {WARM} that do not (default 12)")
        parser.add_argument(
            "--policy",
            default="",
            help="scheduling policy (default: the backend's own)",
        )
        parser.add_argument("--baseline", action="store_true", help="torch's kernel-per-op decode of the same weights, in turn")
        parser.add_argument("--ablate", action="store_true", help="the kernel without one of its ideas, each in turn with it")
        parser.add_argument("--traces", type=Path, metavar="DIR", help="two traced steps of each, as zipped traces")
        parser.add_argument("--json", type=Path, metavar="FILE", help="the figures, every launch's time, the conditions")

    def run(self, args: argparse.Namespace) -> int:
        _check(args)
        config, weights, name = _model(args)
        runner = _runner(args, config, weights)
        try:
            told = _told(args, config, name, runner)
            measure(args, runner, told, _write_to(args.json))
        finally:
            runner.backend.close()
        if args.json:
            print(args.json, file=sys.stderr)
        return 0


def measure(args: argparse.Namespace, runner: Runner, told: dict, save: Any) -> None:
    """All points, each printed and saved as it ends; the ceiling before and after them, the higher one counts."""
    ceiling = _Ceiling(runner, max(args.batch))
    if ceiling.measure():
        print(ceiling.line(), flush=True)
    baseline, ablated = _baseline(args, runner), _ablated(args, runner)
    for context in args.context:
        for rows in args.batch:
            point = measure_point(args, runner, baseline, rows, context)
            plan = decode_plan(rows, context, args.steps, runner.config.vocab)
            if ablated:
                point["ablations"] = ablated.measure(plan, args.steps, args.runs)
            point |= shares(point, ceiling.gb_s)
            told["points"].append(point)
            told["ceiling"] = ceiling.told()
            save(told)
            print(line(point), flush=True)
            if args.traces:
                record_all(args, runner, ablated, plan, told["model"])
    if ceiling.measure():
        for point in told["points"]:
            point |= shares(point, ceiling.gb_s)
        told["ceiling"] = ceiling.told()
        save(told)
        print(ceiling.line())


def measure_point(args: argparse.Namespace, runner: Runner, baseline: Any, rows: int, context: int) -> dict:
    """What does not need the ceiling.  Times in ms a step."""
    plan = decode_plan(rows, context, args.steps, runner.config.vocab)
    plan.wants_logits[:] = runner.name == "cpu"  # the interpreter picks no token without; the kernel stores none for nobody
    touched = runner.experts(plan, args.steps)
    counted = launch_bytes(runner, plan, args.steps, touched)
    theirs = None
    if baseline:
        launch = baseline.prepare(runner, plan, args.steps)
        theirs = {"recipe": asdict(launch.recipe), "tried": launch.tried, "logits_distance": launch.distance}
    for _ in range(WARM):
        runner.launch(plan, args.steps)
    if theirs is None:
        times = np.array([runner.launch(plan, args.steps) for _ in range(args.runs)])
    else:
        both = [lambda: runner.launch(plan, args.steps), lambda: launch.launch(args.steps)]
        times, other = in_turn(both, args.runs)
        theirs |= spread(other) | {"ratio": ratio(times, other)}
    graph = runner.graph(plan, args.steps)
    point = {"batch": rows, "context": context} | spread(times)
    point["tok_s"] = rows * 1e3 / point["ms_step"]
    point["bytes_step"] = {"total": counted.total, "weights": counted.weights, "kv": counted.kv, "embedding": counted.embedding}
    if touched.size:
        point["experts"] = {"mean": float(touched.mean()), "min": int(touched.min()), "max": int(touched.max())}
    point |= {"tasks": len(graph), "hops": longest_chain(graph)}
    return point | ({"baseline": theirs} if theirs else {})


def record_all(args: argparse.Namespace, runner: Runner, ablated: Any, plan: StepPlan, name: str) -> None:
    """Traces of the point, and of each of its ablations."""
    from engine.bench.ablations import ABLATIONS
    from engine.bench.traces import STEPS, record

    rows, context = len(plan), int(plan.position[0])
    kinds = [("as-it-is", "", runner._traced)]
    shape = StepShape.covering(rows, context + STEPS)
    for ablation in ABLATIONS if ablated else ():
        with suppress(MkvizError):  # there is nothing to leave out, as the table says
            kinds.append((ablation.name, f", {ablation.words}", ablated.backend(ablation, shape, trace=1)))
    for kind, words, backend in kinds:
        path = args.traces / f"{kind}-{rows}x{context}.mkt.zip"
        label = f"{name}, {len(runner.config.layers)} layers, batch {rows}, context {context}{words}"
        print(record(runner, backend, plan, path, label), file=sys.stderr)


def launch_bytes(runner: Runner, plan: StepPlan, steps: int, touched: np.ndarray) -> StepBytes:
    """The mean over the steps of a launch."""
    stored = {"weight_bytes": getattr(runner.backend, "weight_bytes", 2), "kv_bytes": runner.kv_element}
    each = [
        step_bytes(runner.config, (plan.position + 1 + step).tolist(), float(touched[step].sum()), **stored)
        for step in range(steps)
    ]
    return StepBytes(*(float(np.mean([getattr(b, part) for b in each])) for part in ("weights", "kv", "embedding")))


def shares(point: dict, ceiling_gb_s: float | None) -> dict:
    """Share of the ceiling, and the step's time beyond streaming for each hand-over of its longest chain."""
    if ceiling_gb_s is None:
        return {"share": None, "exposed_us_per_hop": None}
    stream_ms = point["bytes_step"]["total"] / ceiling_gb_s / 1e6
    told = {"share": stream_ms / point["ms_step"], "exposed_us_per_hop": (point["ms_step"] - stream_ms) * 1e3 / point["hops"]}
    if "baseline" in point:
        point["baseline"]["share"] = stream_ms / point["baseline"]["ms_step"]
    return told


def line(point: dict) -> str:
    """One point for people."""
    low, high = point["ms_quartiles"]
    text = (
        f"batch {point['batch']}, context {point['context']}: {point['ms_step']:.3f} ms/step (quartiles {low:.3f}–{high:.3f}), "
        f"{point['tok_s']:.1f} tok/s, {point['bytes_step']['total'] / 1e9:.3f} GB/step"
    )
    if "experts" in point:
        text += f", {point['experts']['mean']:.2f} experts a layer"
    if point["share"] is not None:
        text += f", {point['share']:.1%} of the ceiling, "
        text += f"{point['exposed_us_per_hop']:.2f} µs a hop exposed over {point['hops']} hops"
    if other := point.get("baseline"):
        recipe, ratio, (low, high) = other["recipe"], other["ratio"], other["ratio"]["interval_95"]
        text += f"\n  torch ({recipe['attention']}, {recipe['experts']}{', compiled' if recipe['compiled'] else ''}): "
        text += f"{other['ms_step']:.3f} ms/step, {ratio['mean']:.2f} times as long (95 %: {low:.2f} to {high:.2f}); "
        text += f"logits {other['logits_distance']:.2g} apart"
    if "ablations" in point:
        from engine.bench.ablations import lines

        text += "\n" + lines(point)
    return text


class _Ceiling:
    """The read ceiling of the runner's GPU, as often as it is measured; nothing on a CPU."""

    def __init__(self, runner: Runner, rows: int):
        self.rates: list = []
        self.gb_s: float | None = None
        self._stream = None
        if runner.name == "cuda":
            from engine.bench.stream import ReadStream

            backend = runner.backend
            self._stream, self._own = ReadStream(backend.device), backend.layout(rows, backend.buckets[-1])[0]
            matrices = runner.backend.weights.matrices.values()
            self._weights = list({id(a): a for a in matrices}.values())  # the head may be the embedding

    def measure(self) -> bool:
        if self._stream is None:
            return False
        from engine.bench.stream import ceiling

        self.rates += self._stream.rates(self._weights, self._own)
        self.best = ceiling(self.rates)
        self.gb_s = self.best.median
        return True

    def line(self) -> str:
        return f"read ceiling {self.gb_s:.0f} GB/s: {self.best.what} through {self.best.stages} stages"

    def told(self) -> dict | None:
        if self._stream is None:
            return None
        told = self.best.told()
        own = [r.median for r in self.rates if r.what == "weights" and r.stages == self._own]
        told |= {"weights_at_own_depth": {"stages": self._own, "gb_s": round(max(own), 1)}}
        return told | {"measured": [r.told() for r in self.rates]}


def _baseline(args: argparse.Namespace, runner: Runner):
    if not args.baseline:
        return None
    from engine.bench.baseline import Baseline

    if runner.name == "cuda":
        return Baseline(runner.config, runner.backend.weights, runner.backend.cupy, runner.backend.kv_bytes)
    from engine.cuda.weights import PackedWeights, check_supported

    check_supported(runner.config)
    return Baseline(runner.config, PackedWeights(runner.config, runner.weights, np), np)


def _ablated(args: argparse.Namespace, runner: Runner) -> Any:
    if not args.ablate:
        return None
    from engine.bench.ablations import Ablated

    return Ablated(runner, traced=bool(args.traces))


def _check(args: argparse.Namespace) -> None:
    args.backend = args.backend or ("cuda" if args.shape else "cpu")
    for name, values, most, right in (
        ("batch", args.batch, None, "1 or more rows"),
        ("context", args.context, None, "1 or more tokens"),
        ("steps", [args.steps], MOST_STEPS, f"1 to {MOST_STEPS}"),
        ("runs", [args.runs], None, "1 or more"),
    ):
        for value in values:
            if value < 1 or (most and value > most):
                raise MkvizError(f"--{name}: {value}", right)
    if args.policy and args.policy not in POLICIES:
        raise MkvizError(f"--policy: {args.policy!r}", f"one of {', '.join(POLICIES)}")
    if args.policy == "claimed" and args.backend == "cuda":
        raise MkvizError("--policy: claimed on the cuda backend", "one that owns every task, such as round_robin")
    if args.shape and args.backend == "cpu":
        raise MkvizError(f"--shape {args.shape} --backend cpu", "--backend cuda, where its weights are drawn, or a --model")
    for name in ("ablate", "traces"):
        if getattr(args, name) and args.backend == "cpu":
            raise MkvizError(f"--{name} of the cpu backend", "--backend cuda: it is the kernel that is looked at")
    if args.traces and not args.traces.is_dir():
        raise MkvizError(f"--traces: {args.traces} is no directory", "one that is there")
    if args.json and not args.json.parent.is_dir():
        raise MkvizError(f"--json: {args.json.parent} is no directory", "one that is there")
    if args.baseline:
        _need_torch()
    if args.layers is not None and not args.shape:
        raise MkvizError(f"--layers: {args.layers} of a model", "a --shape, which may be cut")


def _model(args: argparse.Namespace) -> tuple[ModelConfig, Any, str]:
    """(config, weights or None, name); a shape's context is cut to what is measured, a model's must hold it."""
    longest = max(args.context) + args.steps
    if args.shape:
        from engine.shapes import shape

        whole = shape(args.shape, args.layers)
        config = shape(args.shape, args.layers, max_positions=longest)
        name = f"{args.shape}, random weights"
    else:
        from engine.checkpoint import Weights
        from engine.config import load_config
        from engine.models import resolve_model

        directory = resolve_model(args.model)
        whole = config = load_config(directory)
        name = args.model or "demo"
    if longest > whole.max_positions:
        raise MkvizError(
            f"--context: {max(args.context)} and {args.steps} steps", f"at most the {whole.max_positions} positions of {name}"
        )
    return config, None if args.shape else Weights.open(directory, config), name


def _runner(args: argparse.Namespace, config: ModelConfig, weights: Any) -> Runner:
    from engine.bench.runners import CpuRunner, CudaRunner

    kind = {"cpu": CpuRunner, "cuda": CudaRunner}[args.backend]
    if max(args.batch) > (most := kind.max_rows()):
        raise MkvizError(f"--batch: {max(args.batch)} rows", f"at most {most} on the {args.backend} backend")
    pages = max(args.batch) * pages_for(max(args.context) + args.steps)
    options = {"ring_capacity": RING} if args.traces else {}
    return kind(config, weights, pages=pages, steps=args.steps, rows=max(args.batch), policy=args.policy, **options)


def _told(args: argparse.Namespace, config: ModelConfig, name: str, runner: Runner) -> dict:
    """The head of the JSON."""
    device = getattr(runner.backend, "device", None)
    return conditions(device) | {
        "model": name,
        "layers": len(config.layers),
        "backend": args.backend,
        "tracing": "off",
        "policy": runner.backend.policy,
        "kv": f"standard normal, {8 * runner.kv_element} bits an element",
        "memory_bytes": {"weights": runner.weight_bytes, "kv": runner.backend.kv_bytes},
        "steps_per_launch": args.steps,
        "launches": args.runs,
        "method": METHOD,
        "ceiling": None,
        "points": [],
    }


def _write_to(path: Path | None):
    def save(told: dict) -> None:
        if path:
            path.write_text(json.dumps(told, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")

    return save


def _need_torch() -> None:
    try:
        import torch  # noqa: F401
    except ImportError:
        raise MkvizError("--baseline needs torch", 'pip install "mkviz[torch]"') from None
