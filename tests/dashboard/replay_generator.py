"""A generator for the page's tests: replays one layered step again and again, with jitter, and "generates" a fixed text.

Its tasks and times are made up, so its label says simulated.  One request runs at a time, others queue.  What the prompt says
can make it refuse, crash or hold: after a few tokens it sends nothing more, and goes on until it is stopped.  "say ..." makes
it say that, five characters a token.
"""

import re
import threading
import time

import numpy as np

from mkviz.errors import MkvizError
from mkviz.graph import GraphBuilder
from mkviz.protocols import Piece, RequestInfo, StepInfo, TokenInfo
from mkviz.record import EVENT, NO_WAIT
from mkviz.schedule import Schedule
from mkviz.store import LiveStore

OPS = ("embed", "qkv", "attention", "o_proj", "router", "expert_up", "expert_down", "lm_head")
COST = {"embed": 4, "qkv": 12, "attention": 9, "o_proj": 8, "router": 3, "expert_up": 14, "expert_down": 9, "lm_head": 16}  # µs
TEXT = (
    '''def reverse(items):
    """Return the items in reverse order."""
    out = []
    for item in items:
        out.insert(0, item)
    return out


print(reverse([1, 2, 3]))
'''
    * 80
)


def layered_graph(layers, sms):
    """(graph, schedule): per layer qkv, attention, o_proj, router, four experts; each op waits for all of the last."""
    builder = GraphBuilder("tiny-moe", OPS, {"layers": layers})
    lists, at, before = [[] for _ in range(sms)], 0, []

    def phase(op, tiles, layer, slots=1):
        nonlocal at, before
        done = builder.counter(f"{op} of layer {layer}" if layer >= 0 else op)
        for slot in range(slots):
            for tile in range(tiles):
                rank = slot if slots > 1 else -1
                task = builder.task(op, layer=layer, slot=rank, tile=tile, bytes=COST[op] * 24_000, waits=before, raises=[done])
                lists[at % sms].append(task)
                at += 1
        before = [done]

    phase("embed", 1, -1)
    for layer in range(layers):
        phase("qkv", 24, layer)
        phase("attention", 16, layer)
        phase("o_proj", 16, layer)
        phase("router", 2, layer)
        phase("expert_up", 8, layer, 4)
        phase("expert_down", 6, layer, 4)
    phase("lm_head", 40, -1)
    return builder.build(), Schedule.from_lists(lists, policy="round-robin")


def play(graph, schedule, rng, start):
    """EVENT records of one step that begins at ``start`` ns: every SM walks its list, waits, works for cost × jitter."""
    events = np.zeros(len(graph), EVENT)
    sm_of, raised = schedule.sm_of(len(graph)), [[] for _ in graph.counters]
    free = np.full(schedule.sms, start, np.int64)
    jitter = rng.lognormal(0, 0.25, len(graph))
    for task in range(len(graph)):  # task ids ascend along dependencies
        sm, ready, last = sm_of[task], start, NO_WAIT
        for i, (counter, need) in enumerate(graph.waits(task)):
            at = sorted(raised[counter])[need - 1] + 400
            if at > ready:
                ready, last = at, i
        claim = free[sm]
        ready = max(ready, claim)
        begin = ready + 120
        end = begin + int(1000 * COST[graph.ops[graph.op[task]]] * jitter[task])
        free[sm] = end
        for counter in graph.raises(task):
            raised[counter].append(end + 150)
        events[task] = (0, claim, ready, begin, end, end + 150, task, sm, last, 0, 0, 0, 0)
    return events


class ReplayGenerator:
    """``pace``: seconds from one step to the next.  The model name ``broken`` does not load."""

    name, model = "replay", "tiny-moe"

    def __init__(self, layers=6, sms=16, pace=0.05, label="simulated (test replay)"):
        self._store = LiveStore(label, "simulated")
        graph, schedule = layered_graph(layers, sms)
        self._store.graph(0, graph, schedule)
        rng = np.random.default_rng(0)
        self._steps = [play(graph, schedule, rng, 0) for _ in range(8)]
        self._pace, self._step, self._request, self._lock = pace, 0, 0, threading.Lock()
        self._clock, self._turn = 10_000_000_000, threading.Lock()

    @property
    def source(self):
        return self._store

    def stream(self, request):
        prompt = request.prompt or request.messages[-1]["content"]
        if "refuse" in prompt:
            raise MkvizError("prompt: 9999 tokens", "at most 2048 fit the context")
        with self._lock:
            number = self._request
            self._request += 1
        self._store.request(RequestInfo(number, "queued", 0, prompt=prompt))
        with self._turn:
            yield from self._run(number, request, prompt)

    def _run(self, number, request, prompt):
        state = "stopped"
        try:
            said = re.findall("(?s).{1,5}", prompt[4:]) if prompt.startswith("say ") else re.findall(r"\s*\S+", TEXT)
            for index, text in enumerate(said[: request.max_tokens]):
                self._store.request(RequestInfo(number, "decode", 0, generated=index))
                step = self._advance()
                now = time.monotonic_ns()
                self._store.token(TokenInfo(number, index, index, text, step, now))
                yield Piece(text, index, index, step, now)
                if index > 3 and "crash" in prompt:
                    raise RuntimeError("the replay was told to crash")
                while index > 3 and "hold" in prompt:
                    time.sleep(self._pace)
                    yield Piece("")
            state = "done"
            yield Piece("", finish_reason="length")
        finally:
            self._store.request(RequestInfo(number, state, 0))

    def _advance(self):
        time.sleep(self._pace)
        step, events = self._step, self._steps[self._step % len(self._steps)].copy()
        for name in ("claim", "ready", "begin", "end", "publish"):
            events[name] += self._clock
        events["step"] = step
        end = int(events["publish"].max())
        self._store.step(StepInfo(step, 0, self._clock, end), events)
        self._step, self._clock = step + 1, end + 30_000
        return step

    def add_sink(self, sink): ...
    def remove_sink(self, sink): ...
    def close(self): ...


def open_generator(model=None):
    if model == "broken":
        raise MkvizError("model broken: no such directory", "give a directory with config.json")
    return ReplayGenerator()
