"""Tally: the same as the accounting and the summary of small captures, whatever is wrong with records; parts add up."""

import numpy as np
import pandas as pd
import pytest
from random_graphs import random_graph
from step_makers import SMALL

from mkviz import accounting
from mkviz.accounting import account
from mkviz.errors import MkvizError
from mkviz.policies import make_schedule
from mkviz.protocols import StepInfo, TokenInfo
from mkviz.record import FLAG_BYTES_LAST, FLAG_SATURATED, KIND_PHASES, KIND_SKIPPED
from mkviz.simulator import simulate
from mkviz.store import LiveStore, store_of_trace
from mkviz.summary import summarise
from mkviz.sweep import parts_of
from mkviz.tally import tally
from mkviz.trace import Trace, TraceWriter

KEYS = ["sm", "op", "layer"]


def wrong(events, rng, number):
    """The records of a step with some of all that can be wrong with them, in another order."""
    events = events.copy()
    events["step"] = number
    chance = rng.random(len(events))
    events["end"][chance < 0.05] = min(0, int(events["begin"].min()) - 5)
    events["flags"][(chance > 0.1) & (chance < 0.15)] |= FLAG_SATURATED
    events["flags"][(chance > 0.2) & (chance < 0.5)] ^= FLAG_BYTES_LAST
    events["flags"][(chance > 0.6) & (chance < 0.7)] = KIND_SKIPPED
    events["ready"] += rng.integers(-300, 300, len(events))
    again = events[chance > 0.9]
    again["begin"] += 40
    events["begin"][(chance > 0.7) & (chance < 0.8)] -= 2000  # into the task before
    phases = events[chance > 0.8]
    phases["flags"], phases["publish"] = KIND_PHASES, phases["begin"] + rng.integers(-5, 4000, len(phases))
    events = np.concatenate([events, again, phases])
    return events[rng.permutation(len(events))] if number % 3 else events


def capture(path, seed, steps=9, now=10**12):
    """A trace of steps of two graphs, right and wrong ones, one that lost records, one with strays, one without records; times
    are from ``now`` on."""
    rng = np.random.default_rng(seed)
    with TraceWriter(path, kind="imported", overwrite=True, segment_records=40) as writer:
        made = []
        for i in range(2):
            graph = random_graph(seed + i, layers=3, width=5)
            schedule = make_schedule(graph, 2 + seed % 3 + i, "round_robin")
            writer.graph(i, graph, schedule)
            made.append(simulate(graph, schedule, SMALL))
        for number in range(0, 3 * steps, 3):
            i = int(rng.integers(2))
            events = made[i].events.copy()
            for name in ("claim", "ready", "begin", "end", "publish"):
                events[name] += now
            if number % 2:
                events = wrong(events, rng, number)
            events["step"] = number
            if number == 6:
                events["sm"][0], events["task"][-1] = 999, 99999
            if number == 12:
                events = events[:0]
            end = now + made[i].makespan - (100 if number == 3 else 0)
            if number == 9:
                end = now  # the host does not know: the step begins with its first claim
                events["begin"][0] = events["claim"].min() - 7
            writer.step(StepInfo(number, i, now, end, lost=2 if number == 15 else 0), events)
            now += made[i].makespan + 5000
    return Trace.open(path)


def all_of(found):
    rows = pd.concat([found.frame(*KEYS), found.roles(*KEYS).drop(columns=KEYS)], axis=1).set_index(KEYS)
    return rows[rows.any(axis=1)]  # of a task whose only record is broken nothing is known


@pytest.mark.parametrize("seed", range(12))
def test_it_says_what_the_accounting_of_each_step_says(tmp_path, seed, monkeypatch):
    trace = capture(tmp_path / "t.mkt", seed)
    one_by_one, summed = account(trace), summarise(trace)
    monkeypatch.setattr(accounting, "LARGE", 0)
    found = account(trace)
    pd.testing.assert_frame_equal(all_of(found), all_of(one_by_one))
    assert (found.faults, found.notes) == (one_by_one.faults, one_by_one.notes)
    assert (found.steps, found.sm_time, found.label) == (one_by_one.steps, one_by_one.sm_time, one_by_one.label)
    assert sum(found.totals.values()) == found.sm_time
    assert [name for name, count in one_by_one.faults.items() if not count] in ([], ["overlapping"])
    assert summarise(trace).to_json() == summed.to_json()


def test_a_large_capture_has_no_frame_by_step_but_of_the_steps_asked_for(tmp_path, monkeypatch):
    trace = capture(tmp_path / "t.mkt", 0)
    monkeypatch.setattr(accounting, "LARGE", 0)
    with pytest.raises(MkvizError, match="over all of its steps; name some of them"):
        account(trace).frame("op", "step")
    assert account(trace, steps=[0, 3]).frame("step")["step"].tolist() == [0, 3]


@pytest.mark.parametrize("count", [1, 2, 4, 50])
def test_parts_add_up_in_any_order(tmp_path, count):
    trace = capture(tmp_path / "t.mkt", 3)
    whole, total = tally(trace, threads=1), None
    parts = parts_of(trace, count)
    numbers = trace.table("steps", ["step"])["step"].to_pylist()
    assert [n for first, last in parts for n in numbers if first <= n <= last] == numbers
    for part in parts[::-1]:
        more = tally(trace, part, threads=1)
        total = more if total is None else total + more
    pd.testing.assert_frame_equal(all_of(total.account("")), all_of(whole.account("")))
    assert total.ops(True) == whole.ops(True) and total.faults() == whole.faults()
    assert tally(trace, threads=3).shares() == whole.shares()


def test_nothing_is_tallied_too(tmp_path, monkeypatch):
    TraceWriter(tmp_path / "t.mkt", kind="measured", device="cpu").close()
    trace = Trace.open(tmp_path / "t.mkt")
    found = tally(trace).account(trace.label)
    assert (found.steps, found.sm_time, found.notes, len(found.entries)) == (0, 0, ["no steps"], 0)


def test_steps_without_a_graph_are_tallied_too(tmp_path):
    graph = random_graph(1, layers=2, width=4)
    result = simulate(graph, make_schedule(graph, 3, "list"), SMALL)
    with TraceWriter(tmp_path / "t.mkt", kind="imported") as writer:
        writer.step(StepInfo(0, -1, 0, result.makespan), result.events)
    trace = Trace.open(tmp_path / "t.mkt")
    assert tally(trace).account(trace.label).totals == account(trace).totals


def shown(snapshot):
    names = ("begin", "end", "ready", "claim", "publish", "task", "last_wait", "op", "fill", "flags", "last_chunk")
    first, last = int(snapshot.lane_ptr[0, 0]), int(snapshot.lane_ptr[-1, -1])
    counts = (snapshot.dropped_records, snapshot.dropped_steps, snapshot.skipped, snapshot.lost_records, snapshot.lost_steps)
    columns = {name: getattr(snapshot, name)[first:last].tolist() for name in names}
    return columns, snapshot.steps.tolist(), counts, snapshot.tokens, snapshot.requests, snapshot.closed, snapshot.complete


def test_a_store_that_cannot_keep_a_trace_does_not_read_what_it_would_drop(tmp_path, monkeypatch):
    graph = random_graph(3, layers=6, width=40, shuffle=False)
    schedule = make_schedule(graph, 4, "list")
    result = simulate(graph, schedule, SMALL)
    with TraceWriter(tmp_path / "t.mkt", kind="measured", segment_records=5 * len(graph)) as writer:
        writer.graph(0, graph, schedule)
        for number in range(60):
            events = result.events.copy()
            events["step"], events["flags"][:3] = number, KIND_SKIPPED
            events["begin"][4:] += number
            writer.step(StepInfo(number, 0, number * 10**6, number * 10**6 + result.makespan, lost=int(number == 5)), events)
            writer.token(TokenInfo(0, number, 1, "a", number, number * 10**6))
        writer.lost(3, 2)
    trace = Trace.open(tmp_path / "t.mkt")
    for size in (1 << 17, 1 << 18, 1 << 28):
        expected = LiveStore(trace.label, trace.kind, size)
        trace.replay(expected)
        expected.close(trace.complete)
        read = []
        plain = Trace.walk
        monkeypatch.setattr(
            Trace, "walk", lambda self, *a, of=plain, log=read: (log.append(x[0].step) or x for x in of(self, *a))
        )
        found = store_of_trace(trace, size).snapshot()
        monkeypatch.undo()
        assert shown(found) == shown(expected.snapshot())
        assert (min(read) > 20) == (size < 1 << 28) and len(found.tokens) == 60
