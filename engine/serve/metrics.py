"""Metrics: what /metrics tells Prometheus: requests, tokens, times to first and next token, and the engine's own counts."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from engine.engine import Engine
from engine.sequence import Sequence

_FIRST = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60)
_NEXT = (0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05, 0.1, 0.2, 0.5, 1, 5)
_WHOLE = (0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 300, 1000)


class Metrics:
    """A registry of its own, so that several servers in one process do not mix."""

    def __init__(self, engine: Engine):
        registry = self._registry = CollectorRegistry()
        self.http = Counter("mkviz_http_requests", "Requests by route, method and status", ("route", "method", "status"),
                            registry=registry)  # fmt: skip
        self.queued = Histogram("mkviz_queue_seconds", "Arrival to start", buckets=_FIRST, registry=registry)
        self.first = Histogram("mkviz_time_to_first_token_seconds", "Arrival to first token", buckets=_FIRST, registry=registry)
        self.next = Histogram("mkviz_inter_token_seconds", "From a token to the next of its request", buckets=_NEXT,
                              registry=registry)  # fmt: skip
        self.whole = Histogram("mkviz_request_seconds", "Arrival to last token", buckets=_WHOLE, registry=registry)
        registry.register(_EngineCounts(engine))

    def token(self, before: int | None, time: int) -> None:
        """A token that came ``time`` ns after its request did, the one before it ``before`` ns (None: it is the first)."""
        if before is None:
            self.first.observe(time / 1e9)
        else:
            self.next.observe((time - before) / 1e9)

    def ended(self, sequence: Sequence) -> None:
        if sequence.started:
            self.queued.observe((sequence.started - sequence.arrived) / 1e9)
        if sequence.last_token:
            self.whole.observe((sequence.last_token - sequence.arrived) / 1e9)

    def text(self) -> bytes:
        return generate_latest(self._registry)


_NOW = {
    "running": "Requests that run",
    "waiting": "Requests that wait for their first step",
    "preempted": "Requests that gave their pages back and wait to go on",
    "pages_total": "KV pages",
    "pages_free": "KV pages that nobody holds",
    "pages_cached": "Of the free ones, those that keep content that may be asked for again",
    "stuck": "1 while a step has outlasted the watchdog",
    "records_unreadable": "1 once records can be read no more: viewers see nothing new",
}
_SINCE_START = {
    "steps": "Steps",
    "prefill_rows": "Rows of prompts computed",
    "decode_rows": "Rows of decoding requests computed",
    "prompt_tokens": "Prompt tokens of requests that began",
    "cached_tokens": "Of them, found in the prefix cache",
    "generated_tokens": "Tokens generated",
    "preemptions": "Times that a running request had to give its pages back",
    "refused": "Requests refused because the queue was full",
    "failed_steps": "Steps that failed",
}


class _EngineCounts:
    """The engine's own counts, read when they are asked for."""

    def __init__(self, engine: Engine):
        self._engine = engine

    def collect(self):
        stats = self._engine.stats()
        for name, words in _NOW.items():
            yield GaugeMetricFamily(f"mkviz_{name}", words, value=getattr(stats, name))
        for name, words in _SINCE_START.items():
            yield CounterMetricFamily(f"mkviz_{name}", words, value=getattr(stats, name))
        finished = CounterMetricFamily("mkviz_finished", "Answers by how they ended", labels=["reason"])
        for reason, count in stats.finished.items():
            finished.add_metric([reason], count)
        yield finished
