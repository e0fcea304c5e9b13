"""Fitted costs: what each task of a recorded step took, so that replaying the step gives that step again.

The replay has mechanisms of its own: rings that fill, bandwidth that is shared, hand-overs.  So the costs begin with what the
machine says and what records tell at once (publish, hops that were exposed, math of tasks that cannot stall), and are then
corrected task by task by what a replay gets wrong where it depends on nothing else: from a task's operands to its begin
(overhead), and from there to its end (math).  What no cost of 0 or more can explain is left, and is the replay's error.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from mkviz.calibration import FASTEST, fit
from mkviz.costs import Costs
from mkviz.errors import MkvizError
from mkviz.graph import Graph
from mkviz.machine import H200, Machine
from mkviz.protocols import StepInfo
from mkviz.schedule import Schedule
from mkviz.step_records import StepRecords, of_events
from mkviz.validate import check, problems
from mkviz.whatif_case import Case
from mkviz.work import Work

UNMEASURED = "unmeasured"
ROUNDS = 8  # of correction; further ones move the recordings of the package by less than their error


@dataclass(frozen=True, eq=False)
class FittedStep:
    """A recorded step and its replay.

    ``case``: its graph, with what the tasks that ``ran`` (bool[T]) had to do (``work``), under its plan, or as it was seen to
    run where no plan is kept, with the costs fitted to it.  Without a measured machine the case has no bytes: they are part of
    each task's time.  ``exact``: the costs are those of the machine that simulated it.
    """

    step: StepRecords
    case: Case
    ran: np.ndarray
    work: Work
    exact: bool = False

    @property
    def error(self) -> float:
        """Of the makespan of the replay against the recorded one, as a share."""
        return self.case.replay.makespan / self.step.makespan - 1


def fit_step(
    step: StepRecords, schedule: Schedule, machine: Machine | None, *, info: StepInfo | None = None, simulated: bool = False
) -> FittedStep:
    """Fit the costs of a whole step.  ``machine`` gives what is shared (bandwidth, ring, launches; None: nobody measured it);
    where it made a ``simulated`` step as a megakernel, the costs are its own and the replay has error 0.  ``info``: tells the
    rows and routes of the step, by which its work is known.

    Raises MkvizError for a step that lost records, took no time, or cannot be replayed.
    """
    if step.lost:
        raise MkvizError(f"step {step.step} lost {step.lost} records", "a whole step")
    if not step.makespan or not step.lanes.sound.any():
        raise MkvizError(f"step {step.step} has no task that took time", "a step with sound records")
    ran = step.row_of >= 0
    work = Work.of(step.graph, info or StepInfo(step.step, 0, step.begin, step.end), ran)
    schedule = _schedule(step, step.graph, schedule)
    if simulated and machine is not None:
        graph = replace(step.graph, bytes=np.where(ran, step.graph.bytes, 0), flops=np.where(ran, step.graph.flops, 0))
        costs = _free(Costs.of_machine(graph, machine), ran)
        case = Case(graph, schedule, machine, costs, np.zeros(len(graph), bool))
        if case.replay.makespan == step.makespan:
            return FittedStep(step, case, ran, Work(graph.bytes, graph.flops.astype(float)), exact=True)
    read = np.zeros_like(work.bytes) if machine is None else work.bytes
    graph = replace(step.graph, bytes=read, flops=np.rint(work.flops).astype(np.int64))
    machine = machine or unmeasured(schedule)
    beside = _beside(step, graph)
    told = _Told.of(_apart(step, beside))
    machine = fit(graph, step.events[step.lanes.sound], machine)
    costs = _free(_at_once(graph, Costs.of_machine(graph, machine), told, machine), ran)
    least = np.where(
        graph.bytes > machine.chunk_bytes, costs.math, 1
    )  # a stall that the replay overrates does not make math fast
    for _ in range(ROUNDS):
        case = Case(graph, schedule, machine, costs, beside)
        costs = _corrected(costs, told, _Told.of(_apart(case.records, beside)), ran, least)
        if costs is None:
            break
    return FittedStep(step, case, ran, work)


def unmeasured(schedule: Schedule) -> Machine:
    """For devices that nobody measured: everything is in the recorded times."""
    return replace(H200, name=UNMEASURED, sms=schedule.sms, publish_ns=0, hop_ns=0, feed_ns=0, claim_ns=0, launch_ns=0)


def _beside(step: StepRecords, graph: Graph) -> np.ndarray:
    """bool[T]: tasks of ops without bytes of which one was at work while its SM's math was at another task."""
    at, task = step.lanes, step.events["task"]
    shared = at.sound & (at.begin < at.free)
    op = graph.op[np.concatenate([task[shared], task[at.holder[shared]]])]
    dry = [i for i in np.unique(op).tolist() if not graph.bytes[graph.op == i].any()]
    return np.isin(graph.op, dry)


def _apart(step: StepRecords, beside: np.ndarray) -> StepRecords:
    """The same with a second lane for each SM, on which the tasks beside its math are."""
    events = step.events.copy()
    events["sm"] += (step.sms * beside[events["task"]]).astype(events["sm"].dtype)
    wide = Schedule.from_lists([[] for _ in range(2 * step.sms)])
    return of_events(StepInfo(step.step, 0, step.begin, step.end), events, step.graph, wide)


@dataclass(frozen=True)
class _Told:
    """What records tell of each task of a graph, i64[T] (0 for one without): ``late``: ns from its lane free and its waits met
    to its begin; ``long``: from begin to end; ``publish``: from there on; ``hop``: from the publish that met its last
    wait to ready (-1: none known); ``exposed`` bool: the lane stood idle for that."""

    late: np.ndarray
    long: np.ndarray
    publish: np.ndarray
    hop: np.ndarray
    exposed: np.ndarray

    @classmethod
    def of(cls, step: StepRecords) -> _Told:
        graph, at, row = step.graph, step.lanes, step.row_of
        met = np.full(len(graph), -1, np.int64)
        by = step.met_by
        publish = np.where(by >= 0, step.published[by], -1) if len(by) else by
        np.maximum.at(met, np.repeat(np.arange(len(graph)), np.diff(graph.wait_ptr)), publish)
        ran = row >= 0
        free, ready, begin, end = (np.where(ran, values[row], 0) for values in (at.free, at.ready, at.begin, at.end))
        return cls(
            np.maximum(begin - np.maximum(free, met), 0) * ran, end - begin, np.where(ran, step.published[row] - end, 0),
            np.where(ran & (met >= 0), np.maximum(ready - met, 0), -1),
            ran & (ready > free) & (met > np.where(ran, at.claim[row], 0)),
        )  # fmt: skip


def _schedule(step: StepRecords, graph: Graph, schedule: Schedule) -> Schedule:
    """The plan where there is one for all tasks, else what each SM was seen to run, in that order."""
    if not problems(graph, schedule):
        return schedule
    events = step.events[step.lanes.sound]
    if len(events) < len(graph):
        raise MkvizError(
            f"step {step.step}: {len(graph) - len(events)} tasks have no record, and the trace has no schedule that runs them",
            "a trace with a schedule, or a step of which every task has a record",
        )
    seen = Schedule.from_lists([events["task"][events["sm"] == sm].tolist() for sm in range(step.sms)], policy="as it ran")
    check(graph, seen)
    return seen


def _at_once(graph: Graph, costs: Costs, told: _Told, machine: Machine) -> Costs:
    """What needs no replay: publish as recorded, hops as exposed, and math, which for a task of several chunks is that of the
    fastest tenth of its kind, because it may have stalled for the others."""
    _, kind = np.unique(np.stack([graph.op.astype(np.int64), graph.bytes, graph.flops]), axis=1, return_inverse=True)
    kind, math = kind.reshape(-1), np.maximum(told.long, 1)
    for k in np.unique(kind[graph.bytes > machine.chunk_bytes]).tolist():
        mine = math[kind == k]
        math[kind == k] = np.minimum(mine, np.percentile(mine, FASTEST, method="inverted_cdf"))
    hidden = np.where(told.hop >= 0, np.minimum(costs.hop, told.hop), costs.hop)
    return replace(costs, math=math, publish=told.publish, hop=np.where(told.exposed, told.hop, hidden))


def _free(costs: Costs, ran: np.ndarray) -> Costs:
    """Slots without work take no time (1 ns of math, the least there is)."""
    return Costs(np.where(ran, costs.math, 1), *(
        np.where(ran, ns, 0) for ns in (costs.publish, costs.hop, costs.feed, costs.overhead)))  # fmt: skip


def _corrected(costs: Costs, told: _Told, replayed: _Told, ran: np.ndarray, least: np.ndarray) -> Costs | None:
    """Costs that would have given what was recorded, had all else been as replayed; None where nothing is to be corrected."""
    late, long = (told.late - replayed.late) * ran, (told.long - replayed.long) * ran
    changed = {"math": np.clip(costs.math + long, least, np.maximum(told.long, costs.math))}
    left = costs.overhead + late
    for name in ("overhead", "feed", "hop"):  # what came too late gives way in this order
        now = left if name == "overhead" else getattr(costs, name) + np.minimum(left, 0)
        changed[name] = np.maximum(now, 0)
        left = np.minimum(now, 0)
    if all(np.array_equal(ns, getattr(costs, name)) for name, ns in changed.items()):
        return None
    return replace(costs, **changed)
