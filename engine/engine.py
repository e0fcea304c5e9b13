"""Engine: batches requests into steps, runs them on a backend, streams tokens, and feeds the drain."""

from __future__ import annotations

import itertools
import threading
from collections import deque
from contextlib import suppress

import numpy as np

from engine.checkpoint import Weights
from engine.config import ModelConfig, load_config
from engine.kv import PagePool
from engine.memory_plan import free_host_memory
from engine.models import resolve_model
from engine.pick import logprobs, pick
from engine.plan import StepPlan, StepResult
from engine.sampling import SamplingParams
from engine.sequence import Pieces, Sequence
from engine.tiling import PAGE
from engine.tokenizer import Tokenizer
from mkviz.drain import BUDGET, Drain
from mkviz.errors import MkvizError
from mkviz.protocols import Piece, Row, Sink, StepInfo, TokenInfo

BACKENDS = ("cpu", "cuda")
KV_BUDGET = 1 << 30  # bytes of KV pages by default, unless one whole context needs more


def backend_class(name: str):
    """The class of a backend; what it needs is imported only now."""
    if name == "cpu":
        from engine.cpu.backend import CpuBackend

        return CpuBackend
    if name == "cuda":
        from engine.cuda.backend import CudaBackend

        return CudaBackend
    raise MkvizError(f"backend: {name!r}", f"one of {', '.join(BACKENDS)}")


class Engine:
    """Serves one model.  Up to ``batch`` requests run at once, the others queue in order of arrival.

    Each step carries one row of every decoding request and, in what room is left, prompt tokens of those being prefilled, so
    that a new request does not stop the others.  ``backend``: cpu or cuda; ``options`` go to it (sms, policy, …).

    ``lossless``: no record may be lost, so rings that are half full are emptied before the next step begins.  That takes time
    between steps and none within them: a step lasts from the first ready to the last publish of its tasks.  Without, whoever
    reads too slowly misses whole steps, which are counted, and the engine never waits.
    """

    def __init__(self, model: str | None = None, *, backend: str = "cpu", batch: int = 8, pages: int | None = None,
                 trace: bool = True, lossless: bool = False, **options):  # fmt: skip
        directory = resolve_model(model)
        self.model = directory.name if model else "demo"
        self.config: ModelConfig = load_config(directory)
        self.tokenizer = Tokenizer.open(directory, self.config.vocab)
        self.batch = batch
        kind = backend_class(backend)
        if not 1 <= batch <= kind.max_rows:
            raise MkvizError(f"batch: {batch}", f"1 to {kind.max_rows} requests, a row each in a step")
        if pages is None:
            pages = self._default_pages(kind.page_bytes(self.config))
            if backend == "cpu":
                pages = max(1, min(pages, free_host_memory() // 2 // kind.page_bytes(self.config)))
        self.backend = kind(self.config, Weights.open(directory, self.config), pages=pages, trace=trace, **options)
        self.pool = PagePool(pages)
        self.lossless = lossless
        self.drain = Drain(self.backend.rings.link(), budget=None if lossless else BUDGET).start() if trace else None
        self._announced = 0  # graphs that the drain knows
        self._numbers = itertools.count()
        self._waiting: deque[Sequence] = deque()
        self._running: list[Sequence] = []
        self._wake = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._loop, name="mkviz-engine", daemon=True)
        self._thread.start()

    def _default_pages(self, page_bytes: int) -> int:
        context = PagePool.pages_for(self.config.max_positions)
        return max(context, min(self.batch * context, KV_BUDGET // page_bytes))

    @property
    def device(self) -> str:
        return self.backend.name

    # -- requests; any thread -------------------------------------------------------------------------------------------

    def check(self, tokens: list[int], params: SamplingParams) -> None:
        """Raise MkvizError when this request can never run: empty, or longer than the context or the KV cache."""
        limit = min(self.config.max_positions, self.pool.total * PAGE)
        if not tokens:
            raise MkvizError("prompt: no tokens", "at least one")
        if len(tokens) >= limit:
            raise MkvizError(f"prompt: {len(tokens)} tokens", f"at most {limit - 1} fit the context of {limit}")
        if len(tokens) + params.max_tokens > limit:
            raise MkvizError(
                f"max_tokens: {params.max_tokens} after a prompt of {len(tokens)} tokens",
                f"at most {limit - len(tokens)}, the context holds {limit}",
            )
        for token in tokens:
            if not 0 <= token < self.config.vocab:
                raise MkvizError(f"prompt: token {token}", f"0 to {self.config.vocab - 1}")

    def submit(self, tokens: list[int], params: SamplingParams, prompt: str = "") -> Sequence:
        """Queue a request and return at once.  Raises what :meth:`check` raises."""
        self.check(tokens, params)
        sequence = Sequence(next(self._numbers), list(tokens), params, self.tokenizer.detokenizer(), prompt)
        with self._wake:
            if self._closed:
                raise MkvizError("engine: closed", "open a new one")
            self._tell(sequence)  # before the loop can tell more of it
            self._waiting.append(sequence)
            self._wake.notify()
        return sequence

    def stream(self, sequence: Sequence) -> Pieces:
        """The pieces of a request as they come; closing them stops the request."""
        return Pieces(sequence)

    def close(self) -> None:
        """Stop every request, drain the rest of the records, end the threads."""
        with self._wake:
            self._closed = True
            self._wake.notify()
        self._thread.join()
        self.backend.close()
        if self.drain is not None:
            self.drain.close()

    def add_sink(self, sink: Sink) -> None:
        if self.drain is None:
            raise MkvizError("engine: tracing is off", "open it with trace=True")
        self.drain.add_sink(sink)

    def remove_sink(self, sink: Sink) -> None:
        """Hand the sink everything that has happened so far, then let go of it."""
        if self.drain is not None:
            self.drain.poll()
            self.drain.poll()  # the frontier trails by one reading
            self.drain.remove_sink(sink)

    # -- the loop -------------------------------------------------------------------------------------------------------

    def _loop(self) -> None:
        while True:
            with self._wake:
                while not (self._waiting or self._running or self._closed):
                    self._wake.wait()
                if self._closed:
                    for sequence in [*self._running, *self._waiting]:
                        self._finish(sequence, "stopped")
                    return
            try:
                self._drop_cancelled()
                self._admit()
                if self._running:
                    self._step()
            except Exception as error:  # every request of the batch learns why; the engine goes on
                for sequence in list(self._running):
                    self._finish(sequence, "failed", error)

    def _drop_cancelled(self) -> None:
        with self._wake:
            cancelled = [s for s in [*self._running, *self._waiting] if s.cancelled]
        for sequence in cancelled:
            self._finish(sequence, "stopped")

    def _admit(self) -> None:
        """Start waiting requests in order while there is room for all that they may come to hold."""
        while self._waiting and len(self._running) < self.batch:
            need = PagePool.pages_for(self._waiting[0].budget)
            if need > self.pool.free:
                return
            with self._wake:
                sequence = self._waiting.popleft()
            self._running.append(sequence)
            sequence.pages, sequence.state = self.pool.take(need), "prefill"
            self.backend.zero_pages(sequence.pages)
            self._tell(sequence)

    def _step(self) -> None:
        plan, counts = self._plan()
        number = self.backend.serial
        if self.lossless and self.drain is not None:
            self.drain.make_room()
        result = self.backend.step(plan)
        self._report(plan, number, result)
        row = -1
        for sequence, count in zip(list(self._running), counts, strict=True):
            row += count
            sequence.computed += count
            if count and sequence.computed == len(sequence.tokens):
                self._take(sequence, number, result, row)

    def _plan(self) -> tuple[StepPlan, list[int]]:
        """The next step, and how many rows of it each running request has: one each first, then prompts in order."""
        left = [len(s.tokens) - s.computed for s in self._running]
        counts = [min(n, 1) for n in left]
        room = self.backend.max_rows - sum(counts)
        for i, n in enumerate(left):
            more = min(n - counts[i], room)
            counts[i] += more
            room -= more
        token, position, owner, wants = [], [], [], []
        for i, (sequence, count) in enumerate(zip(self._running, counts, strict=True)):
            stop = sequence.computed + count
            token += sequence.tokens[sequence.computed : stop]
            position += range(sequence.computed, stop)
            owner += [i] * count
            wants += [False] * (count - 1) + [stop == len(sequence.tokens)]
        pages = np.full((len(self._running), max(len(s.pages) for s in self._running)), -1, np.int32)
        for i, sequence in enumerate(self._running):
            pages[i, : len(sequence.pages)] = sequence.pages
        i32 = np.int32
        return StepPlan(np.array(token, i32), np.array(position, i32), np.array(owner, i32), np.array(wants), pages), counts

    def _take(self, sequence: Sequence, step: int, result: StepResult, row: int) -> None:
        params, position = sequence.params, len(sequence.tokens) - 1
        try:
            token = int(result.greedy[row]) if params.temperature == 0 else pick(result.logits[row], params, position)
            if params.logprobs is not None:
                sequence.logprobs.append(logprobs(result.logits[row], token, params.logprobs))
        except MkvizError as error:  # logits without a largest: this request's own trouble
            self._finish(sequence, "failed", error)
            return
        piece = sequence.accept(token, step, self.config.eos)
        if self.drain is not None:
            self.drain.token(TokenInfo(sequence.request, piece.index, token, piece.text, step, sequence.arrived + piece.time))
        if sequence.state == "prefill":
            sequence.state = "decode"
            self._tell(sequence)
        sequence.out.put(piece)
        if piece.finish_reason:
            self._finish(sequence, "done")

    def _finish(self, sequence: Sequence, state: str, error: Exception | None = None) -> None:
        with self._wake:
            for group in (self._running, self._waiting):
                with suppress(ValueError):
                    group.remove(sequence)
        self.pool.give_back(sequence.pages)
        sequence.pages, sequence.state = [], state
        if state != "done":
            sequence.finish_reason = state
            sequence.out.put(error or Piece("", finish_reason=state))
        self._tell(sequence)

    # -- the drain ------------------------------------------------------------------------------------------------------

    def _tell(self, sequence: Sequence) -> None:
        if self.drain is not None:
            self.drain.request(sequence.info())

    def _report(self, plan: StepPlan, number: int, result: StepResult) -> None:
        if self.drain is None:
            return
        while self._announced < len(self.backend.graphs):
            self.drain.graph(self._announced, *self.backend.graphs[self._announced])
            self._announced += 1
        rows = [
            Row(i, self._running[owner].request, position, token, self._running[owner].state)
            for i, (owner, position, token) in enumerate(
                zip(plan.sequence.tolist(), plan.position.tolist(), plan.token.tolist(), strict=True)
            )
        ]
        self.drain.step_meta(StepInfo(number, result.graph, result.begin, result.end, rows, result.routes))
