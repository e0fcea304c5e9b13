"""Summary: what a trace says in one screen, and the accounting of SM time behind it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from mkviz.accounting import KINDS, charge_lanes, is_large
from mkviz.blame import Blame, blame
from mkviz.dashboard.units import decimal
from mkviz.faults import Faults, in_turn
from mkviz.machine import named_in
from mkviz.record import EVENT, KIND_MASK, KIND_SKIPPED, KIND_TASK
from mkviz.step_bytes import TraceBytes
from mkviz.step_records import MOST_NS, LaneTimes, broken, in_order, refuse_endless, repeated

if TYPE_CHECKING:
    from mkviz.trace import Trace

UNKNOWN_OP = "(no graph)"


@dataclass
class StepTimes:
    """Times of whole steps, ns, from the first ready to the last publish; percentiles are times of steps that happened."""

    steps: int
    p50: int
    p90: int
    max: int

    @classmethod
    def of(cls, ns: np.ndarray) -> StepTimes | None:
        if not len(ns):
            return None
        p50, p90 = np.percentile(ns, (50, 90), method="inverted_cdf")
        return cls(len(ns), int(p50), int(p90), int(ns.max()))


@dataclass
class OpTotals:
    """Totals of an op over all whole steps.

    ``compute``: ns from begin to end of its tasks; ``wait``, ``starved``, ``overhead``: ns that an SM's math role was idle
    before its tasks (None for a trace that holds only some SMs, ops or times).  ``bytes``: what its tasks read;
    ``gb_s``: bytes over the time during which at least one of them ran, on any SM (None without bytes).
    """

    tasks: int = 0
    skipped: int = 0
    compute: int = 0
    wait: int | None = 0
    starved: int | None = 0
    overhead: int | None = 0
    bytes: int = 0
    active: int = 0

    @property
    def gb_s(self) -> float | None:
        return self.bytes / self.active if self.bytes and self.active else None


@dataclass
class Summary:
    """Times in ns, rates per second.

    ``sm_time``: the sum over steps of makespan x SMs; ``shares`` its ns by kind, as :mod:`mkviz.accounting` defines them, None
    for a trace that holds only some SMs, ops or times: there idle cannot be told from left out.  ``faults`` counts records that
    are wrong (:class:`mkviz.faults.Faults`).

    ``tok_s``: tokens over the time from the first step's begin to the last one's end, pauses included; ``request_tok_s``: the
    rate that a request saw after its first token (mean over requests, weighted by time).

    ``blame``: the blame path of the step of median time (:mod:`mkviz.blame`); None where there is no whole step with a graph.
    """

    label: str
    complete: bool
    command: str
    sms: int
    records: int
    lost_records: int
    lost_steps: int
    clock_error: float | None
    steps: StepTimes | None
    decode: StepTimes | None
    prefill: StepTimes | None
    tokens: int
    tok_s: float | None
    request_tok_s: float | None
    sm_time: int
    shares: dict[str, int] | None
    ops: dict[str, OpTotals]
    faults: dict[str, int]
    blame: Blame | None = None

    def to_json(self) -> dict:
        out = asdict(replace(self, blame=None))
        out["blame"] = self.blame.to_json() if self.blame else None
        for name, op in self.ops.items():
            out["ops"][name]["gb_s"] = op.gb_s
        return out

    def to_text(self) -> str:
        """A terminal's screen; what is not known is left out."""
        lost = f"{self.lost_records:,} records and {self.lost_steps:,} steps lost"
        head = [self.label, "complete" if self.complete else "incomplete", f"{self.records:,} records ({lost})"]
        if self.clock_error is not None:
            head.append(f"clock error {self.clock_error:.0f} ns")
        lines = [" · ".join(head), f"command  {self.command}"]
        if self.tok_s is not None:
            rate = f", {self.request_tok_s:.1f} tok/s per request after its first" if self.request_tok_s else ""
            lines.append(f"tokens   {self.tokens:,}, {self.tok_s:.1f} tok/s in all{rate}")
        for name, times in (
            (("decode", self.decode), ("prefill", self.prefill)) if self.decode or self.prefill else (("", self.steps),)
        ):
            if times is not None:
                p50, p90, most = (_duration(ns) for ns in (times.p50, times.p90, times.max))
                lines.append(f"{'steps ' + name:<15} {times.steps:>6,}   p50 {p50}   p90 {p90}   max {most}")
        if self.shares is not None and self.sm_time:
            parts = [f"{name} {ns / self.sm_time:.1%}" for name, ns in self.shares.items() if ns or name != "unknown"]
            lines.append(f"SM time  {self.sms} SMs, {_duration(self.sm_time)} in all: {', '.join(parts)}")
        if wrong := [f"{n:,} {name}" for name, n in self.faults.items() if n]:
            lines.append(f"faults   records: {', '.join(wrong)}")
        if self.blame is not None:
            lines += self._blame_lines(self.blame)
        if self.ops:
            lines += ["", *self._op_lines()]
        return "\n".join(lines)

    def _blame_lines(self, blame: Blame) -> list[str]:
        if not blame.makespan:
            return []
        causes = [f"{cause} {ns / blame.makespan:.1%}" for cause, ns in blame.totals.items() if ns]
        most = [f"{cause} {op} {ns / blame.makespan:.1%}".replace("  ", " ") for cause, op, _, ns in blame.largest()[:4]]
        lines = [
            f"blame    step {blame.step}, of median time, {_duration(blame.makespan)}: {', '.join(causes)}",
            f"         most of it: {', '.join(most)}",
        ]
        bounds = [] if blame.critical is None else [f"longest chain of dependencies {_duration(blame.critical)}"]
        if blame.floor is not None:
            bounds.append(
                f"bandwidth floor {_duration(blame.floor)} ({decimal(blame.bytes)} at {blame.bandwidth / 1e12:.2f} TB/s)"
            )
        return [*lines, f"         bounds: {', '.join(bounds)}", *(f"         {note}" for note in blame.notes)]

    def _op_lines(self) -> list[str]:
        compute = sum(op.compute for op in self.ops.values())
        lines = [
            f"{'op':<16}{'tasks':>10}{'compute':>12}{'share':>8}{'bytes':>12}{'GB/s':>9}{'wait':>12}{'starved':>12}{'overhead':>12}"
        ]
        for name, op in self.ops.items():
            idle = "".join(f"{'' if ns is None else _duration(ns):>12}" for ns in (op.wait, op.starved, op.overhead))
            share, rate = f"{op.compute / compute:.1%}" if compute else "", "" if op.gb_s is None else f"{op.gb_s:.1f}"
            rates = f"{decimal(op.bytes):>12}{rate:>9}"
            lines.append(f"{name:<16}{op.tasks:>10,}{_duration(op.compute):>12}{share:>8}{rates}{idle}")
        return [line.rstrip() for line in lines]


def _duration(ns: int) -> str:
    for unit, size in (("s", 10**9), ("ms", 10**6), ("µs", 10**3)):
        if ns >= size:
            return f"{ns / size:.3g} {unit}" if ns < 1000 * size else f"{ns / size:,.0f} {unit}"
    return f"{ns} ns"


def summarise(trace: Trace) -> Summary:
    """Read a trace once, some row groups at a time.  Raises MkvizError for a damaged trace."""
    table = trace.steps.sort_by("step")
    steps = {name: table[name].to_numpy().astype(np.int64) for name in table.column_names}
    parts = [trace.meta, *trace.meta.get("merged", [])]
    thinned = any((part.get("slice") or {}).get(name) for part in parts for name in ("time", "sms", "ops"))
    if is_large(trace):
        from mkviz.tally import tally

        account = tally(trace, full=False)
        steps |= account.table
    else:
        account = Account(trace, steps)
        for events in _whole_steps(trace.batches()):
            account.add(events)
    whole = steps["lost"] == 0
    ns = (steps["end"] - steps["begin"])[whole]
    rows = trace.table("rows", ["step", "kind"])
    prefill = np.isin(steps["step"], rows["step"].to_numpy()[np.array(rows["kind"].to_pylist()) == "prefill"])[whole]
    return Summary(
        trace.label, trace.complete, trace.meta["command"], account.sms, account.records, *trace.lost,
        trace.meta["clock"]["error_ns"], StepTimes.of(ns), StepTimes.of(ns[~prefill]) if len(rows) else None,
        StepTimes.of(ns[prefill]), *_token_rates(trace, steps), account.sm_time, None if thinned else account.shares(),
        account.ops(idle=not thinned), account.faults(), None if thinned else _median_blame(trace, steps, whole),
    )  # fmt: skip


def _median_blame(trace: Trace, steps: dict[str, np.ndarray], whole: np.ndarray) -> Blame | None:
    """Of the steps without lost records and with a graph, the first that takes the time of the median one."""
    of = np.flatnonzero(whole & np.isin(steps["graph"], list(trace.graphs)))
    if not len(of):
        return None
    ns = (steps["end"] - steps["begin"])[of]
    median = of[np.flatnonzero(ns == np.percentile(ns, 50, method="inverted_cdf"))[0]]
    return blame(trace, int(steps["step"][median]), named_in(trace.label))


def _token_rates(trace: Trace, steps: dict[str, np.ndarray]) -> tuple[int, float | None, float | None]:
    """(tokens, tok_s, request_tok_s) as :class:`Summary` defines them; None where no time has passed."""
    tokens = trace.table("tokens", ["request", "time"])
    timed = steps["end"] > 0
    span = int(steps["end"][timed].max() - steps["begin"][timed].min()) if timed.any() else 0
    request, time = tokens["request"].to_numpy(), tokens["time"].to_numpy()
    after_first = waited = 0
    for r in np.unique(request):
        mine = time[request == r]
        after_first, waited = after_first + len(mine) - 1, waited + int(mine.max() - mine.min())
    rate = len(time) / span * 1e9 if span and len(time) else None
    return len(time), rate, after_first / waited * 1e9 if waited else None


def _whole_steps(batches: Iterator[np.ndarray]) -> Iterator[np.ndarray]:
    """The same events, cut so that no step lies in two pieces."""
    rest = np.zeros(0, EVENT)
    for events in batches:
        events = np.concatenate([rest, events])
        cut = np.searchsorted(events["step"], events["step"][-1])
        rest = events[cut:]
        if cut:
            yield events[:cut]
    if len(rest):
        yield rest


class Account:
    """Adds up pieces of a trace; each piece holds whole steps.  ``steps``: columns of the steps table, ascending; as records
    come, their ``begin`` and ``end`` widen and their ``lost`` grows, as in :mod:`mkviz.step_records`."""

    def __init__(self, trace: Trace, steps: dict[str, np.ndarray]):
        self._steps, self._graphs = steps, trace.graphs
        self.sms = trace.sms or int(trace.table("records", ["sm"])["sm"].to_numpy().astype(np.int64).max(initial=-1)) + 1
        self.records = 0
        self._names = [*dict.fromkeys(op for graph, _ in self._graphs.values() for op in graph.ops), UNKNOWN_OP]
        index = {name: i for i, name in enumerate(self._names)}
        self._op_of = {i: np.array([index[op] for op in graph.ops])[graph.op] for i, (graph, _) in self._graphs.items()}
        self._totals = [OpTotals() for _ in self._names]
        self._bytes = TraceBytes(trace, (graph for graph, _ in self._graphs.values()))
        sizes = {i: (schedule.sms, len(graph)) for i, (graph, schedule) in self._graphs.items()}
        of = [sizes.get(g, (self.sms, MOST_NS)) for g in steps["graph"].tolist()]
        self._sms_of, self._tasks_of = np.array(of, np.int64).reshape(-1, 2).T
        np.maximum(steps["end"], steps["begin"], out=steps["end"])
        self._faults = Faults()
        self._occupied = self._unknown = 0  # lane time from a step's begin to the last end on the lane; lane time in doubt

    def add(self, events: np.ndarray) -> None:
        self.records += len(events)
        row, kind = np.searchsorted(self._steps["step"], events["step"]), events["flags"] & KIND_MASK
        good = (events["sm"] < self._sms_of[row]) & (events["task"] < self._tasks_of[row])
        strays = (kind == KIND_TASK) & ~good
        np.add.at(self._steps["lost"], row[strays], 1)
        self._faults.counts["strays"] += int(strays.sum())
        events, row, kind = events[good], row[good], kind[good]
        self._widen(events[kind == KIND_TASK], row[kind == KIND_TASK])
        kept = self._steps["lost"][row] == 0
        events, row, kind = events[kept], row[kept], kind[kept]
        skipped, task = kind == KIND_SKIPPED, kind == KIND_TASK
        for op, n in enumerate(np.bincount(self._ops_and_bytes(events[skipped], row[skipped])[0], minlength=len(self._names))):
            self._totals[op].skipped += int(n)
        events, row = events[task], row[task]
        if not len(row):
            return
        parts = [slice(None)]
        if int(row[-1] - row[0] + 1) * self.sms * (int(self._makespan()[row].max()) + 1) > MOST_NS:  # one by one they fit
            parts = np.split(np.arange(len(row)), np.flatnonzero(np.diff(row)) + 1)
        for part in parts:
            self._add_tasks(events[part], row[part])

    def _widen(self, events: np.ndarray, row: np.ndarray) -> None:
        """As :func:`mkviz.store.step_bounds`."""
        if not len(events):
            return
        starts = np.flatnonzero(np.append(True, row[1:] != row[:-1]))
        at, (begin, end) = row[starts], (self._steps["begin"], self._steps["end"])
        first, claim = (np.minimum.reduceat(events[name], starts) for name in ("begin", "claim"))
        begin[at] = np.where(end[at] > begin[at], np.minimum(begin[at], first), claim)
        end[at] = np.maximum(end[at], np.maximum.reduceat(events["end"], starts))
        for i in at[(end[at] - begin[at]) // (MOST_NS // self.sms) != 0].tolist():  # also what wrapped around
            refuse_endless(int(self._steps["step"][i]), int(begin[i]), int(end[i]), self.sms)

    def _makespan(self) -> np.ndarray:
        return self._steps["end"] - self._steps["begin"]

    def _in_turn(self, graph: np.ndarray) -> np.ndarray:
        """Whether SMs compute one task at a time in steps of these graphs."""
        return ~np.isin(graph, [i for i, (g, _) in self._graphs.items() if not in_turn(g)])

    def _add_tasks(self, events: np.ndarray, row: np.ndarray) -> None:
        lane = (row - row[0]) * self.sms + events["sm"]
        order = in_order(events, lane)
        events, row, lane = events[order], row[order], lane[order]
        since, until = self._steps["begin"][row], self._steps["end"][row]
        is_broken = broken(events)
        tasks = int(events["task"].max()) + 1
        sound = ~(is_broken | repeated((row - row[0]) * tasks + events["task"], is_broken))
        at = LaneTimes.of(events, lane, int(lane[-1]) + 1, since, until - since, sound)
        self._faults.of_lanes(at, events, since, until, self._in_turn(self._steps["graph"][row]))
        op, size = self._ops_and_bytes(events, row)
        sums = {"tasks": np.ones(len(op), np.int64), "bytes": size, **charge_lanes(at, events["flags"])}
        self._unknown += int(sums.pop("unknown").sum())
        ends = np.flatnonzero(at.open_end)  # lanes of which nobody knows when their tail began
        doubt = int((self._makespan()[row[0] + ends // self.sms] - at.left[ends]).sum())
        self._occupied += int(at.left.sum()) + doubt
        self._unknown += doubt
        for i in np.unique(op).tolist():
            mine, totals = op == i, self._totals[i]
            for name, values in sums.items():
                setattr(totals, name, getattr(totals, name) + int(values[mine].sum()))
            mine &= sound
            totals.active += _covered(events["begin"][mine], events["end"][mine])

    def _ops_and_bytes(self, events: np.ndarray, row: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(index into the op names, bytes) of each event; they are by step."""
        op, size = np.full(len(events), len(self._names) - 1), np.zeros(len(events), np.int64)
        rows, starts = np.unique(row, return_index=True)
        for i, first, stop in zip(rows.tolist(), starts.tolist(), [*starts.tolist(), len(row)][1:], strict=True):
            graph, step = (int(self._steps[name][i]) for name in ("graph", "step"))
            if graph in self._graphs:
                task = events["task"][first:stop]
                op[first:stop] = self._op_of[graph][task]
                size[first:stop] = self._bytes.of(step, self._graphs[graph][0])[task]
        return op, size

    def shares(self) -> dict[str, int]:
        """ns of ``sm_time`` by kind."""
        lane_time, whole = self._lane_time(), self._steps["lost"] == 0
        out = dict.fromkeys(KINDS, 0)
        for name in ("compute", "wait", "starved", "overhead"):
            out[name] = sum(getattr(t, name) for t in self._totals)
        out["tail"] = sum(lane_time[whole].tolist()) - self._occupied
        out["unknown"] = sum(lane_time[~whole].tolist()) + self._unknown
        return out

    @property
    def sm_time(self) -> int:
        return sum(self._lane_time().tolist())

    def _lane_time(self) -> np.ndarray:
        return self._makespan() * self._sms_of

    def faults(self) -> dict[str, int]:
        return self._faults.counts | {"lost": int(self._steps["lost"].sum())}

    def ops(self, idle: bool) -> dict[str, OpTotals]:
        """Of the ops that ran, most compute first; without ``idle`` their idle times are None."""
        ran = {n: t for n, t in zip(self._names, self._totals, strict=True) if t.tasks or t.skipped}
        if not idle:
            ran = {n: replace(t, wait=None, starved=None, overhead=None) for n, t in ran.items()}
        return dict(sorted(ran.items(), key=lambda item: -item[1].compute))


def _covered(begin: np.ndarray, end: np.ndarray) -> int:
    """ns during which at least one of the intervals lasts."""
    order = np.argsort(begin)
    begin, end = begin[order], end[order]
    until = np.maximum.accumulate(end)
    return int(np.maximum(until - np.maximum(begin, np.concatenate([begin[:1], until[:-1]])), 0).sum())
