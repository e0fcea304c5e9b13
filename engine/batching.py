"""Batcher: which requests run, and which of their tokens the next step computes.  Policy alone: it knows no model.

*Order.*  Requests of one salt (API key) start in order of arrival; salts take turns.  Whoever's turn it is waits until there is
room, and nobody passes, so that every request starts.  A preempted request comes before all that wait.  A salt misses its turn
while a running request computes the very page that its next request would share: several answers to one prompt read it once.

*Room.*  A request starts when the pool has pages for all the tokens it has now, besides those that running prompts still need
and one more for each running request.  What it generates later is not reserved.  When a page is wanted and none is left, the
running request that arrived last gives all of its pages back and is computed again later (the same bits, whatever the batch):
the one that arrived first is never preempted, so it always ends.

*Rows.*  A step has one row of each request that decodes.  What the inter-token budget then leaves goes to the prompts, to all
of them alike: a short prompt does not wait for a long one.  Where rows that decode would leave a prompt less than half a step,
and the budget has time for it, a step of prompt rows alone goes between.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from engine.budget import Budget
from engine.kv import PagePool
from engine.plan import StepPlan
from engine.prefix import extend_keys
from engine.sequence import Sequence
from engine.step_time import StepTime
from engine.tiling import PAGE, SPLIT


class Turns:
    """Waiting requests: by arrival within a salt, and a salt's next one only when every other salt has had its turn."""

    def __init__(self):
        self._queues: dict[str, deque[Sequence]] = {}  # no empty ones; the salt whose turn it is comes first

    def __len__(self) -> int:
        return sum(map(len, self._queues.values()))

    def __iter__(self) -> Iterator[Sequence]:
        return (sequence for queue in self._queues.values() for sequence in queue)

    def add(self, sequence: Sequence) -> None:
        self._queues.setdefault(sequence.salt, deque()).append(sequence)

    def heads(self) -> Iterator[Sequence]:
        """The next one of each salt, in turn."""
        return (queue[0] for queue in self._queues.values())

    def take(self, head: Sequence) -> None:
        """Remove one of :meth:`heads`; its salt goes to the end."""
        queue = self._queues.pop(head.salt)
        queue.popleft()
        if queue:
            self._queues[head.salt] = queue

    def remove(self, sequence: Sequence) -> None:
        """Raises ValueError when it does not wait."""
        queue = self._queues.get(sequence.salt, deque())
        queue.remove(sequence)
        if not queue:
            del self._queues[sequence.salt]


@dataclass
class Step:
    """``rows``: (sequence, how many of its next tokens); ``opened``: pages that it is the first to write; ``preempted``: who
    had to make room."""

    rows: list[tuple[Sequence, int]]
    opened: list[int] = field(default_factory=list)
    preempted: list[Sequence] = field(default_factory=list)

    @property
    def spans(self) -> list[tuple[int, int]]:
        """(first position, rows) of each sequence, until its rows have been computed."""
        return [(sequence.computed, count) for sequence, count in self.rows]

    def for_backend(self) -> StepPlan:
        token, position, owner, wants, asks = [], [], [], [], []
        for i, (sequence, count) in enumerate(self.rows):
            stop, prompt = sequence.computed + count, sequence.prompt_rows_wanted
            token += sequence.tokens[sequence.computed : stop]
            position += range(sequence.computed, stop)
            owner += [i] * count
            wants += [p in prompt or p == len(sequence.tokens) - 1 for p in range(sequence.computed, stop)]
            asks += [None] * (count - 1) + [sequence.asks if stop == len(sequence.tokens) else None]
        pages = np.full((len(self.rows), max(len(s.pages) for s, _ in self.rows)), -1, np.int32)
        for i, (sequence, _) in enumerate(self.rows):
            pages[i, : len(sequence.pages)] = sequence.pages
        i32, keys = np.int32, max(len(sequence.tokens) for sequence, _ in self.rows)
        return StepPlan(np.array(token, i32), np.array(position, i32), np.array(owner, i32), np.array(wants), pages, asks, keys)


def shares(wanted: list[int], total: int) -> list[int]:
    """``total`` dealt out alike: nobody gets more than wanted, nor less, but by one, than anybody else unless that is all."""
    given, left = [0] * len(wanted), total
    while left and (open_ := [i for i, n in enumerate(wanted) if given[i] < n]):
        each = max(1, left // len(open_))
        for i in open_[:left]:
            more = min(each, wanted[i] - given[i])
            given[i] += more
            left -= more
    return given


class Batcher:
    """``batch`` requests at once, ``max_rows`` rows a step, ``budget_ns`` from one token of a request to its next (None: no
    limit).  ``window``: keys that a row sees where every layer is sliding, so that older pages are given back; else 0.
    ``prefix_cache``: whether pages are shared.  ``pause_decode``: prompts first, decoding waits: what others do, to compare.

    Not for several threads at once.
    """

    def __init__(self, pool: PagePool, step_time: StepTime, *, max_rows: int, batch: int, budget_ns: float | None = None,
                 window: int = 0, prefix_cache: bool = True, pause_decode: bool = False):  # fmt: skip
        self.pool, self.step_time, self.budget = pool, step_time, Budget(step_time)
        self.max_rows, self.batch, self.budget_ns, self.window = max_rows, batch, budget_ns, window
        self.prefix_cache, self.pause_decode = prefix_cache, pause_decode
        self.running: list[Sequence] = []
        self.preempted: list[Sequence] = []  # in order of arrival
        self.waiting = Turns()

    def __iter__(self) -> Iterator[Sequence]:
        yield from self.running
        yield from self.preempted
        yield from self.waiting

    def remove(self, sequence: Sequence) -> None:
        """The request has ended, wherever it is.  It keeps its pages until :meth:`release`."""
        for group in (self.running, self.preempted, self.waiting):
            if sequence in group:
                group.remove(sequence)

    def release(self, sequence: Sequence) -> None:
        """Give back all pages of a sequence."""
        self.pool.give_back(sequence.pages)
        sequence.pages, sequence.computed = [], 0

    # -- who runs -------------------------------------------------------------------------------------------------------

    def admit(self) -> list[Sequence]:
        """Start what there is room for; returns what was started."""
        started = []
        while len(self.running) < self.batch:
            heads = self.preempted[:1] or (s for s in self.waiting.heads() if not self._is_being_computed(s))
            sequence = next(iter(heads), None)
            if sequence is None or not self._give_pages(sequence):
                break
            if self.preempted:
                self.preempted.pop(0)
            else:
                self.waiting.take(sequence)
                sequence.started, sequence.cached_tokens = time.monotonic_ns(), sequence.computed
            sequence.state = "prefill"
            self.running.append(sequence)
            started.append(sequence)
        return started

    def _found(self, sequence: Sequence) -> list[int]:
        """Pages of its beginning that are there already.  A row is left to compute: the logits of the last one are wanted."""
        if not self.prefix_cache:
            return []
        extend_keys(sequence.keys, sequence.tokens, sequence.salt)
        return self.pool.find(sequence.keys[: self._shareable(sequence)], self._first_needed)

    @staticmethod
    def _shareable(sequence: Sequence) -> int:
        wanted = sequence.prompt_rows_wanted
        return (wanted.start if wanted else len(sequence.tokens) - 1) // PAGE

    def _is_being_computed(self, sequence: Sequence) -> bool:
        """Whether the next page that it could share is just what a running request computes."""
        at = len(self._found(sequence))
        if not self.prefix_cache or at >= self._shareable(sequence):
            return False
        return any(s.keys[at : at + 1] == [sequence.keys[at]] and s.computed < (at + 1) * PAGE for s in self.running)

    def _give_pages(self, sequence: Sequence) -> bool:
        """Whether there is room; then the sequence holds the pages of its beginning that are there already."""
        found = self._found(sequence)
        need = PagePool.pages_for(len(sequence.tokens)) - len(found)
        promised = sum(PagePool.pages_for(len(s.tokens)) - len(s.pages) + 1 for s in self.running)
        if need > self.pool.free - self.pool.idle_among(found) - promised:
            return False
        self.pool.hold(found)
        sequence.pages, sequence.computed = found, len(found) * PAGE
        return True

    def _first_needed(self, page: int) -> int:
        """The first page that a row in ``page`` reads.  Attention reads whole splits, so those are what is given up."""
        return max(0, page * PAGE - self.window + 1) // SPLIT * (SPLIT // PAGE) if self.window else 0

    # -- what a step computes -------------------------------------------------------------------------------------------

    def plan(self, now: int) -> Step:
        """The next step, with pages for all of its rows; ``now`` in ns.  It is empty when all of its rows had to make room."""
        step = Step([])
        for sequence, count in sorted(self._counts(now), key=lambda row: row[0].request):
            while sequence in self.running:
                short = PagePool.pages_for(sequence.computed + count) - len(sequence.pages)
                if short <= self.pool.free:
                    pages = self.pool.take(max(0, short))
                    sequence.pages += pages
                    step.opened += pages
                    step.rows.append((sequence, count))
                    break
                step.preempted.append(self._preempt())
        return step

    def _preempt(self) -> Sequence:
        """The running request that arrived last makes room; it has no rows in the step yet, as rows go by arrival."""
        sequence = max(self.running, key=lambda s: s.request)
        self.running.remove(sequence)
        self.release(sequence)
        sequence.state = "preempted"
        sequence.preemptions += 1
        self.preempted.append(sequence)
        self.preempted.sort(key=lambda s: s.request)
        return sequence

    def _counts(self, now: int) -> list[tuple[Sequence, int]]:
        decode = [(s, 1) for s in self.running if s.state == "decode"]
        prompts = [s for s in self.running if s.state != "decode"]
        if not prompts:
            return decode
        if self.pause_decode:
            return self._chunk(prompts, self.max_rows)
        room, wanted = self.max_rows - len(decode), sum(s.left for s in prompts)
        if not decode or self.budget_ns is None:
            return decode + self._chunk(prompts, min(room, wanted))
        time_left = self.budget_ns - (now - min(s.last_token for s, _ in decode))
        load = partial(self._load, prompts, self.step_time.load([(s.computed, 1) for s, _ in decode]))
        if 2 * room < self.max_rows and wanted > room:
            least = self.step_time.estimate(*load(1))  # of the step that has to follow
            alone = self.budget.alone(min(self.max_rows, wanted), partial(self._load, prompts, (0, 0)), time_left - least)
            if alone > room:
                return self._chunk(prompts, alone)
        return decode + self._chunk(prompts, self.budget.rows(len(decode), min(room, wanted), load, time_left, self.budget_ns))

    def _chunk(self, prompts: list[Sequence], rows: int) -> list[tuple[Sequence, int]]:
        given = shares([s.left for s in prompts], rows)
        return [(s, count) for s, count in zip(prompts, given, strict=True) if count]

    def _load(self, prompts: list[Sequence], decode: tuple[int, float], rows: int) -> tuple[int, float]:
        """Rows and keys of a step with so many rows of prompts beside those of ``decode``."""
        more, keys = self.step_time.load([(s.computed, count) for s, count in self._chunk(prompts, rows)])
        return decode[0] + more, decode[1] + keys

    # -- what a step has computed ---------------------------------------------------------------------------------------

    def computed(self, sequence: Sequence, count: int) -> None:
        """``count`` more tokens of the sequence have their K and V: full pages get their names, old ones may go."""
        done, sequence.computed = sequence.computed // PAGE, sequence.computed + count
        full = sequence.computed // PAGE
        if self.prefix_cache and full > done:
            extend_keys(sequence.keys, sequence.tokens, sequence.salt)
            for i in range(done, full):
                sequence.pages[i] = self.pool.keep(sequence.pages[i], sequence.keys[i])
        if self.window:
            first = self._first_needed(full)
            self.pool.give_back(sequence.pages[:first])
            sequence.pages[:first] = [-1] * first
