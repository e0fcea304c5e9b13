"""Rules: what a trace has to keep to, for the continuous integration of kernels; docs/analyses.md has what each value is."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from mkviz.accounting import KINDS, Account, account, is_large, refuse_thinned
from mkviz.blame import CAUSES, blame
from mkviz.dashboard.units import duration
from mkviz.errors import MkvizError
from mkviz.many_steps import times_of
from mkviz.wave_tails import WaveTails, tails

if TYPE_CHECKING:
    from mkviz.trace import Trace

SHARE, TIME, RATE, COUNT = "share", "time", "rate", "count"
EXAMPLES = {SHARE: "5% or 0.05", TIME: "400us, 1.2ms or 85000ns", RATE: "a number", COUNT: "a whole number"}
TIME_UNITS = {"ns": 1, "us": 10**3, "µs": 10**3, "μs": 10**3, "ms": 10**6, "s": 10**9}
PASSED, FAILED, UNTOLD = 0, 1, 2


class Facts:
    """What rules ask of a trace, or of some of its steps; each is worked out once, when the first rule asks."""

    def __init__(self, trace: Trace, steps: np.ndarray | None = None):
        self.trace, self.steps = trace, steps

    def read_large(self) -> None:
        """Of all steps of a large capture the accounting and the waves at once, of records that are read once."""
        from mkviz.sweep import Sweep
        from mkviz.tally import TallySums
        from mkviz.wave_sweep import WaveSums

        refuse_thinned(self.trace)
        sweep = Sweep(self.trace)
        tally, (ops, waves, finishers, faults) = sweep.all_of([TallySums(sweep, full=False), WaveSums(sweep)])
        self.account = tally.account(self.trace.label)
        self.tails = WaveTails(self.trace.label, ops, waves, finishers, faults.counts)

    @cached_property
    def account(self) -> Account:
        return account(self.trace, self.steps)

    @cached_property
    def tails(self) -> WaveTails:
        return tails(self.trace, self.steps)

    @cached_property
    def times(self) -> np.ndarray:
        """ns of the steps that lost no records."""
        times, _ = times_of(self.trace)
        kept = (times["lost"] == 0) & (times["ns"] >= 0)
        if self.steps is not None:
            kept &= np.isin(times["step"], self.steps)
        return times[kept]

    def share(self, kind: str) -> float:
        """Of SM time."""
        if not self.account.sm_time:
            raise MkvizError("there is no SM time", "a trace with steps")
        return self.account.totals[kind] / self.account.sm_time

    def step(self, percent: float) -> int:
        if not len(self.times):
            raise MkvizError("there is no whole step", "a trace with a step that lost no records")
        return int(np.percentile(self.times["ns"], percent, method="inverted_cdf"))

    def path(self, cause: str) -> float:
        """Of the blame path of the step of median time."""
        median = self.times["step"][np.flatnonzero(self.times["ns"] == self.step(50))[0]]
        found = self._blame(int(median))
        if not found.makespan:
            raise MkvizError("the step of median time takes no time", "a trace with steps that do")
        return found.totals[cause] / found.makespan

    def _blame(self, step: int):
        if getattr(self, "_path", None) is None:
            self._path = blame(self.trace, step)
        return self._path

    @cached_property
    def wave_tail(self) -> float:
        """Idle in the tails of ops, of their SM time from begin to end."""
        found = self.tails.by()
        if not len(found) or not found["area"][0]:
            raise MkvizError("there is no op that takes time", "a trace with whole steps")
        return float(found["tail_idle"][0] / found["area"][0])

    @cached_property
    def tok_s(self) -> float:
        """Tokens over the time from the first step's begin to the last one's end."""
        times, _ = times_of(self.trace)
        tokens = self.trace.table("tokens", ["step"])["step"].to_numpy()
        if self.steps is not None:
            times, tokens = times[np.isin(times["step"], self.steps)], tokens[np.isin(tokens, self.steps)]
        span = int((times["begin"] + times["ns"]).max() - times["begin"].min()) if len(times) else 0
        if not len(tokens) or not span:
            raise MkvizError("the trace tells of no tokens", "a trace of generated text")
        return len(tokens) / span * 1e9

    @cached_property
    def clock_error(self) -> float:
        error = self.trace.meta["clock"].get("error_ns")
        if error is None:
            raise MkvizError("the error of the clocks is not known", "a trace with anchors of its clocks")
        return error

    def records(self, *names: str) -> int:
        return sum(self.account.faults[name] for name in names)

    @property
    def lost(self) -> int:
        """Records that are gone: of the trace, or of the steps."""
        return self.trace.lost[0] if self.steps is None else self.records("lost")


@dataclass(frozen=True)
class Rule:
    """``name``: max-... or min-...; ``value`` of a trace's facts, in the unit of ``kind``: share of 1, ns, per s, records."""

    name: str
    kind: str
    help: str
    value: Callable[[Facts], float]

    @property
    def upper(self) -> bool:
        return self.name.startswith("max")

    def parse(self, text: str) -> float:
        """A limit as it is written.  Raises MkvizError for what is none."""
        text = str(text).strip()
        pattern = {SHARE: r"([\d.]+)\s*(%?)", TIME: r"([\d.]+)\s*(ns|us|µs|μs|ms|s)"}.get(self.kind, r"([\d.]+)()")
        match = re.fullmatch(pattern, text)
        try:
            number = float(match[1]) if match else None
        except ValueError:
            number = None
        whole, share = self.kind == COUNT, self.kind == SHARE and not (match and match[2])
        if number is None or (whole and number != int(number)) or (share and number > 1):
            raise MkvizError(f"--{self.name} {text!r}", f"a limit like {EXAMPLES[self.kind]}")
        return number / 100 if match[2] == "%" else number * TIME_UNITS.get(match[2], 1)

    def words(self, value: float) -> str:
        """A value as people read it."""
        if self.kind == TIME:
            return duration(value)
        return {SHARE: f"{100 * value:.2f} %", RATE: f"{value:,.1f}/s", COUNT: f"{value:,.0f}"}[self.kind]


RULES = {rule.name: rule for rule in (
    *(Rule(f"max-{kind}", SHARE, f"share of SM time that is {kind}", lambda f, kind=kind: f.share(kind)) for kind in KINDS[1:]),
    Rule("min-compute", SHARE, "share of SM time that is compute", lambda f: f.share("compute")),
    Rule("max-wave-tail", SHARE, "idle in the tails of ops, of their SM time from begin to end", lambda f: f.wave_tail),
    *(Rule(f"max-path-{cause}", SHARE, f"share of the median step's blame path that is {cause}",
           lambda f, cause=cause: f.path(cause)) for cause in CAUSES[1:]),
    Rule("max-step", TIME, "time of the median step", lambda f: f.step(50)),
    *(Rule(f"max-step-p{p}", TIME, f"time that {p} % of the steps keep to", lambda f, p=p: f.step(p)) for p in (90, 99)),
    Rule("max-step-worst", TIME, "time of the slowest step", lambda f: f.step(100)),
    Rule("min-tok-s", RATE, "tokens per second, pauses included", lambda f: f.tok_s),
    Rule("max-clock-error", TIME, "largest error of the clocks", lambda f: f.clock_error),
    Rule("max-lost", COUNT, "records that are gone", lambda f: f.lost),
    Rule("max-broken", COUNT, "records without end, that end before they begin, or whose times did not fit",
         lambda f: f.records("broken")),
    Rule("max-repeated", COUNT, "records of a task that has one in the step already", lambda f: f.records("repeated")),
)}  # fmt: skip


@dataclass(frozen=True)
class Verdict:
    """``value`` is None where it could not be told, ``why`` says what for."""

    rule: Rule
    limit: float
    value: float | None
    why: str = ""

    @property
    def code(self) -> int:
        if self.value is None:
            return UNTOLD
        return PASSED if (self.value <= self.limit if self.rule.upper else self.value >= self.limit) else FAILED

    def __str__(self) -> str:
        """``FAIL  max-tail        7.10 %   limit 5.00 %``."""
        word = {PASSED: "ok", FAILED: "FAIL", UNTOLD: "????"}[self.code]
        value = f"could not be checked: {self.why}" if self.value is None else self.rule.words(self.value)
        return f"{word:<5}{self.rule.name:<20}{value:>12}   limit {self.rule.words(self.limit)}"

    def to_json(self) -> dict:
        return {"rule": self.rule.name, "unit": self.rule.kind, "limit": self.limit, "value": self.value, "why": self.why,
                "code": self.code}  # fmt: skip


def check_rules(trace: Trace, limits: dict[str, str | float], steps: np.ndarray | None = None) -> list[Verdict]:
    """One verdict for each rule of ``limits`` (``{"max-tail": "5%", "max-step": "400us"}``), in their order.

    Raises MkvizError for none, for a rule that is not there and for a limit that is none.
    """
    if not limits:
        raise MkvizError("no rule to check", f"one or several of {', '.join(RULES)}")
    parsed = []
    for name, limit in limits.items():
        if name not in RULES:
            near = difflib.get_close_matches(name, RULES, n=1)
            raise MkvizError(f"rule {name!r}", f"did you mean {near[0]!r}?" if near else f"one of {', '.join(RULES)}")
        parsed.append((RULES[name], RULES[name].parse(str(limit))))
    facts, out = Facts(trace, steps), []
    if steps is None and is_large(trace) and any(rule.name == "max-wave-tail" for rule, _ in parsed) and len(parsed) > 1:
        with suppress(MkvizError):  # the rules that it keeps from being checked say so
            facts.read_large()
    for rule, limit in parsed:
        try:
            out.append(Verdict(rule, limit, float(rule.value(facts))))
        except MkvizError as error:
            out.append(Verdict(rule, limit, None, error.what))
    return out


def exit_code(verdicts: list[Verdict]) -> int:
    """0: all are kept; 1: one is not; 2: none is broken, and one could not be checked."""
    codes = {verdict.code for verdict in verdicts}
    return FAILED if FAILED in codes else max(codes)
