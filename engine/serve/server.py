"""The process: a socket, an engine, the application on uvicorn, and an end that lets running requests finish."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import threading

import uvicorn

from engine.engine import Engine
from engine.serve import logs
from engine.serve.app import create_app
from engine.serve.attach import open_attach
from engine.serve.settings import Settings
from mkviz.errors import MkvizError

log = logging.getLogger("mkviz.serve")
_LAST_WORDS = 5.0  # seconds for connections to close after their requests were cancelled


class Server(uvicorn.Server):
    """SIGTERM or SIGINT: take no more connections, refuse new requests, give those that run their deadline; a second one ends
    at once.  Unlike its parent it does not raise the signal again, so that the process ends with the exit code it wants."""

    @contextlib.contextmanager
    def capture_signals(self):
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def handle_exit(self, sig: int, frame) -> None:
        self.force_exit = self.should_exit
        self.should_exit = True

    greeting: tuple[str, dict] | None = None  # for the log, once requests are taken

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.greeting:
            log.info(self.greeting[0], extra={"fields": self.greeting[1]})

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        service = self.config.app.state.service
        service.draining = True
        deadline = service.settings.shutdown_deadline
        log.info("shutting down", extra={"fields": {"running": len(service.runs), "deadline_s": deadline}})
        timer = asyncio.get_running_loop().call_later(deadline, service.cancel_all)
        await super().shutdown(sockets)
        timer.cancel()


def make_server(engine: Engine, settings: Settings) -> Server:
    config = uvicorn.Config(
        create_app(engine, settings), log_config=None, access_log=False, lifespan="off", server_header=False,
        timeout_graceful_shutdown=settings.shutdown_deadline + _LAST_WORDS,
    )  # fmt: skip
    return Server(config)


def bind(settings: Settings) -> socket.socket:
    """The socket, not listening yet: whoever connects while the model loads is refused rather than kept waiting."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    out = socket.socket(family, socket.SOCK_STREAM)
    out.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        out.bind((settings.host, settings.port))
    except OSError as error:
        out.close()
        raise MkvizError(f"host {settings.host}, port {settings.port}: {error.strerror}", "a free port, or 0 for any") from None
    return out


def open_engine(settings: Settings) -> Engine:
    options = {
        name: getattr(settings, name)
        for name in ("backend", "sms", "policy", "context", "pages", "batch", "queue", "itl_budget_ms", "prefix_cache",
                     "step_timeout", "trace", "rows")
    }  # fmt: skip
    if settings.backend == "cpu":
        options |= {"sms": settings.sms or 16, "workers": settings.workers, "mode": settings.mode}
    else:
        if settings.workers or settings.mode != "fp32":
            raise MkvizError("workers and mode", "the cpu backend only")
        options |= {"sampling": settings.device_sampling}
    return Engine(None if settings.model == "demo" else settings.model, **options)


def serve(settings: Settings) -> int:
    """Serve until a signal ends it; returns the exit code."""
    logs.configure(settings.log_format)
    with bind(settings) as listener:
        log.info("loading", extra={"fields": {"model": settings.model, "backend": settings.backend}})
        host, port = listener.getsockname()[:2]
        engine = open_engine(settings)
        viewers = open_attach(engine, settings, port)
        try:
            server = make_server(engine, settings)
            if not settings.api_key and not host.startswith("127.") and host != "::1":
                log.warning("anyone who reaches this address may use it: there is no api_key")
            url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
            attach = {"attach": viewers.name} if viewers else {}
            fields = {"url": url, "context": engine.context, "pages": engine.pool.total, **attach}
            server.greeting = f"serving {engine.model}", fields
            server.run(sockets=[listener])
        finally:
            engine.close()
            if viewers:
                viewers.close()
    log.info("ended")
    return 0
