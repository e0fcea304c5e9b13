"""The command ``mkviz generate``: prompt in, text out, and a trace of every task if wanted."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from mkviz.errors import MkvizError
from mkviz.protocols import GenerateRequest


def add_engine_arguments(parser: argparse.ArgumentParser) -> None:
    """What every command that opens an engine takes."""
    parser.add_argument("--model", help="a directory, a fetched model's name, or demo (the default)")
    parser.add_argument("--backend", choices=("cpu", "cuda"), default="cpu", help="where steps run (default cpu)")
    parser.add_argument("--sms", type=int, help="SMs: those that the cpu backend plays (default 16), or fewer of the GPU's")
    parser.add_argument("--workers", type=int, help="threads that play them (default: one per core)")
    parser.add_argument("--mode", choices=("fp32", "bf16"), default="fp32", help="bf16 rounds where a kernel rounds")
    parser.add_argument("--pages", type=int, help="KV pages of 64 tokens (default: what the contexts and memory ask for)")
    parser.add_argument(
        "--rows", type=int, choices=(8, 16, 32, 64, 128, 256), help="rows of a step at most (default 64, or what fits the GPU)"
    )
    parser.add_argument("--no-device-sampling", action="store_true", help="pick tokens on the host (cuda picks in the kernel)")
    parser.add_argument("--context", type=int, help="tokens of the longest request (default: the model's)")
    parser.add_argument(
        "--policy",
        default="",
        help="scheduling policy (default: the backend's own)",
    )


def open_engine(args: argparse.Namespace, **options):
    from engine.engine import Engine

    options["rows"] = args.rows
    if args.backend == "cpu":
        options |= {"sms": args.sms or 16, "workers": args.workers, "mode": args.mode}
    elif args.workers or args.mode != "fp32":
        raise MkvizError("--workers and --mode", "the cpu backend only")
    else:
        options |= {"sms": args.sms, "sampling": not args.no_device_sampling}
    return Engine(args.model, backend=args.backend, policy=args.policy, pages=args.pages, context=args.context, **options)


class Generate:
    """``mkviz generate "prompt"``: streams the answer to stdout and the figures to stderr."""

    name = "generate"
    help = "generate text from a prompt, optionally recording a trace"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("prompt", help="the prompt; - reads it from stdin")
        add_engine_arguments(parser)
        parser.add_argument("--raw", action="store_true", help="continue the prompt as it is, without the chat template")
        parser.add_argument("--max-tokens", type=int, default=256, help="tokens to generate at most (default 256)")
        parser.add_argument("--temperature", type=float, default=0.0, help="0 is greedy (the default)")
        parser.add_argument("--top-k", type=int, default=0, help="keep the k likeliest tokens; 0 keeps all (the default)")
        parser.add_argument("--top-p", type=float, default=1.0, help="keep the likeliest tokens up to this mass (default 1)")
        parser.add_argument("--min-p", type=float, default=0.0, help="keep tokens of this share of the likeliest's probability")
        parser.add_argument("--seed", type=int, help="the same seed gives the same tokens (default: drawn anew)")
        parser.add_argument("--stop", action="append", default=[], help="stop before this string; may be given again")
        parser.add_argument("--trace", metavar="OUT.mkt", type=Path, help="record every task of every step")
        parser.add_argument("--slowest", metavar="N", type=int, help="in the trace keep the N slowest steps of each shape only")
        parser.add_argument("--overwrite", action="store_true", help="replace an existing trace")

    def run(self, args: argparse.Namespace) -> int:
        from engine.generator import EngineGenerator
        from mkviz.flight import SLOWEST, FlightRecorder
        from mkviz.trace import TraceWriter
        from mkviz.trace.schema import label_of

        if args.slowest is not None and (args.trace is None or args.slowest < 1):
            raise MkvizError(f"--slowest {args.slowest}", "1 or more, with --trace")
        prompt = sys.stdin.read() if args.prompt == "-" else args.prompt
        if not prompt.strip():
            raise MkvizError("prompt: empty", "some text")
        request = GenerateRequest(
            prompt, max_tokens=args.max_tokens, temperature=args.temperature, top_k=args.top_k, top_p=args.top_p,
            min_p=args.min_p, seed=args.seed, stop=tuple(args.stop),
        )  # fmt: skip
        writer = recorder = None
        engine = open_engine(args, trace=args.trace is not None, lossless=True, batch=1)
        try:
            generator = EngineGenerator(engine, raw=args.raw, live=False)
            generator.check(request)  # before a trace is begun
            if args.trace is not None:
                writer = TraceWriter(
                    args.trace,
                    kind="measured",
                    label=label_of("measured", engine.device) + (SLOWEST if args.slowest else ""),
                    device=engine.device,
                    overwrite=args.overwrite,
                    about={"flight": {"worst": args.slowest}} if args.slowest else None,
                )
                if args.slowest:
                    recorder = FlightRecorder(device=engine.device, worst=args.slowest)
                engine.add_sink(recorder or writer)
            pieces = []
            complete = False
            try:
                begin = time.monotonic_ns()
                for piece in generator.stream(request):
                    pieces.append(piece)
                    print(piece.text, end="", flush=True)
                complete = True
            finally:
                if writer is not None:
                    engine.remove_sink(recorder or writer)
                    if recorder is not None:
                        recorder.replay(writer)
                    failure = engine.drain.failure
                    writer.close(complete and failure is None)
                print()
        finally:
            engine.close()
        _report(pieces, begin)
        if writer is not None:
            if writer.error:
                raise MkvizError(writer.error, "free space, or another place")
            if failure is not None:
                raise MkvizError(f"trace {args.trace}: records could be read no more ({failure})", "it has the steps before")
            print(f"trace: {args.trace} (mkviz view {args.trace})", file=sys.stderr)
        return 0


def _report(pieces, begin: int) -> None:
    """Tokens, time to first token and decode speed of this run, to stderr."""
    times = [p.time for p in pieces if p.token >= 0]
    if not times:
        return
    line = f"{len(times)} tokens, first after {times[0] / 1e6:.1f} ms"
    if len(times) > 1:
        line += f", then {(len(times) - 1) / (times[-1] - times[0]) * 1e9:.1f} tok/s"
    print(f"{line} ({(time.monotonic_ns() - begin) / 1e9:.2f} s in all)", file=sys.stderr)
