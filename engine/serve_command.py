"""The command ``mkviz serve``: the OpenAI API over HTTP."""

from __future__ import annotations

import argparse
from importlib.util import find_spec

from engine.serve.settings import add_arguments, load
from mkviz.errors import MkvizError

NEEDS = {"fastapi": "fastapi", "uvicorn": "uvicorn", "llguidance": "llguidance", "cohere_melody": "cohere-melody",
         "prometheus_client": "prometheus-client"}  # fmt: skip


class Serve:
    """``mkviz serve [MODEL]``: serves until SIGTERM or SIGINT, then lets running requests finish."""

    name = "serve"
    help = "serve a model over HTTP as the OpenAI API"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add_arguments(parser)

    def run(self, args: argparse.Namespace) -> int:
        settings = load(vars(args))
        missing = [project for module, project in NEEDS.items() if find_spec(module) is None]
        if missing:
            raise MkvizError(f"mkviz serve needs {', '.join(missing)}", 'pip install "mkviz[serve]"')
        from engine.serve.server import serve

        return serve(settings)
