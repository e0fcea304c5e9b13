"""EngineStats: what the engine holds and has done, at one moment."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class EngineStats:
    """``running``, ``waiting`` and ``preempted`` requests now; the pool's pages: ``total`` = held + ``pages_free``, of which
    ``pages_cached`` keep content that may be asked for again; ``stuck``: a step outlasted the watchdog and has not come back;
    ``records_unreadable``: they are traced no more, though requests are answered.

    Counts since the start: ``steps``; ``prefill_rows`` and ``decode_rows`` computed; ``prompt_tokens`` of requests that began,
    ``cached_tokens`` of these found in the cache; ``generated_tokens``; ``preemptions``; ``finished`` requests by reason (stop,
    length, stopped, failed); ``refused`` because the queue was full; ``failed_steps``.
    """

    running: int
    waiting: int
    preempted: int
    pages_total: int
    pages_free: int
    pages_cached: int
    stuck: bool
    records_unreadable: bool
    steps: int
    prefill_rows: int
    decode_rows: int
    prompt_tokens: int
    cached_tokens: int
    generated_tokens: int
    preemptions: int
    refused: int
    failed_steps: int
    finished: dict[str, int]
