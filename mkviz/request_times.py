"""Request times: what each request of a server waited for and got; docs/serving.md has the definitions."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from mkviz.protocols import RequestInfo, TokenInfo

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pandas as pd

    from mkviz.protocols import Source
    from mkviz.store import Snapshot
    from mkviz.trace import Trace

ENDS = ("done", "stopped", "failed")
ONE_CLOCK = 10**9  # ns between a step's end and its token, beyond which their times are of different clocks
RECENT = 256  # tokens that the clocks are compared by


@dataclass(frozen=True, eq=False)
class RequestTimes:
    """One request: all its ``changes`` of state, first to last, and of its tokens that are known the indices and times
    (i64[k] each, ascending).  Times are ns of the host's clock, None: not known."""

    changes: tuple[RequestInfo, ...]
    index: np.ndarray
    token_time: np.ndarray

    @property
    def now(self) -> RequestInfo:
        return self.changes[-1]

    @property
    def request(self) -> int:
        return self.now.request

    @property
    def arrived(self) -> int | None:
        return self.changes[0].time if self.changes[0].state == "queued" else None

    @property
    def ended(self) -> int | None:
        return self.now.time if self.now.state in ENDS else None

    def spans(self, until: int) -> list[tuple[str, int, int]]:
        """[(state, begin, end)] of the states it was in, of one that lasts up to ``until``."""
        ends = [*(change.time for change in self.changes[1:]), max(until, self.now.time)]
        return [(c.state, c.time, end) for c, end in zip(self.changes, ends, strict=True) if c.state not in ENDS]

    def time_in(self, state: str, until: int) -> int:
        return sum(end - begin for name, begin, end in self.spans(until) if name == state)

    @property
    def preemptions(self) -> int:
        return sum(change.state == "preempted" for change in self.changes)

    @cached_property
    def ttft(self) -> int | None:
        """Time to first token: from its arrival to its token 0, or, where that is not kept, to its first decode."""
        if self.arrived is None:
            return None
        if len(self.index) and self.index[0] == 0:
            return int(self.token_time[0]) - self.arrived
        return next((change.time - self.arrived for change in self.changes if change.state == "decode"), None)

    @cached_property
    def itl(self) -> np.ndarray:
        """i64: inter-token latencies, from each token to the next one, of neighbours that are both known."""
        return np.diff(self.token_time)[np.diff(self.index) == 1]

    @property
    def generated(self) -> int:
        """What its last change or its tokens say, whichever is more: a change tells nothing between two."""
        return max(self.now.generated, int(self.index[-1]) + 1 if len(self.index) else 0)


def request_times(of: Snapshot | Trace) -> list[RequestTimes]:
    """Of all requests, by arrival."""
    if hasattr(of, "changes"):
        changes, tokens = of.changes, of.tokens
    else:
        changes = defaultdict(tuple)
        for row in of.requests.to_pylist():
            changes[row["request"]] += (RequestInfo(**row),)
        tokens = [TokenInfo(**row) for row in of.tokens.to_pylist()]
    return times_of(changes, tokens)


def times_of(changes: dict[int, tuple[RequestInfo, ...]], tokens: Iterable[TokenInfo]) -> list[RequestTimes]:
    found = defaultdict(list)
    for token in tokens:
        if token.request in changes:
            found[token.request].append((token.index, token.time))
    out = []
    for request, states in changes.items():
        at = np.array(sorted(found[request]), np.int64).reshape(-1, 2)
        out.append(RequestTimes(tuple(states), at[:, 0], at[:, 1]))
    return sorted(out, key=lambda times: (times.changes[0].time, times.request))


def percentile(values, q: float) -> int | None:
    """One of the values: the smallest that at least q % of them do not exceed; None of none."""
    return int(np.percentile(values, q, method="inverted_cdf")) if len(values) else None


def last_time(times: list[RequestTimes]) -> int:
    """The newest instant that requests and tokens tell of."""
    return max((max(t.now.time, *t.token_time[-1:].tolist(), 0) for t in times), default=0)


def clock_shift(snapshot: Snapshot) -> int:
    """ns to take from the times of requests and tokens to get to the clock of the records; 0 where both are one clock.

    A GPU dates records by a timer of its own.  A token comes after the end of its step, so the two clocks are as far apart as
    the quickest recent token says, to within the time that it took to be picked.
    """
    ends = dict(zip(snapshot.steps["step"].tolist(), snapshot.steps["end"].tolist(), strict=True))
    late = [token.time - ends[token.step] for token in snapshot.tokens[-RECENT:] if token.step in ends]
    least = min(late, default=0)
    return least if abs(least) > ONE_CLOCK else 0


def steps_of(infos: Iterable) -> dict[int, list[int]]:
    """{request: numbers of the steps that computed rows of it, in order}."""
    out: dict[int, list[int]] = defaultdict(list)
    for info in infos:
        for request in dict.fromkeys(row.request for row in info.rows):
            out[request].append(info.step)
    return dict(out)


def requests(source: Source | Trace | str | Path) -> pd.DataFrame:
    """A row for each request, by arrival: request, label, state, finish_reason; prompt, cached, generated (tokens); arrived (ns
    since the first one did), queued, ttft, itl_p50, itl_p99, preempted, total (ns; of one that has not ended, so far);
    preemptions; first_step, steps.  What is not known is NaN.

    ``source``: one that is open, a trace or its path.  Raises MkvizError for a path that is no trace.
    """
    import pandas as pd

    if isinstance(source, str | Path):
        from mkviz.trace import Trace

        source = Trace.open(source)
    of = source.snapshot() if hasattr(source, "snapshot") else source
    times, steps = request_times(of), steps_of(of.infos() if callable(of.infos) else of.infos)
    first, until = min((t.changes[0].time for t in times), default=0), last_time(times)
    rows = [
        {
            "request": t.request, "label": t.now.label, "state": t.now.state, "finish_reason": t.now.finish_reason,
            "prompt": t.now.prompt_tokens, "cached": t.now.cached, "generated": t.generated,
            "arrived": None if t.arrived is None else t.arrived - first,
            "queued": None if t.arrived is None else t.time_in("queued", until), "ttft": t.ttft,
            "itl_p50": percentile(t.itl, 50), "itl_p99": percentile(t.itl, 99), "preempted": t.time_in("preempted", until),
            "total": None if t.arrived is None else (until if t.ended is None else t.ended) - t.arrived,
            "preemptions": t.preemptions, "first_step": next(iter(steps.get(t.request, ())), None),
            "steps": len(steps.get(t.request, ())),
        }
        for t in times
    ]  # fmt: skip
    names = ("request", "label", "state", "finish_reason", "prompt", "cached", "generated", "arrived", "queued", "ttft",
             "itl_p50", "itl_p99", "preempted", "total", "preemptions", "first_step", "steps")  # fmt: skip
    return pd.DataFrame(rows, columns=list(names))
