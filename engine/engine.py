"""Engine: batches requests into steps, runs them on a backend, streams tokens, and feeds the drain."""

from __future__ import annotations

import itertools
import sys
import threading
import time
from collections import Counter
from math import ceil
from typing import Any

from engine.adjust import Constraint
from engine.backends import backend_class, options_of
from engine.batching import Batcher, Step
from engine.checkpoint import Weights
from engine.config import ModelConfig, load_config
from engine.kv import PagePool
from engine.models import resolve_model
from engine.pick import logprobs, pick
from engine.plan import StepPlan, StepResult
from engine.sampling import SamplingParams
from engine.sequence import Pieces, Sequence
from engine.stats import EngineStats
from engine.step_time import StepTime
from engine.tables import build_tables
from engine.tiling import PAGE
from engine.tokenizer import Tokenizer
from engine.watchdog import Watchdog
from mkviz.drain import BUDGET, Drain
from mkviz.errors import MkvizError
from mkviz.protocols import Piece, Row, Sink, StepInfo, TokenInfo


class QueueFull(MkvizError):
    """Nobody else may wait now; ``retry_after``: seconds until somebody will probably have ended."""

    def __init__(self, waiting: int, retry_after: int):
        super().__init__(f"queue: full, {waiting} requests wait", f"try again in {retry_after} s")
        self.retry_after = retry_after


class StepFailed(MkvizError):
    """A step failed or did not end: no fault of the request that is told so."""

    exit_code = 1


class Engine:
    """Serves one model (a config: random weights, on cuda, and the demo model's tokenizer, to measure a shape).

    Up to ``batch`` requests run at once and ``queue`` more may wait (None: any number); the order of things is told in
    :mod:`engine.batching`.

    Each step carries one row of every decoding request and prompt tokens of those being prefilled, so that a new request does
    not stop the others.  ``itl_budget_ms``: from one token of a request to its next, prompts take no more time than this leaves
    (None: as many rows as fit a step), and no step waits for a task table (:mod:`engine.tables`).  ``context``: longest
    request in tokens, if less than the model's.  ``pages``: KV pages of 64 tokens.  ``prefix_cache``: whether requests of one
    salt share the pages of a common beginning.  ``pause_decode``: no request decodes while a prompt is read, for comparison.
    ``step_timeout``: seconds after which a step is given up and its requests fail.
    ``backend``: cpu or cuda; ``options`` go to it (sms, …; :func:`engine.backends.options_of` has those that nobody gives).

    ``lossless``: no record may be lost, so rings that are half full are emptied before the next step begins.  That takes time
    between steps and none within them: a step lasts from the first ready to the last publish of its tasks.  Without, whoever
    reads too slowly misses whole steps, which are counted, and the engine never waits.
    """

    def __init__(self, model: str | ModelConfig | None = None, *, backend: str = "cpu", batch: int = 8,
                 queue: int | None = None, pages: int | None = None, context: int | None = None,
                 itl_budget_ms: float | None = None, prefix_cache: bool = True, pause_decode: bool = False,
                 step_timeout: float = 300.0, trace: bool = True, lossless: bool = False, **options):  # fmt: skip
        shape = model if isinstance(model, ModelConfig) else None
        directory = resolve_model(None if shape else model)
        self.directory = directory
        self.model = shape.family if shape else directory.name if model else "demo"
        self.config = (shape or load_config(directory)).within(context)
        self.tokenizer = Tokenizer.open(directory, self.config.vocab)
        self.batch, self.queue = batch, queue
        kind = backend_class(backend)
        most = options.get("rows") or kind.max_rows
        for name, value, ok, right in (
            ("backend", backend, not shape or backend == "cuda", "cuda for a shape without weights: they are drawn there"),
            ("batch", batch, 1 <= batch <= most, f"1 to {most} requests, a row each"),
            ("queue", queue, queue is None or queue >= 0, "None (any number) or the requests that may wait"),
            ("itl_budget_ms", itl_budget_ms, itl_budget_ms is None or itl_budget_ms > 0, "None or a positive number"),
            ("step_timeout", step_timeout, step_timeout > 0, "a positive number of seconds"),
        ):
            if not ok:
                raise MkvizError(f"{name}: {value}", right)
        weights = None if shape else Weights.open(directory, self.config)
        options = options_of(kind, self.config, batch, pages) | options
        self.backend = kind(self.config, weights, trace=trace, **options)
        if batch > (most := self.backend.max_rows):
            self.backend.close()
            raise MkvizError(f"batch: {batch}", f"at most {most}: more rows leave this GPU no room in its shared memory")
        keys = min(self.config.max_positions, self.backend.pages * PAGE)
        self._tables = build_tables(self.backend, keys) if itl_budget_ms else []  # yet to be built
        self.pool = PagePool(self.backend.pages)
        sliding = all(layer.attention == "sliding" for layer in self.config.layers)
        self.batcher = Batcher(
            self.pool, StepTime(self.config), max_rows=self.backend.max_rows, batch=batch,
            budget_ns=itl_budget_ms and itl_budget_ms * 1e6, window=self.config.window if sliding else 0,
            prefix_cache=prefix_cache, pause_decode=pause_decode,
        )  # fmt: skip
        self.lossless = lossless
        self.drain = Drain(self.backend.rings.link(), budget=None if lossless else BUDGET).start() if trace else None
        self._announced: set[int] = set()  # graphs that the drain knows
        self._numbers = itertools.count()
        self._counts: Counter[str] = Counter()
        self._run_seconds = 1.0  # that a request runs, of late
        self._running_step: Step | None = None
        self._abandoned: list[Sequence] = []  # failed by the watchdog; their pages are the stuck step's until it comes back
        self._wake = threading.Condition(threading.RLock())
        self._closed = False
        self._watchdog = Watchdog(step_timeout, self._give_up)
        self._thread = threading.Thread(target=self._loop, name="mkviz-engine", daemon=True)
        self._thread.start()

    @property
    def device(self) -> str:
        """What steps run on: ``cpu``, or the name of the GPU."""
        device = getattr(self.backend, "device", None)
        return device.name if device else self.backend.name

    # -- requests; any thread -------------------------------------------------------------------------------------------

    @property
    def context(self) -> int:
        """Tokens that a request may come to hold, prompt and answer together."""
        return min(self.config.max_positions, self.pool.total * PAGE)

    def check(self, tokens: list[int], params: SamplingParams) -> None:
        """Raise MkvizError when this request can never run: empty, or longer than the context or the KV cache."""
        limit = self.context
        if not tokens:
            raise MkvizError("prompt: no tokens", "at least one")
        if len(tokens) >= limit:
            raise MkvizError(f"prompt: {len(tokens)} tokens", f"at most {limit - 1} fit the context of {limit}")
        if len(tokens) + params.max_tokens > limit:
            raise MkvizError(
                f"max_tokens: {params.max_tokens} after a prompt of {len(tokens)} tokens",
                f"at most {limit - len(tokens)}, the context holds {limit}",
            )
        for name, ids in (("prompt", tokens), ("logit_bias", params.logit_bias)):
            for token in ids:
                if not 0 <= token < self.config.vocab:
                    raise MkvizError(f"{name}: token {token}", f"0 to {self.config.vocab - 1}")

    def submit(self, tokens: list[int], params: SamplingParams, prompt: str = "", *, salt: str = "",
               constraint: Constraint | None = None, label: str = "", out: Any = None) -> Sequence:  # fmt: skip
        """Queue a request and return at once.  Raises what :meth:`check` raises, and :class:`QueueFull`.

        ``salt``: whose request it is; cached pages are shared, and turns taken, by it.  ``out``: gets the pieces by ``put``,
        from the engine's thread (default: a queue, for :meth:`stream`).
        """
        self.check(tokens, params)
        more = {} if out is None else {"out": out}
        sequence = Sequence(next(self._numbers), list(tokens), params, self.tokenizer.detokenizer(), prompt, salt=salt,
                            constraint=constraint, label=label, **more)  # fmt: skip
        with self._wake:
            if self._closed:
                raise MkvizError("engine: closed", "open a new one")
            if self.queue is not None and sum(1 for _ in self.batcher) >= self.batch + self.queue:
                self._counts["refused"] += 1
                raise QueueFull(len(self.batcher.waiting), max(1, ceil(self._run_seconds / self.batch)))
            self._tell(sequence)  # before the loop can tell more of it
            self.batcher.waiting.add(sequence)
            self._wake.notify()
        return sequence

    def stream(self, sequence: Sequence) -> Pieces:
        """The pieces of a request as they come; closing them stops the request before the next step."""
        return Pieces(sequence)

    def stats(self) -> EngineStats:
        with self._wake:
            b, counts = self.batcher, self._counts
            reasons = {r: counts[r] for r in ("stop", "length", "stopped", "failed")}
            names = ("steps", "prefill_rows", "decode_rows", "prompt_tokens", "cached_tokens", "generated_tokens",
                     "preemptions", "refused", "failed_steps")  # fmt: skip
            return EngineStats(
                running=len(b.running), waiting=len(b.waiting), preempted=len(b.preempted), pages_total=self.pool.total,
                pages_free=self.pool.free, pages_cached=self.pool.idle, stuck=bool(self._abandoned), finished=reasons,
                records_unreadable=self.drain is not None and self.drain.failure is not None,
                **{name: counts[name] for name in names},
            )  # fmt: skip

    def close(self) -> None:
        """Stop every request, drain the rest of the records, end the threads.  A step that is stuck is left behind."""
        with self._wake:
            self._closed = True
            self._wake.notify()
        while self._thread.is_alive() and not self._abandoned:
            self._thread.join(0.1)
        self._watchdog.close()
        try:
            if not self._abandoned:
                self.backend.close()
        finally:
            if self.drain is not None:
                self.drain.close()

    def add_sink(self, sink: Sink) -> None:
        if self.drain is None:
            raise MkvizError("engine: tracing is off", "open it with trace=True")
        self.drain.add_sink(sink)

    def remove_sink(self, sink: Sink) -> None:
        """Hand the sink everything that has happened so far, then let go of it."""
        if self.drain is not None:
            self.drain.remove_sink(sink, settle=True)

    # -- the loop -------------------------------------------------------------------------------------------------------

    def _loop(self) -> None:
        while True:
            with self._wake:
                while not (self._closed or self._tables or any(True for _ in self.batcher)):
                    self._wake.wait()
                if self._closed:
                    for sequence in list(self.batcher):
                        self._end(sequence, "stopped")
                    return
                idle = not any(True for _ in self.batcher)
            if idle:
                self._build_table()
                continue
            try:
                self._drop_cancelled()
                self._admit()
                if self.batcher.running:
                    self._step()
            except Exception as error:  # in the engine itself: those that run learn why; the engine goes on
                for sequence in list(self.batcher.running) or list(self.batcher)[:1]:
                    self._end(sequence, "failed", error)

    def _build_table(self) -> None:
        """One that steps can do without: who arrives meanwhile waits for this one, not for all."""
        try:
            self.backend.program(self._tables.pop(0))
        except Exception as error:  # no room for it
            print(f"task tables: {error}; steps take those there are", file=sys.stderr, flush=True)
            self._tables.clear()

    def _drop_cancelled(self) -> None:
        with self._wake:
            cancelled = [s for s in self.batcher if s.cancelled]
        for sequence in cancelled:
            self._end(sequence, "stopped")

    def _admit(self) -> None:
        with self._wake:
            for sequence in self.batcher.admit():
                if not sequence.preemptions:
                    self._counts["prompt_tokens"] += sequence.prompt_tokens
                    self._counts["cached_tokens"] += sequence.cached_tokens
                self._tell(sequence)

    def _step(self) -> None:
        begin = time.monotonic_ns()
        with self._wake:
            step = self.batcher.plan(begin)
            self._counts["preemptions"] += len(step.preempted)
        for sequence in step.preempted:
            self._tell(sequence)
        if not step.rows:
            return
        graphs, spans = len(self.backend.graphs), step.spans
        try:
            number, result = self._run(step)
        except Exception as error:  # each request in the step learns why, the others go on
            self._counts["failed_steps"] += 1
            if not isinstance(error, MkvizError):
                cause, error = error, StepFailed(f"step: {type(error).__name__}: {error}", "a bug, or a broken device")
                error.__cause__ = cause
            for sequence, _ in step.rows:
                self._end(sequence, "failed", error)
            return
        last = -1
        for sequence, count in step.rows:
            first, last = last + 1, last + count
            if sequence.state != "failed":  # the watchdog was not quicker
                self._take(sequence, number, result, first, last)
        if len(self.backend.graphs) == graphs:  # it took no time to build a new one
            self.batcher.step_time.observe(spans, time.monotonic_ns() - begin)

    def _run(self, step: Step) -> tuple[int, StepResult]:
        """(number, result) of a step.  While it runs, the watchdog may fail the requests in it."""
        if step.opened:
            self.backend.zero_pages(step.opened)
        if self.lossless and self.drain is not None:
            self.drain.make_room()
        plan, number = step.for_backend(), self.backend.serial
        self._running_step = step
        try:
            with self._watchdog:
                result = self.backend.step(plan)
        finally:
            with self._wake:
                self._running_step = None
                for sequence in self._abandoned:
                    self.batcher.release(sequence)
                self._abandoned.clear()
        self._report(step, plan, number, result)
        return number, result

    def _give_up(self, seconds: float) -> None:
        """The watchdog's: nothing can be done to the step, but nobody in it has to wait for it."""
        error = StepFailed(f"step {self.backend.serial}: no end after {seconds:.0f} s", "the request is lost; try again")
        with self._wake:
            for sequence, _ in self._running_step.rows if self._running_step else ():
                self._abandoned.append(sequence)
                self._end(sequence, "failed", error)

    def _take(self, sequence: Sequence, step: int, result: StepResult, first: int, last: int) -> None:
        """The step has computed the rows from ``first`` to ``last`` of this sequence."""
        params, position = sequence.params, sequence.computed
        try:
            for p in sequence.prompt_rows_wanted:
                if p > position + last - first:
                    break
                row = result.logits[first + p - position]
                sequence.prompt_logprobs.append(logprobs(row, sequence.tokens[p + 1], params.prompt_logprobs))
            with self._wake:
                self.batcher.computed(sequence, last - first + 1)
            self._counts["decode_rows" if sequence.state == "decode" else "prefill_rows"] += last - first + 1
            if sequence.left:
                return
            piece = self._next(sequence, step, result, last)
        except Exception as error:  # this request's own trouble: logits without a largest, a constraint that fails
            self._end(sequence, "failed", error)
            return
        self._counts["generated_tokens"] += 1
        if self.drain is not None:
            self.drain.token(
                TokenInfo(sequence.request, piece.index, piece.token, piece.text, step, sequence.arrived + piece.time)
            )
        if sequence.state == "prefill":
            sequence.state = "decode"
            self._tell(sequence)
        sequence.put(piece)
        if piece.finish_reason:
            self._end(sequence, "done")

    def _next(self, sequence: Sequence, step: int, result: StepResult, row: int) -> Piece:
        """Pick the token that follows the last one."""
        params, position = sequence.params, len(sequence.tokens) - 1
        token = int(result.greedy[row])
        if self.backend.sampling and sequence.asks and token >= 0:  # it is picked
            if params.logprobs is not None:
                sequence.logprobs.append(result.told[row])
            return sequence.accept(token, step, self.config.eos)
        own = result.logits[row]
        logits = sequence.adjusted(own, self.config.eos)
        if token < 0 or logits is not own or params.temperature:
            token = pick(logits, params, position)
        if params.logprobs is not None:
            sequence.logprobs.append(logprobs(own, token, params.logprobs))
        return sequence.accept(token, step, self.config.eos)

    def _end(self, sequence: Sequence, state: str, error: Exception | None = None) -> None:
        with self._wake:
            if sequence.ended:
                return
            self.batcher.remove(sequence)
            if not any(s is sequence for s in self._abandoned):
                self.batcher.release(sequence)
            sequence.state, sequence.ended = state, time.monotonic_ns()
            if sequence.started:
                self._run_seconds += 0.2 * ((sequence.ended - sequence.started) / 1e9 - self._run_seconds)
            if state != "done":
                sequence.finish_reason = state
            self._counts[sequence.finish_reason] += 1
        if state != "done":
            sequence.put(error or Piece("", finish_reason=state))
        self._tell(sequence)

    # -- the drain ------------------------------------------------------------------------------------------------------

    def _tell(self, sequence: Sequence) -> None:
        if self.drain is not None:
            self.drain.request(sequence.info())

    def _report(self, step: Step, plan: StepPlan, number: int, result: StepResult) -> None:
        self._counts["steps"] += 1
        if self.drain is None:
            return
        if result.graph not in self._announced:
            self._announced.add(result.graph)
            self.drain.graph(result.graph, *self.backend.graphs[result.graph])
        of = [sequence for sequence, _ in step.rows]
        rows = [
            Row(i, of[owner].request, position, token, "decode" if of[owner].state == "decode" else "prefill")
            for i, (owner, position, token) in enumerate(
                zip(plan.sequence.tolist(), plan.position.tolist(), plan.token.tolist(), strict=True)
            )
        ]
        self.drain.step_meta(StepInfo(number, result.graph, result.begin, result.end, rows, result.routes))
