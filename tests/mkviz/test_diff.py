"""Diff: two sources worked by hand, and random pairs whose changes must add up to the nanosecond."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from random_graphs import random_graph
from step_makers import SMALL, step_of

from mkviz.cli import main
from mkviz.diff import diff
from mkviz.errors import MkvizError
from mkviz.graph import GraphBuilder
from mkviz.policies import make_schedule
from mkviz.protocols import Row, StepInfo
from mkviz.schedule import Schedule
from mkviz.simulator import simulate
from mkviz.store import LiveStore
from mkviz.trace import TraceWriter


def graph(tile=0, more=0):
    builder = GraphBuilder("hand", ["load", "add"])
    done = builder.counter("done")
    builder.task("load", layer=0, raises=[done])
    for i in range(1 + more):
        builder.task("add", layer=1, tile=tile + i, waits=[done])
    return builder.build()


def tell(sink, times, of=None, rows=1, lost=()):
    """Steps on two SMs: SM 0 loads for 40 ns, waits until the first time and adds for the second one, the third one later."""
    of = of or graph()
    sink.graph(0, of, Schedule.from_lists([list(range(len(of))), []]))
    for number, (wait, work, *late) in enumerate(times):
        begin = wait + sum(late)
        step = step_of(of, 2, [(0, 0, 0, 0, 40), (1, 0, wait, begin, begin + work)], 0, begin + work, 1000 * number)
        events = step.events.copy()
        events["step"] = number
        info = StepInfo(number, 0, step.begin, step.end, [Row(r, 0, 0, 1, "decode") for r in range(rows)])
        sink.step(replace(info, lost=int(number in lost)), events)
    return sink


def store(times, label="made by hand", **more):
    return tell(LiveStore(label), times, **more)


A, B = [(40, 60)] * 3, [(55, 70)] * 3  # in b the counter is seen 15 ns late, and add takes 10 ns longer


def test_two_sources_worked_by_hand():
    found = diff(store(A, "before"), store(B, "after"))
    assert (found.a.label, found.a.ns, found.b.ns, found.change, found.certain) == ("before", 100, 125, 25, False)
    assert (found.a.group, found.a.steps.tolist(), found.a.sms, found.notes) == ("hand · 1 row", [0, 1, 2], 2, [])
    assert found.waterfall().values.tolist() == [
        ["hop", "add", 0, 15, 15],
        ["compute", "add", 60, 70, 10],
        ["compute", "load", 40, 40, 0],
    ]
    # SM 1 has no task: all of it is tail
    assert found.accounting().values.tolist() == [
        ["tail", "", 100, 125, 25, 12.5],
        ["wait", "add", 0, 15, 15, 7.5],
        ["compute", "add", 60, 70, 10, 5],
        ["compute", "load", 40, 40, 0, 0],
    ]
    columns = ["op", "layer", "task_a", "task_b", "compute_a", "compute_b", "idle_a", "idle_b", "change"]
    assert found.by_task and found.frame()[columns].values.tolist() == [
        ["add", 1, 1, 1, 60, 70, 0, 15, 25],
        ["load", 0, 0, 0, 40, 40, 0, 0, 0],
    ]
    plot = found.plot()
    data = plot.renderers[0].data_source.data
    assert plot.title.text == "before → after · change of the median step"
    assert data["name"] == ["a", "hop add", "compute add", "b"] and data["right"].tolist() == [100, 115, 125, 125]
    assert data["words"] == ["100 ns", "+15 ns", "+10 ns", "125 ns"]
    assert found.plot("accounting").renderers[0].data_source.data["right"].tolist() == [100, 112.5, 120, 125, 125]
    with pytest.raises(MkvizError, match="path or accounting"):
        found.plot("task")


def test_the_median_step_and_what_is_certain():
    found = diff(store([(40, 60), (40, 70), (40, 90)]), store([(40, 65), (40, 75), (40, 80)]))
    assert (found.a.step, found.a.ns, found.a.low, found.a.high) == (1, 110, 100, 130)
    assert (found.b.step, found.b.ns, found.certain) == (1, 115, False)
    few = diff(store(A), store(B))
    many = diff(store(A * 2), store(B * 2))
    near = diff(store(A * 2), store([*A, *B]))
    assert [(d.enough, d.certain) for d in (few, many, near)] == [(False, False), (True, True), (True, False)]
    row = found.frame().iloc[0]  # medians over the steps of each task, not of the median step alone
    assert (row["compute_a"], row["compute_b"]) == (70, 75)


def test_idle_time_of_a_task_is_whatever_it_began_late_for():
    row = diff(store(A), store([(45, 60, 10)])).frame().iloc[0]
    assert (row["op"], row["idle_a"], row["idle_b"], row["change"]) == ("add", 0, 5 + 10, 15)


def test_groups_of_steps_of_one_source():
    one = store(A + B)
    found = diff(one, one, range(3), range(3, 6))
    assert found.change == 25 and found.b.steps.tolist() == [3, 4, 5]
    with pytest.raises(MkvizError, match="step 9 is not there"):
        diff(one, one, 0, 9)
    with pytest.raises(MkvizError, match="made by hand: no step to compare"):
        diff(one, store(A, lost=(0, 1, 2)))
    assert diff(one, store([*A, (500, 500)], lost=(3,))).b.steps.tolist() == [0, 1, 2]


def test_steps_of_as_many_rows_are_compared():
    both = LiveStore("both")
    tell(both, A, rows=1)
    step = step_of(graph(), 2, [(0, 0, 0, 0, 40), (1, 0, 40, 40, 400)], 0, 400, 9000)
    both.step(StepInfo(9, 0, 9000, 9400, [Row(0, 0, 0, 1, "decode"), Row(1, 1, 0, 1, "decode")]), step.events)
    found = diff(both, store(B, rows=2))
    assert found.a.steps.tolist() == [9] and found.a.group == "hand · 2 rows"
    assert diff(both, store(B, rows=5)).notes == [
        "the sources have no steps with as many rows: of each those are compared of which it has most"
    ]
    assert diff(both, both, [0, 1, 9], [0, 1]).notes == ["a: its steps are of several graphs or shapes"]


def test_graphs_that_differ_are_compared_by_op_and_layer():
    found = diff(store(A), store(B, of=graph(more=1)))
    assert not found.by_task
    assert found.notes == [
        "the graphs differ: 2 of 2 and 3 tasks have the same op, layer, slot and tile; "
        "compared by op and layer, as sums of their tasks' medians"
    ]
    assert found.frame()[["op", "layer", "tasks_a", "tasks_b", "compute_a", "compute_b", "change"]].values.tolist() == [
        ["add", 1, 1, 2, 60, 70, 25],
        ["load", 0, 1, 1, 40, 40, 0],
    ]
    other = GraphBuilder("free", ["load", "add"])  # the same tasks, which wait for nothing
    other.task("load", layer=0)
    other.task("add", layer=1, tile=0)
    found = diff(store(A), store(B, of=other.build()))
    assert found.by_task and found.notes[-1].endswith("tile; aligned by these") and "b: no dependencies" in found.notes[0]


def test_random_pairs_add_up_to_the_nanosecond():
    causes = set()
    for seed in range(16):
        of, sms = random_graph(seed, layers=3, width=4), 1 + seed % 5
        sides = []
        for policy, hop in (("round_robin", 39), ("list", 139)):
            schedule, out = make_schedule(of, sms, policy), LiveStore(policy)
            result = simulate(of, schedule, replace(SMALL, hop_ns=hop))
            out.graph(0, of, schedule)
            out.step(StepInfo(0, 0, 0, result.makespan), result.events)
            sides.append(out)
        found = diff(*sides)
        assert found.waterfall()["change"].sum() == found.change, seed
        assert found.accounting()["change"].sum() == found.change * sms, seed
        assert found.accounting()["per_sm"].sum() == pytest.approx(found.change), seed
        both = found.frame()
        spent = found.accounting()[found.accounting()["kind"].isin(["compute", "wait", "starved", "overhead"])]
        assert both["change"].sum() == spent["change"].sum(), seed  # one step a side: tasks are that step's
        causes |= set(found.waterfall()["cause"])
    assert {"compute", "hop", "overhead"} <= causes


@pytest.fixture
def traces(tmp_path):
    for name, times in (("a", A), ("b", B)):
        with TraceWriter(tmp_path / f"{name}.mkt", kind="measured", device="cpu") as writer:
            tell(writer, times)
    return str(tmp_path / "a.mkt"), str(tmp_path / "b.mkt")


def test_the_command(traces, capsys):
    assert main(["diff", *traces]) == 0
    out = capsys.readouterr().out
    assert "change of the median step: +25 ns (+25.00 %); of fewer than 6 steps nobody can tell it from chance\n" in out
    assert "   3 steps, median 100 ns (step 0), all of them 100 ns to 100 ns\n" in out
    assert "  hop add                        0 ns      15 ns      +15 ns\n" in out
    assert "  all                          100 ns     125 ns      +25 ns\n" in out
    assert "  add · layer 1 · tile 0        60 ns      85 ns      +25 ns" in out
    assert main(["diff", "--json", *traces]) == 0
    out = json.loads(capsys.readouterr().out)
    assert (out["change"], out["a"]["ns"], out["waterfall"][0]["op"], out["tasks"][0]["change"]) == (25, 100, "add", 25)
    with TraceWriter(Path(traces[0]).with_name("c.mkt"), kind="measured", device="cpu") as writer:
        tell(writer, [(40, 60)], of=graph(tile=5, more=1))  # its second add left no record
    assert main(["diff", "--json", str(writer.path), str(writer.path)]) == 0
    strict = json.loads(capsys.readouterr().out, parse_constant=lambda name: pytest.fail(name))  # no NaN
    assert [task["compute_b"] for task in strict["tasks"]] == [60, None, 40]
    assert main(["diff", traces[0], "--steps-a", "0", "--steps-b", "1-2"]) == 0
    assert "change of the median step: +0 ns (+0.00 %)" in capsys.readouterr().out
    assert main(["diff", traces[0]]) == 2
    assert "a second trace, or --steps-a and --steps-b" in capsys.readouterr().err
    assert main(["diff", *traces, "--steps-b", "7-9"]) == 2
    assert "holds no step from 7 to 9; steps that it has: from 0 to 2" in capsys.readouterr().err
