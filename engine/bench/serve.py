"""``mkviz bench serve``: five workloads against a server of the OpenAI API, ours or any other's, by one client."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from engine.bench.workloads import WORKLOADS, Workload, digest, sample
from engine.serve.settings import load
from mkviz import __version__
from mkviz.errors import MkvizError

_OPENING = 600.0  # seconds for a server of our own to open its model


class BenchServe:
    name = "serve"
    help = "time to first token, between tokens, and tok/s of a server, in five workloads"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--url", help="a running server; without, one is started for this (MKVIZ_SERVE_* settings apply)")
        parser.add_argument("--model", help="the name that requests ask for (default: the first that the server lists)")
        parser.add_argument("--api-key", default=os.environ.get("OPENAI_API_KEY"), help="default: OPENAI_API_KEY")
        parser.add_argument("--workload", action="append", choices=WORKLOADS, help="may be given again (default: all five)")
        parser.add_argument("--requests", type=int, default=16, help="conversations in each workload (default 16)")
        parser.add_argument("--concurrency", type=int, default=4, help="of them at once (default 4)")
        parser.add_argument(
            "--rate", type=float, help="instead: so many begin each second, at random times, whether they end or not"
        )
        parser.add_argument("--context", type=int, help="tokens that the model's context holds, if the server does not tell")
        parser.add_argument("--eos", action="store_true", help="let answers end by themselves; for servers without ignore_eos")
        parser.add_argument("--seed", type=int, default=0, help="of the texts and the times (default 0)")
        parser.add_argument(
            "--timeout", type=float, default=600.0, help="seconds without a byte that fail an answer (default 600)"
        )
        parser.add_argument("--out", type=Path, help="the JSON (default bench-serve-TIME.json)")

    def run(self, args: argparse.Namespace) -> int:
        if find_spec("httpx") is None:
            raise MkvizError("mkviz bench serve needs httpx", 'pip install "mkviz[serve]"')
        for name, ok in (
            ("requests", args.requests >= 1),
            ("concurrency", args.concurrency >= 1),
            ("rate", args.rate is None or args.rate > 0),
            ("timeout", args.timeout > 0),
        ):
            if not ok:
                raise MkvizError(f"--{name}: {getattr(args, name)}", "a positive number")
        out = args.out or Path(time.strftime("bench-serve-%Y%m%d-%H%M%S.json"))
        if not out.parent.is_dir():
            raise MkvizError(f"--out: {out.parent} is no directory", "one that is there")
        if not args.url and (keys := load().api_key):
            args.api_key = keys[0]
        with contextlib.nullcontext(args.url) if args.url else own_server() as url:
            told = asyncio.run(measure(url, args))
        out.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
        print(f"{out}", file=sys.stderr)
        return 1 if any(w["errors"] for w in told["workloads"]) else 0


async def measure(url: str, args: argparse.Namespace) -> dict:
    """All workloads against ``url``, each printed as it ends; returns what goes into the JSON."""
    from engine.bench.client import Client
    from engine.bench.load import Load

    client = Client(url, "", args.api_key, {} if args.eos else {"ignore_eos": True}, args.timeout)
    try:
        models = await client.models()
        client.model = args.model or models[0]["id"]
        context = args.context or next((m.get("max_model_len") for m in models if m["id"] == client.model), None)
        if not context:
            raise MkvizError(f"context: {url} does not tell its model's", "--context TOKENS")
        letters = len(sample()) / await client.count(sample())
        load = Load(args.requests, args.concurrency, args.rate, args.seed)
        told = {
            "mkviz": __version__,
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "url": url,
            "model": client.model,
            "server": await client.get("/version"),
            "context": context,
            "client": {"machine": platform.platform(), "python": platform.python_version(), "texts": digest()},
            "load": {"requests": load.requests, "seed": load.seed, "ignore_eos": not args.eos}
            | ({"concurrency": load.concurrency} if load.rate is None else {"rate": load.rate}),
            "workloads": [],
        }
        for name in args.workload or WORKLOADS:
            workload = WORKLOADS[name].within(context)
            begin = time.monotonic()
            answers = await load.run(client, workload, letters)
            told["workloads"].append(summary(WORKLOADS[name], workload, answers, time.monotonic() - begin))
            print(line(told["workloads"][-1]), flush=True)
        return told
    finally:
        await client.close()


def summary(asked: Workload, used: Workload, answers: list, seconds: float) -> dict:
    """The figures of one workload: ms and tokens a second, over the answers that did not fail."""
    good = [answer for answer in answers if not answer.error]
    rates = [(a.tokens - 1) / (a.came[-1] - a.came[0]) for a in good if a.tokens > 1 and len(a.came) > 1]
    return {
        "name": asked.name,
        "words": asked.words,
        "asked": {"prompt": asked.prompt, "output": asked.output, "turns": asked.turns, "more": asked.more},
        "used": {"prompt": used.prompt, "output": used.output, "turns": used.turns, "more": used.more},
        "cut": used != asked,
        "seconds": seconds,
        "answers": len(answers),
        "errors": len(answers) - len(good),
        "prompt_tokens": sum(a.prompt_tokens for a in good),
        "cached_tokens": sum(a.cached_tokens for a in good),
        "tokens": sum(a.tokens for a in good),
        "pieces": sum(len(a.came) for a in good),
        "ttft_ms": percentiles([a.ttft * 1e3 for a in good]),
        "itl_ms": percentiles([gap * 1e3 for a in good for gap in a.gaps]),
        "tok_s_each": percentiles(rates),
        "tok_s": sum(a.tokens for a in good) / seconds,
        "each": [answer.told() for answer in answers],
    }


def percentiles(values: list[float]) -> dict:
    """With how many values they are of: a p99 of fewer than a hundred is their largest, or nearly."""
    if not values:
        return {"count": 0}
    p50, p90, p99 = np.percentile(values, (50, 90, 99)).tolist()
    return {"count": len(values), "mean": float(np.mean(values)), "p50": p50, "p90": p90, "p99": p99, "max": max(values)}


def line(told: dict) -> str:
    """One workload for people."""
    used, asked = told["used"], told["asked"]
    lengths = f"{used['prompt']} in, {used['output']} out" + (f", {used['turns']} turns" if used["turns"] > 1 else "")
    if told["cut"]:
        lengths += f" (cut to the context from {asked['prompt']} in, {asked['output']} out)"
    failed = ""
    if told["errors"]:
        why = next(answer["error"] for answer in told["each"] if answer["error"])
        failed = f"; {told['errors']} of {told['answers']} FAILED: {why}"
    if told["errors"] == told["answers"]:
        return f"{told['words']}: {lengths}{failed}"
    first, between = told["ttft_ms"], told["itl_ms"]
    text = f"{told['words']}: {lengths}; first token p50 {first['p50']:.1f} ms, p99 {first['p99']:.1f} ms; "
    if between["count"]:
        text += f"between tokens p50 {between['p50']:.2f} ms, p99 {between['p99']:.2f} ms; "
    return text + f"{told['tok_s']:.1f} tok/s in all{failed}"


@contextlib.contextmanager
def own_server() -> Iterator[str]:
    """The address of ``mkviz serve`` in a process of its own, so that the client does not share its interpreter."""
    with tempfile.TemporaryFile("w+") as log:
        command = [sys.executable, "-m", "mkviz", "serve", "--port", "0", "--log-format", "json"]
        server = subprocess.Popen(command, stderr=log, stdout=subprocess.DEVNULL)
        try:
            yield _address(server, log)
        finally:
            server.send_signal(signal.SIGTERM)
            server.wait()


def _address(server: subprocess.Popen, log) -> str:
    end = time.monotonic() + _OPENING
    while time.monotonic() < end:
        ended = server.poll() is not None
        log.seek(0)
        lines = log.read().splitlines()
        for text in lines:
            if text.startswith("{") and (url := json.loads(text).get("url")):
                return url
        if ended:
            raise MkvizError(f"mkviz serve: {lines[-1] if lines else 'ended'}", "settings it can serve with")
        time.sleep(0.05)
    raise MkvizError(f"mkviz serve: no answer within {_OPENING:.0f} s", "a server of your own, and --url")
