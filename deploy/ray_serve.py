"""Replicas of the model server behind Ray Serve, on one machine or many (``pip install "mkviz[ray]"``).

    serve run --app-dir deploy ray_serve:app replicas=2 model=demo

Arguments are ``replicas`` and the settings of ``mkviz serve`` by their names in a file; its environment and ``config=FILE``
count as well.  Each replica has an engine, a KV cache and a queue of its own, and Ray hands a request to the less busy of two.
Address and port are Ray's: ``serve start --http-port``.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from ray import serve

from engine.serve.settings import Settings, load
from mkviz.errors import MkvizError

BESIDE = 16  # requests at once besides those that run and wait in the engine: /health, /metrics, those that are refused


@serve.deployment
@serve.ingress()
class Replica:
    """One engine with the OpenAI routes."""

    def __init__(self, settings: Settings):
        from engine.serve import logs
        from engine.serve.app import create_app
        from engine.serve.attach import open_attach
        from engine.serve.server import open_engine

        logs.configure(settings.log_format)
        self._engine = open_engine(settings)
        self._viewers = open_attach(self._engine, settings, serve.get_replica_context().replica_tag)
        self._routes = create_app(self._engine, settings)

    def __serve_build_asgi_app__(self):
        return self._routes

    def check_health(self) -> None:
        """Ray replaces a replica of which this raises: a step that never ends does not end by waiting."""
        if self._engine.stats().stuck:
            raise RuntimeError("a step outlasted the watchdog")

    def __del__(self):
        self._engine.close()
        if self._viewers:
            self._viewers.close()


def app(args: dict[str, Any]) -> serve.Application:
    """The application of these arguments.  Raises MkvizError for one that is none, and for values that cannot be."""
    args = {name: value if isinstance(value, (str, bool, list)) else str(value) for name, value in args.items()}
    replicas = args.pop("replicas", "1")
    known = {item.name for item in dataclasses.fields(Settings)} - {"host", "port"} | {"config"}
    for name in args:
        if name not in known:
            right = "serve start --http-host, --http-port" if name in ("host", "port") else f"one of {', '.join(sorted(known))}"
            raise MkvizError(f"{name}: no argument of a replica", right)
    if not str(replicas).isdecimal() or int(replicas) < 1:
        raise MkvizError(f"replicas: {replicas!r}", "a whole number from 1")
    settings = load(args)
    needs = {"num_gpus": 1} if settings.backend == "cuda" else {"num_cpus": settings.workers or 1}
    return Replica.options(
        name="mkviz", num_replicas=int(replicas), max_ongoing_requests=settings.batch + settings.queue + BESIDE,
        ray_actor_options=needs, graceful_shutdown_timeout_s=settings.shutdown_deadline,
    ).bind(settings)  # fmt: skip
