"""Accounting: steps worked by hand, records that are wrong, and a thousand random schedules painted ns by ns."""

import numpy as np
import pytest
from step_makers import simulated_steps, step_of

from mkviz.accounting import KINDS, account, charge
from mkviz.errors import MkvizError
from mkviz.graph import GraphBuilder
from mkviz.protocols import StepInfo
from mkviz.record import EVENT, FLAG_BYTES_LAST, FLAG_SATURATED, KIND_PHASES, KIND_SKIPPED
from mkviz.schedule import Schedule
from mkviz.store import LiveStore
from mkviz.trace import Trace, TraceWriter


def graph(tasks=4):
    """Task 0 of op load and layer 0, all others of op add and layer 1, which wait for it."""
    builder = GraphBuilder("hand", ["load", "add"])
    done = builder.counter("done")
    builder.task("load", layer=0, bytes=600, raises=[done])
    for _ in range(tasks - 1):
        builder.task("add", layer=1, waits=[done])
    return builder.build()


class Steps:
    """A source of hand-made steps."""

    label = "made by hand"

    def __init__(self, *steps, tasks=4, sms=2):
        self.store = LiveStore("made by hand")
        self.store.graph(0, graph(tasks), Schedule.from_lists([[] for _ in range(sms)], range(tasks)))
        for number, step in enumerate(steps):
            events = step.events.copy()
            events["step"] = number
            self.store.step(StepInfo(number, 0, step.begin, step.end, lost=step.lost), events)

    def snapshot(self):
        return self.store.snapshot()


HAND = [  # task, SM, ready, begin, end, publish, flags
    (0, 0, 0, 0, 40),
    (1, 0, 50, 60, 100, 100, FLAG_BYTES_LAST),  # idle from 40: 10 wait, 10 starved
    (2, 1, 10, 15, 30),  # 10 wait, 5 overhead
    (3, 1, 20, 30, 35),  # ready while the lane was busy: slack, no wait
]


def hand(base=0, rows=HAND, end=110, tasks=4, **info):
    return step_of(graph(tasks), 2, rows, 0, end, base, **info)


def kinds(totals):
    return tuple(totals[kind] for kind in KINDS)


@pytest.mark.parametrize("base", [0, -(2**63) + 1, 2**63 - 200])
def test_a_step_worked_by_hand(base):
    a = account(Steps(hand(base)))
    assert (a.label, a.steps, a.sm_time) == ("made by hand", 1, 220)
    assert kinds(a.totals) == (40 + 40 + 15 + 5, 10 + 10, 10, 5, 10 + 75, 0)
    assert set(a.faults.values()) == {0} and a.notes == []
    by_op = a.frame("op", "layer").set_index("op")
    assert list(by_op.index) == ["", "add", "load"]
    assert list(by_op["layer"]) == [-1, 1, 0]
    assert kinds(by_op.loc["load"]) == (40, 0, 0, 0, 0, 0)
    assert kinds(by_op.loc["add"]) == (60, 20, 10, 5, 0, 0)
    assert kinds(by_op.loc[""]) == (0, 0, 0, 0, 85, 0)
    by_sm = a.frame("step", "sm")
    assert by_sm[["step", "sm", "sm_time"]].values.tolist() == [[0, 0, 110], [0, 1, 110]]
    assert list(by_sm["tail"]) == [10, 75]
    assert a.frame()["sm_time"].tolist() == [220]
    with pytest.raises(MkvizError, match="'role'"):
        a.frame("role")


def test_what_other_roles_had_in_hand_counts_once():
    """Loader from claim to begin: 0 to 20 and 10 to 60, of which 10 to 20 are the first one's; feeder 15 to 20 and 18 to 60;
    storer 40 to 85 and 80 to 90.  Level 2 knows that the second one's bytes were there 5 ns after its begin."""
    builder = GraphBuilder("roles", ["load", "add"])
    for op in ("load", "load", "add"):
        builder.task(op, bytes=100 * (op == "load"))
    rows = [(0, 0, 15, 20, 40, 85, 0, 0), (1, 0, 18, 60, 80, 90, 0, 10), (2, 1, 0, 0, 30, 30, 0, 0)]
    step = step_of(builder.build(), 2, rows, 0, 100)
    store = LiveStore("made by hand")
    store.graph(0, step.graph, Schedule.from_lists([[], []], range(3)))
    store.step(StepInfo(0, 0, 0, 100), step.events)
    phase = step.events[1:2].copy()
    phase["flags"], phase["publish"], phase["step"] = KIND_PHASES, 65, 1
    events = step.events.copy()
    events["step"] = 1
    store.step(StepInfo(1, 0, 0, 100), np.concatenate([events, phase]))
    roles = account(store, 0).roles("op").set_index("op")
    assert roles.loc["load"].tolist() == [20 + 40, 5 + 40, 20 + 20, 45 + 5] and roles.loc["add"].tolist() == [0, 0, 30, 0]
    assert account(store, 1).roles()["loader"].tolist() == [20 + 45]
    assert account(store).roles("sm")[["sm", "math"]].values.tolist() == [[0, 80], [1, 60]]
    assert "not how long they worked" in account(store).roles().attrs["notes"][-1]
    data = account(store, 0).plot("role").renderers[0].data_source.data
    assert data["role"].tolist() == ["loader", "feeder", "math", "storer"]
    assert data["a task in hand"].tolist() == [60, 45, 70, 50] and data["none"].tolist() == [140, 155, 130, 150]


def test_bars_of_sm_time(monkeypatch):
    plot = account(Steps(hand())).plot()
    assert plot.title.text == "made by hand · SM time by kind" and plot.yaxis.axis_label == "SM time (ns)"
    data = plot.renderers[0].data_source.data
    assert list(data["op"]) == ["add", "(no task)", "load"] and data["compute"].tolist() == [60, 0, 40]
    by_layer = account(Steps(hand())).plot("layer", dark=True)
    assert by_layer.renderers[0].data_source.data["layer"].tolist() == [-1, 0, 1]
    monkeypatch.setattr("mkviz.plots.MOST_PLACES", 20)
    many = account(Steps(*(hand(base=200 * k) for k in range(30)))).plot("step")
    data = many.renderers[0].data_source.data  # two neighbours share a bar
    assert len(data["step"]) == 15 and data["step"][:2].tolist() == [0.5, 2.5] and data["compute"][0] == 100
    assert many.xaxis.axis_label == "step (mean of 2 neighbours)"


def test_a_step_that_lost_a_record_is_unknown_as_a_whole():
    a = account(Steps(hand(), hand(base=200, lost=3)))
    assert a.frame("step")[["sm_time", "unknown"]].values.tolist() == [[220, 0], [220, 220]]
    assert a.faults["lost"] == 3
    assert kinds(account(Steps(hand(), hand(base=200, lost=3)), steps=0).totals)[-1] == 0


@pytest.mark.parametrize(
    ("wrong", "fault"),
    [
        ((1, 0, 50, 60, 0), "broken"),  # no end
        ((1, 0, 50, 60, 55), "broken"),  # ends before it begins
        ((1, 0, 50, 60, 70, 70, FLAG_SATURATED), "broken"),
        ((0, 0, 50, 60, 70), "repeated"),
    ],
)
def test_what_a_lane_did_around_a_record_that_is_wrong_is_unknown(wrong, fault):
    rows = [(0, 0, 0, 0, 40), wrong, (2, 0, 85, 90, 95), (3, 1, 0, 0, 10)]
    a = account(Steps(hand(rows=rows)))
    assert kinds(a.totals) == (40 + 5 + 10, 0, 0, 0, 15 + 100, 90 - 40)
    assert a.faults.pop(fault) == 1 and set(a.faults.values()) == {0}
    a = account(Steps(hand(rows=[rows[0], wrong])))  # the last of its lane: nobody knows when its tail began
    assert kinds(a.totals) == (40, 0, 0, 0, 110, 70)


def test_a_wrong_record_that_begins_its_lane():
    a = account(Steps(hand(rows=[(0, 1, 0, 5, 1), (1, 1, 20, 30, 40)])))
    assert kinds(a.totals) == (10, 0, 0, 0, 110 + 70, 30)


def test_time_that_two_tasks_of_a_lane_share_counts_once():
    a = account(Steps(hand(rows=[(0, 0, 0, 0, 50), (1, 0, 0, 10, 20), (2, 0, 0, 40, 60), (3, 0, 65, 70, 110)])))
    assert kinds(a.totals) == (60 + 40, 5, 0, 5, 110, 0)
    assert a.faults["overlapping"] == 2


def test_records_beyond_their_step_are_cut_and_told(tmp_path):
    """The host's end widens to the records' (as in the store); a begin before the step's does too."""
    step = hand(rows=[(0, 0, -5, -5, 40), (1, 1, 100, 100, 150)])
    assert (step.begin, step.end) == (-5, 150)
    assert kinds(account(Steps(step)).totals) == (45 + 50, 105, 0, 0, 110, 0)


def test_strays_make_a_step_unknown(tmp_path):
    good = hand().events
    bad = good.copy()
    bad["task"][0], bad["sm"][1] = 77, 9
    with TraceWriter(tmp_path / "t.mkt", kind="imported") as writer:
        writer.graph(0, graph(), Schedule.from_lists([[0, 1], [2, 3]]))
        writer.step(StepInfo(0, 0, 0, 110), good)
        bad["step"] = 1
        writer.step(StepInfo(1, 0, 0, 110), bad)
    a = account(tmp_path / "t.mkt")
    assert a.frame("step")["unknown"].tolist() == [0, 220]
    assert (a.faults["lost"], a.faults["strays"]) == (2, 2)


def test_one_record_and_none():
    assert kinds(account(Steps(hand(rows=[(0, 1, 0, 0, 110)]))).totals) == (110, 0, 0, 0, 110, 0)
    assert kinds(account(Steps(hand(rows=[]))).totals) == (0, 0, 0, 0, 220, 0)
    none = account(Steps())
    assert (none.steps, none.sm_time, none.notes) == (0, 0, ["no steps"])
    assert kinds(none.totals) == (0, 0, 0, 0, 0, 0)
    assert none.frame()["sm_time"].tolist() == [0] and len(none.frame("op")) == 0


def test_a_time_that_cannot_be_is_refused_by_the_step():
    with pytest.raises(MkvizError, match=f"step 0 lasts {2**63 - 1} ns"):
        account(Steps(hand(rows=[(0, 0, 0, 0, 2**63 - 1)])))
    third = 2**62 // 3
    with pytest.raises(MkvizError, match="3 steps of"):
        account(Steps(*[hand(rows=[(0, 0, 0, 0, 2 * third)])] * 3))
    with pytest.raises(MkvizError, match="step 7 is not there"):
        account(Steps(hand()), steps=[0, 7])


def test_a_trace_without_graph_says_what_it_lacks(tmp_path):
    events = np.zeros(2, EVENT)
    events["task"], events["sm"], events["last_wait"], events["step"] = [9, 8], [0, 2], 0xFFF, 4
    events["begin"], events["end"] = 10, [20, 30]
    with TraceWriter(tmp_path / "t.mkt", kind="imported") as writer:
        writer.step(StepInfo(4, -1, 10, 30), events)
    a = account(Trace.open(tmp_path / "t.mkt"))
    assert (a.ops, kinds(a.totals)) == (("(no graph)",), (30, 0, 0, 0, 30, 0))
    assert [note.split(":")[0] for note in a.notes] == ["no dependencies", "no bytes"]


def test_a_part_of_a_trace_cannot_be_accounted_for(tmp_path):
    with TraceWriter(tmp_path / "t.mkt", kind="measured", device="cpu") as writer:
        writer.graph(0, graph(), Schedule.from_lists([[0, 1], [2, 3]]))
        skipped = hand().events[:1].copy()
        skipped["flags"] = KIND_SKIPPED
        writer.step(StepInfo(0, 0, 0, 110), np.concatenate([hand().events, skipped]))
    trace = Trace.open(tmp_path / "t.mkt")
    assert kinds(account(trace).totals) == (100, 20, 10, 5, 85, 0)
    with pytest.raises(MkvizError, match="cut by sms"):
        account(trace.slice(tmp_path / "part.mkt", sms=0))


def painted(step, sms):
    """ns by (SM, op, kind): each lane is an array that tasks paint, last ones first, earlier ones over what is before them."""
    out = {}
    for sm in range(sms):
        lane = np.full(step.makespan, KINDS.index("tail") * 16 + 15)
        mine = sorted(step.events[step.events["sm"] == sm].tolist(), key=lambda e: (e[3], e[4]))
        for _, _, ready, begin, end, _, task, *_, flags, _ in mine[::-1]:
            ready, begin, end = (max(0, time - step.begin) for time in (ready, begin, end))
            late = KINDS.index("starved" if flags & FLAG_BYTES_LAST else "overhead") * 16
            op = int(step.graph.op[task])
            lane[:begin] = late + op
            lane[: min(ready, begin)] = KINDS.index("wait") * 16 + op
            lane[begin:end] = KINDS.index("compute") * 16 + op
        for code, ns in zip(*np.unique(lane, return_counts=True), strict=True):
            out[sm, code % 16, KINDS[code // 16]] = int(ns)
    return out


def test_a_thousand_random_schedules_are_accounted_for_to_the_nanosecond():
    seen = set()
    for seed, step, sms in simulated_steps(1000):
        expected, found, sums = painted(step, sms), {}, np.zeros(sms, np.int64)
        for kind, ns in charge(step).items():
            assert ns.min() >= 0
            np.add.at(sums, step.events["sm"], ns)
            for sm, task, n in zip(step.events["sm"].tolist(), step.events["task"].tolist(), ns.tolist(), strict=True):
                key = sm, int(step.graph.op[task]), kind
                found[key] = found.get(key, 0) + n
        for sm, ns in enumerate((step.makespan - step.lanes.left).tolist()):
            found[sm, 15, "tail"] = ns
        assert {key: ns for key, ns in found.items() if ns} == expected, seed
        assert (sums + step.makespan - step.lanes.left == step.makespan).all(), seed
        seen |= {kind for _, _, kind in expected}
    assert seen == {"compute", "wait", "starved", "overhead", "tail"}
