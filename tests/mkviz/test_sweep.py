"""Sweep: compiled analyses of large captures say the same as those that go step by step, whatever is wrong with records."""

import gc
import threading
from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd
import pytest
from random_graphs import random_graph
from step_makers import SMALL, step_of
from test_accounting import graph as graph_by_hand
from test_broken_traces import CASES, tell
from test_tally import capture

import mkviz.blame_steps
import mkviz.hops
from mkviz import accounting
from mkviz.blame import CAUSES, blame
from mkviz.blame_steps import blame_steps
from mkviz.busy import occupancy
from mkviz.errors import MkvizError
from mkviz.faults import FAULTS
from mkviz.graph import GraphBuilder
from mkviz.hop_sums import KEYS
from mkviz.hops import hops
from mkviz.policies import make_schedule
from mkviz.protocols import StepInfo
from mkviz.record import FLAG_BYTES_LAST
from mkviz.rules import RULES, check_rules
from mkviz.schedule import Schedule
from mkviz.simulator import simulate
from mkviz.store import LiveStore
from mkviz.sweep import Sweep, split
from mkviz.trace import Trace, TraceWriter
from mkviz.wave_tails import tails

NOW = {0: 10**12, 1: 2**63 - 10**7, 2: -(2**63) + 10**6}  # by seed % 3


@pytest.fixture(params=[*range(3), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(3, 12))])
def trace(request, tmp_path):
    return capture(tmp_path / "t.mkt", request.param, now=NOW[request.param % 3])


def swept(monkeypatch, analysis, *args, **options):
    """What an analysis says of a capture that it takes for a large one."""
    with monkeypatch.context() as patch:
        patch.setattr(accounting, "LARGE", 0)
        patch.setattr(mkviz.hops, "MOST_KEPT", 0)
        patch.setattr(mkviz.blame_steps, "COMPILED", 0)
        return analysis(*args, **options)


@pytest.mark.parametrize("steps", [None, [0, 3, 9, 21], 12])
def test_waves(trace, steps, monkeypatch):
    one_by_one, found = tails(trace, steps), swept(monkeypatch, tails, trace, steps)
    assert (found.label, found.ops) == (one_by_one.label, one_by_one.ops)
    assert (found.faults, found.notes) == (one_by_one.faults, one_by_one.notes)
    for name in ("waves", "finishers"):
        assert getattr(found, name).tolist() == getattr(one_by_one, name).tolist()
    if steps is None:
        assert [name for name, count in one_by_one.faults.items() if not count] in ([], ["overlapping"])


@pytest.mark.parametrize("steps", [None, [0, 3, 9, 21], 12])
@pytest.mark.parametrize("machine", [None, SMALL])
def test_occupancy(trace, steps, machine, monkeypatch):
    for bins in (1, 7, 300):
        options = {"bins": bins, "machine": machine}
        one_by_one, found = occupancy(trace, steps, **options), swept(monkeypatch, occupancy, trace, steps, **options)
        for name in ("label", "origin", "ops", "sms", "read", "dated", "ceiling", "faults", "notes"):
            assert getattr(found, name) == getattr(one_by_one, name), name
        assert found.edges.tolist() == one_by_one.edges.tolist() and found.busy.tolist() == one_by_one.busy.tolist()
        assert found.bytes == pytest.approx(one_by_one.bytes, rel=1e-6, abs=1e-6 * one_by_one.read)
    if steps is None:
        assert one_by_one.read and one_by_one.dated > 0 if machine else not one_by_one.dated


def test_records_before_all_steps_and_after_them(tmp_path, monkeypatch):
    """The host has the times of one step only: bins are where the records are."""
    graph = random_graph(1, layers=2, width=4)
    schedule = make_schedule(graph, 3, "list")
    result = simulate(graph, schedule, SMALL)
    with TraceWriter(tmp_path / "t.mkt", kind="imported") as writer:
        writer.graph(0, graph, schedule)
        for number, begin in enumerate((7000, 500, 90_000)):
            events = result.events.copy()
            events["step"] = number
            for name in ("claim", "ready", "begin", "end", "publish"):
                events[name] += begin
            writer.step(StepInfo(number, 0, 40_000, 40_000 + (number > 0)), events)
    trace = Trace.open(tmp_path / "t.mkt")
    one_by_one, found = occupancy(trace, bins=9), swept(monkeypatch, occupancy, trace, bins=9)
    assert found.origin == one_by_one.origin < 7000 and found.edges.tolist() == one_by_one.edges.tolist()
    assert found.busy.tolist() == one_by_one.busy.tolist() and found.busy.sum() > 0 and found.faults == one_by_one.faults
    assert found.bytes == pytest.approx(one_by_one.bytes)


def same_waits(found, one_by_one):
    """Everything alike, but for percentiles, which may be too low by less than 1/256 from 512 ns on."""
    for keys in (("counter",), ("producer_op", "op"), KEYS):
        sums, exact = found.by(*keys), one_by_one.by(*keys)
        for name in ("p50", "p90"):
            told, true = sums.pop(name), exact.pop(name)
            short = true - told
            assert ((told == true) | (true >= 512) & (short >= 0) & (short * 256 < true)).all(), (keys, name)
        pd.testing.assert_frame_equal(sums, exact)
    for of in ("exposed", "hop", "slack"):
        for keys in ((), ("counter", "layer")):
            pd.testing.assert_frame_equal(found.histogram(*keys, of=of), one_by_one.histogram(*keys, of=of), check_dtype=False)


@pytest.mark.parametrize("steps", [None, [0, 3, 9, 21], 12])
def test_hops(trace, steps, monkeypatch):
    one_by_one, found = hops(trace, steps), swept(monkeypatch, hops, trace, steps)
    same_waits(found, one_by_one)
    assert (found.label, found.faults) == (one_by_one.label, one_by_one.faults)
    added = [] if "no dependencies" in one_by_one.notes else ["waits are added up: p50 and p90 are too low by less than 0.4 %"]
    assert found.notes == one_by_one.notes + added
    if added:
        assert found.plot().title.text == one_by_one.plot().title.text


@pytest.fixture
def needs(tmp_path):
    """Waits of 1 ns to 2^56 ns; counters of which 1, 2, ... of 6 arrivals are needed, some of them at the same time."""
    rng = np.random.default_rng(5)
    builder = GraphBuilder("needs", ["a", "b", "c"])
    counter = builder.counter("six")
    for i in range(6):
        builder.task("ab"[i % 2], layer=i // 2, raises=[counter])
    for need in range(8):
        builder.task("c", layer=need, waits=[(counter, need)])
    graph = builder.build()
    with TraceWriter(tmp_path / "t.mkt", kind="imported") as writer:
        writer.graph(0, graph, Schedule.from_lists([[] for _ in range(14)], range(14)))
        for number in range(400):
            length = 1 + int(2 ** rng.uniform(0, 56))
            rows = [(t, t, 0, 0, p := int(rng.integers(0, 3)), p) for t in range(6)]
            rows += [(t, t, ready := int(rng.integers(0, length)), ready, length) for t in range(6, 14)]
            events = step_of(graph, 14, [row for row in rows if rng.random() > 0.1], 0, length).events
            events["step"] = number
            writer.step(StepInfo(number, 0, 0, length), events)
    return Trace.open(tmp_path / "t.mkt")


def test_waits_of_all_lengths_and_needs(needs, monkeypatch):
    one_by_one, found = hops(needs), swept(monkeypatch, hops, needs)
    same_waits(found, one_by_one)
    exposed = one_by_one.columns["exposed"]
    assert exposed.max() > 2**54 and len(np.unique(exposed[(exposed > 0) & (exposed < 512)])) > 50
    assert set(one_by_one.by("producer_op")["producer_op"]) == {"a", "b", ""}


def same_blame(found, one_by_one):
    assert found.held.tolist() == one_by_one.held.tolist()
    for name in ("label", "path", "faults", "notes", "totals", "bandwidth"):
        assert getattr(found, name) == getattr(one_by_one, name), name
    assert sum(found.totals.values()) == found.held["makespan"].sum() == sum(ns for *_, ns in found.path)


@pytest.mark.parametrize("steps", [None, [0, 3, 9, 21], 12])
def test_blame(trace, steps, monkeypatch):
    one_by_one = blame_steps(trace, steps, SMALL)
    same_blame(swept(monkeypatch, blame_steps, trace, steps, SMALL), one_by_one)
    frame = one_by_one.frame().set_index("step")
    for step in frame.index[:3]:
        b = blame(trace, step, SMALL)
        told = frame.loc[step]
        assert (b.makespan, b.bytes, b.floor or 0) == (told["makespan"], told["bytes"], 0 if b.floor is None else told["floor"])
        assert b.critical == (None if pd.isna(told["critical"]) else told["critical"])
        assert b.totals == {cause: told[cause] for cause in CAUSES}
    share = one_by_one.waterfall()["share"]
    assert share.sum() == pytest.approx(1 if len(share) else 0) and one_by_one.plot().title.text.startswith(
        "imported · what held"
    )


def test_the_longest_chain_where_some_arrivals_are_enough(needs, monkeypatch):
    one_by_one = blame_steps(needs, range(0, 400, 5))
    same_blame(swept(monkeypatch, blame_steps, needs, range(0, 400, 5)), one_by_one)
    assert {cause for cause, ns in one_by_one.totals.items() if ns} >= {"compute", "hop"}
    monkeypatch.setattr(mkviz.blame_steps, "MOST_NS", int(one_by_one.held["makespan"].sum()))
    with pytest.raises(MkvizError, match=r"400 steps of \d+ ns; fewer steps"):
        swept(monkeypatch, blame_steps, needs)


def test_what_sums_cannot_tell(trace, monkeypatch):
    found = swept(monkeypatch, hops, trace)
    with pytest.raises(MkvizError, match=r"large capture are added up; some of its steps"):
        found.frame()
    with pytest.raises(MkvizError, match=r"by op, sm: they are added up by counter, op, layer, producer_op; any of these"):
        found.by("op", "sm")
    with pytest.raises(MkvizError, match=r"by task: they are added up"):
        found.histogram("task")
    for wrong in (lambda: found.by(), lambda: found.by("role"), lambda: found.histogram(of="wait")):
        with pytest.raises(MkvizError, match="one"):
            wrong()


def test_a_check_of_all_limits(trace, monkeypatch):
    limits = {name: {"share": "5%", "time": "1ms"}.get(rule.kind, "1") for name, rule in RULES.items()}
    one_by_one, found = check_rules(trace, limits), swept(monkeypatch, check_rules, trace, limits)
    assert found == one_by_one and len({verdict.value for verdict in found}) > 8


def test_a_step_that_is_not_there(trace, monkeypatch):
    with pytest.raises(MkvizError, match="step 1 is not there"):
        swept(monkeypatch, tails, trace, [0, 1])


def test_steps_without_a_graph_and_no_steps(tmp_path, monkeypatch):
    trace = capture(tmp_path / "t.mkt", 0)
    with TraceWriter(tmp_path / "none.mkt", kind="imported") as writer:
        for info, events in trace.walk(_all(trace)):
            writer.step(
                StepInfo(info.step, -1, info.begin, info.end, lost=info.lost),
                events[(events["sm"] < 900) & (events["task"] < 9000)],
            )
    TraceWriter(tmp_path / "empty.mkt", kind="imported").close()
    for name in ("none", "empty"):
        graphless = Trace.open(tmp_path / f"{name}.mkt")
        one_by_one, found = tails(graphless), swept(monkeypatch, tails, graphless)
        assert found.waves.tolist() == one_by_one.waves.tolist() and found.notes == one_by_one.notes
        assert swept(monkeypatch, hops, graphless).notes == hops(graphless).notes
        same_blame(swept(monkeypatch, blame_steps, graphless), blame_steps(graphless))
        one_by_one, found = occupancy(graphless), swept(monkeypatch, occupancy, graphless)
        assert found.busy.tolist() == one_by_one.busy.tolist() and found.notes == one_by_one.notes


@pytest.mark.parametrize("steps", [150, pytest.param(3000, marks=pytest.mark.slow)])
def test_records_of_any_times(tmp_path, steps, monkeypatch):
    """Short steps in which everything happens at the same time, out of order or twice."""
    rng = np.random.default_rng(steps)
    graph = random_graph(4, layers=2, width=3)
    with TraceWriter(tmp_path / "t.mkt", kind="imported") as writer:
        writer.graph(0, graph, Schedule.from_lists([[] for _ in range(3)], range(len(graph))))
        for number in range(steps):
            task = rng.permutation(np.append(np.arange(len(graph)), rng.integers(0, len(graph), 2)))
            times = [np.sort(rng.integers(0, 40, 3)) for _ in task] if number % 3 else list(rng.integers(0, 40, (len(task), 3)))
            rows = [
                (
                    int(t),
                    int(rng.integers(3)),
                    int(rng.integers(0, 40)),
                    int(ready),
                    int(end),
                    int(end + rng.integers(0, 9)),
                    FLAG_BYTES_LAST * int(rng.integers(2)),
                    int(claim),
                )
                for t, (claim, ready, end) in zip(task, times, strict=True)
            ]
            events = step_of(graph, 3, rows, 0, 40).events
            events["step"], events["fill"] = number, rng.integers(0, 3, len(events)) * 7
            writer.step(StepInfo(number, 0, 0, 40), events)
    trace = Trace.open(tmp_path / "t.mkt")
    same_waits(swept(monkeypatch, hops, trace), hops(trace))
    same_blame(swept(monkeypatch, blame_steps, trace), blame_steps(trace))
    one_by_one, found = tails(trace), swept(monkeypatch, tails, trace)
    assert found.waves.tolist() == one_by_one.waves.tolist() and found.finishers.tolist() == one_by_one.finishers.tolist()
    one_by_one, found = (analysis(trace, None, 40, SMALL) for analysis in (occupancy, partial(swept, monkeypatch, occupancy)))
    assert found.busy.tolist() == one_by_one.busy.tolist()
    assert found.bytes == pytest.approx(one_by_one.bytes, rel=1e-6, abs=1e-6 * one_by_one.read)


def _all(trace):
    from mkviz.trace.selection import Selection

    return Selection.of(trace)


@pytest.mark.parametrize("case", CASES)
def test_whatever_is_wrong_with_records(case, tmp_path, monkeypatch):
    with TraceWriter(tmp_path / "t.mkt", kind="measured", device="cpu") as writer:
        tell(writer, CASES[case][0])
    trace = Trace.open(tmp_path / "t.mkt")
    for analysis in (hops, tails, occupancy, blame_steps):
        one_by_one, found = analysis(trace), swept(monkeypatch, analysis, trace)
        assert found.faults == one_by_one.faults == dict.fromkeys(FAULTS, 0) | CASES[case][1]
        if analysis is hops:
            same_waits(found, one_by_one)
        elif analysis is blame_steps:
            same_blame(found, one_by_one)
        elif analysis is tails:
            assert found.waves.tolist() == one_by_one.waves.tolist()
        else:
            assert found.busy.tolist() == one_by_one.busy.tolist() and found.bytes == pytest.approx(one_by_one.bytes)


@pytest.mark.parametrize("analysis", [hops, tails, occupancy, blame_steps])
def test_a_time_that_cannot_be_is_refused_by_the_step(analysis, tmp_path, monkeypatch):
    (records, info) = CASES["sound"][0][0]
    records = records.copy()
    records["end"][3], records["begin"][0], records["claim"][0] = 2**63 - 1, -5, -5
    with TraceWriter(tmp_path / "t.mkt", kind="imported") as writer:
        tell(writer, [(records, info)])
    with pytest.raises(MkvizError, match="step 0 lasts 9223372036854775812 ns"):
        swept(monkeypatch, analysis, Trace.open(tmp_path / "t.mkt"))


def test_the_error_of_a_sink_or_a_damaged_trace_comes_through(trace, monkeypatch):
    class GivesUp(LiveStore):
        def step(self, info, events):
            if info.step == 9:
                raise ValueError("enough")

    before = threading.active_count()
    with pytest.raises(ValueError, match="enough"):
        trace.replay(GivesUp())
    gc.collect()
    assert threading.active_count() == before  # it is read ahead no more
    last = sorted(trace.path.glob("records-*.parquet"))[-1]
    last.write_bytes(b"PAR1" + bytes(len(last.read_bytes()) - 8) + b"PAR1")
    for ask in (lambda: Trace.open(trace.path).replay(LiveStore()), lambda: swept(monkeypatch, tails, trace.path)):
        with pytest.raises(MkvizError, match=r"records-\d+.parquet is damaged"):
            ask()


@pytest.mark.parametrize("order", [(5, 3), (3, 5, 3), (3, 3, 5)])
def test_steps_out_of_order(order, tmp_path, monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: 1)  # a part of one step reads no others
    graph, (records, info) = graph_by_hand(), CASES["sound"][0][0]
    with TraceWriter(tmp_path / "t.mkt", kind="imported") as writer:
        writer.graph(0, graph, Schedule.from_lists([[0, 1], [2, 3]]))
        for number in order:
            events = records.copy()
            events["step"] = number
            writer.step(replace(info, step=number), events)
    trace = Trace.open(tmp_path / "t.mkt")
    if order == (3, 3, 5):  # as one, of which records come twice
        one_by_one, found = tails(trace), swept(monkeypatch, tails, trace)
        assert found.waves.tolist() == one_by_one.waves.tolist() and found.faults == one_by_one.faults
        assert found.faults["repeated"] == len(records)
        return
    for ask in (tails, partial(swept, monkeypatch, tails), partial(swept, monkeypatch, tails, steps=[3, 5])):
        with pytest.raises(MkvizError, match=r"records of step 3 are not where its table of steps has them; write steps asc"):
            ask(trace)


@pytest.mark.parametrize("count", [1, 2, 3, 50])
def test_parts_hold_all_steps_once(count):
    records = np.array([5, 0, 0, 90, 1, 1, 1, 30, 0])
    parts = split(records, count)
    assert len(parts) <= count and [row for part in parts for row in part] == list(range(len(records)))
    assert split(records[:0], count) == []


def test_a_worker_gets_each_step_once_and_whole(trace):
    class Seen:
        def __init__(self):
            self.steps = []

        def add(self, step):
            own = slice(step.first, step.stop)
            self.steps.append((step.number, sorted(step.columns["task"][own].tolist()), step.columns["ready"][own].sum()))

    whole = [(info.step, sorted(e["task"].tolist()), e["ready"].sum()) for info, e in trace.walk(_all(trace))]
    for threads in (1, 2, 5):
        workers = Sweep(trace).run(Seen, ["ready"], threads)
        assert [step for worker in workers for step in worker.steps] == whole and len(workers) <= threads
    some = [numbers[0] for numbers in whole][2::3]
    workers = Sweep(trace, some).run(Seen, ["ready"], 2)
    assert [step for worker in workers for step in worker.steps] == whole[2::3]
