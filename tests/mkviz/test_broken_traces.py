"""Whatever is wrong with records, every analysis counts it, adds up, and says what it left out: live, from a trace, flown."""

from dataclasses import replace

import numpy as np
import pytest
from test_accounting import HAND, graph

from mkviz.accounting import account
from mkviz.blame import blame
from mkviz.busy import occupancy
from mkviz.diff import diff
from mkviz.errors import MkvizError
from mkviz.faults import FAULTS
from mkviz.flight import FlightRecorder
from mkviz.hops import hops
from mkviz.many_steps import many_steps
from mkviz.protocols import StepInfo
from mkviz.record import EVENT, FLAG_SATURATED
from mkviz.rules import check_rules
from mkviz.schedule import Schedule
from mkviz.store import LiveStore
from mkviz.summary import summarise
from mkviz.trace import Trace, TraceWriter
from mkviz.wave_tails import PARTS, tails

BASE = 1000


def events(rows, base=BASE):
    out = np.zeros(len(rows), EVENT)
    for e, (task, sm, ready, begin, end, *more) in zip(out, rows, strict=True):
        e["task"], e["sm"], e["flags"] = task, sm, more[1] if len(more) > 1 else 0
        e["claim"], e["ready"], e["begin"], e["end"], e["publish"] = base, base + ready, base + begin, base + end, base + end
    return out


def case(rows=HAND, base=BASE, lost=0, **faults):
    return [(events(rows, base), StepInfo(0, 0, base, base + 110, lost=lost))], {"lost": lost} | faults


def missing_end():
    steps, faults = case([*HAND[:3], (3, 1, 32, 35, 60)], broken=1)
    steps[0][0]["end"][3] = 0
    return steps, faults


CASES = {
    "sound": case(),
    "missing end": missing_end(),
    "negative duration": case([*HAND[:3], (3, 1, 60, 60, 50)], broken=1),
    "saturated": case([*HAND[:3], (3, 1, 60, 60, 70, 70, FLAG_SATURATED)], broken=1),
    "duplicate id": case([*HAND, (2, 0, 100, 100, 105)], repeated=1),
    "overlapping": case([*HAND[:3], (3, 1, 20, 28, 35)], overlapping=1),
    "no such SM": case([*HAND[:3], (3, 9, 60, 60, 70)], lost=0, strays=1) ,
    "no such task": case([*HAND[:3], (77, 1, 60, 60, 70)], strays=1),
    "lost": case(lost=2),
    "one record": case(HAND[:1]),
    "no record": case([]),
    "no step": ([], {}),
    "near 2^63": case(base=2**63 - 200),
    "near -2^63": case(base=-(2**63) + 1),
}  # fmt: skip
for name in ("no such SM", "no such task"):
    CASES[name][1]["lost"] = 1


def tell(sink, steps, teams=1):
    sink.graph(0, replace(graph(), meta={"teams": teams}), Schedule.from_lists([[0, 1], [2, 3]]))
    for records, info in steps:
        sink.step(info, records)
    return sink


@pytest.fixture(scope="module", params=[*CASES, "two teams"])
def broken(request, tmp_path_factory):
    """(trace, live store, expected faults)."""
    teams = 2 if request.param == "two teams" else 1  # whose SMs compute two tasks at once: nothing is wrong with that
    steps, faults = (CASES["overlapping"][0], {}) if teams == 2 else CASES[request.param]
    path = tmp_path_factory.mktemp("broken") / "t.mkt"
    with TraceWriter(path, kind="measured", device="cpu") as writer:
        tell(writer, steps, teams)
    return Trace.open(path), tell(LiveStore(), steps, teams), dict.fromkeys(FAULTS, 0) | faults


def totals(name, source):
    """(what an analysis adds up to, what that must be, its faults, its notes, a plot)."""
    a = account(source)
    if name == "accounting":
        return sum(a.totals.values()), a.sm_time, a.faults, a.notes, a.plot()
    if name == "occupancy":
        o = occupancy(source)
        assert o.frame()["ns"].sum() == o.busy.sum() and o.rate()["bytes"].sum() == pytest.approx(o.read)
        return o.busy.sum(), a.totals["compute"], o.faults, o.notes, o.plot()
    if name == "hops":
        h = hops(source)
        return h.frame()["exposed"].sum(), a.frame("op").set_index("op")["wait"].get("add", 0), h.faults, h.notes, h.plot()
    if name == "tails":
        t = tails(source)
        parts = sum(int(t.waves[part].sum()) for part in ("compute", *PARTS, "unknown"))
        return parts, t.frame()["area"].sum(), t.faults, t.notes, t.plot()
    if name == "blame":
        b = blame(source, 0)
        return sum(b.totals.values()), b.makespan, b.faults, b.notes, b.plot()
    if name == "diff":
        d = diff(source, source)
        both = {fault: count // 2 for fault, count in d.faults.items()}
        return d.waterfall()["change"].sum(), 0, both, d.notes, d.plot()
    found = many_steps(source)
    return len(found.frame()), a.steps, found.faults, found.notes, found.plot()


@pytest.mark.parametrize("name", ["accounting", "occupancy", "hops", "tails", "blame", "diff", "many steps"])
def test_every_analysis(broken, name):
    trace, store, faults = broken
    for source in (trace, store):
        expected, told_lost = dict(faults), faults["lost"]
        if source is store:
            expected["strays"] = 0  # the store counts them as lost, in its total
        else:
            told_lost -= faults["strays"]  # as the table of steps does not know of them
        if name == "many steps":  # it reads the table of steps, and records of outliers only
            expected = dict.fromkeys(FAULTS, 0) | {"lost": told_lost}
        if (name == "diff" and (told_lost or not len(trace.steps))) or (name == "blame" and not len(trace.steps)):
            with pytest.raises(MkvizError, match=r"no step to compare|step 0 is not there"):
                totals(name, source)
            continue
        total, must, told, notes, plot = totals(name, source)
        assert total == must
        assert told == expected
        assert plot.title.text.startswith(source.label)
        assert ("no steps" in notes) == (not len(trace.steps))
        assert any("lost" in note for note in notes) == (expected["lost"] > 0 and name != "diff")


def test_summary_rules_and_recorder(broken):
    trace, _, faults = broken
    s, a = summarise(trace), account(trace)
    assert s.shares == a.totals and sum(s.shares.values()) == s.sm_time and s.faults == a.faults
    assert s.to_text() and (not any(s.faults.values()) or "faults   records: " in s.to_text())
    verdicts = check_rules(trace, {"max-broken": "0", "max-repeated": "0"})
    assert [v.value for v in verdicts] == [faults["broken"], faults["repeated"]]
    recorder = FlightRecorder("measured (cpu)")
    trace.replay(recorder)
    found = recorder.many_steps()
    assert len(found.times) == len(trace.steps) and found.times["lost"].sum() == faults["lost"]
    assert len(recorder.store().snapshot().steps) == (len(trace.steps) if not faults["lost"] else 0)


@pytest.mark.parametrize("analysis", [account, occupancy, hops, tails, lambda s: blame(s, 0), lambda s: diff(s, s), summarise])
def test_a_time_that_cannot_be_is_refused_by_the_step(tmp_path, analysis):
    with TraceWriter(tmp_path / "t.mkt", kind="imported") as writer:
        records = events(HAND)
        records["end"][3] = 2**63 - 1
        records["begin"][0] = records["claim"][0] = -5
        tell(writer, [(records, StepInfo(0, 0, BASE, BASE + 110))])
    with pytest.raises(MkvizError, match="step 0 lasts 9223372036854775812 ns"):
        analysis(Trace.open(tmp_path / "t.mkt"))
    recorder = FlightRecorder("imported", "imported")
    Trace.open(tmp_path / "t.mkt").replay(recorder)
    assert recorder.many_steps().times["ns"].tolist() == [2**63 - 1]


def test_a_source_without_dependencies_or_bytes_says_so(tmp_path):
    records = events([(9, 0, 0, 0, 40), (8, 2, 10, 10, 90)])
    records["last_wait"] = 0xFFF
    with TraceWriter(tmp_path / "t.mkt", kind="imported", device="a kernel of somebody else") as writer:
        writer.step(StepInfo(0, -1, BASE, BASE + 110), records)
    trace = Trace.open(tmp_path / "t.mkt")
    both = {"no dependencies", "no bytes"}
    told = {"accounting": both, "blame": both, "occupancy": {"no bytes"}, "hops": {"no dependencies"}, "diff": {"a", "b"},
            "tails": set(), "many steps": set()}  # fmt: skip
    for name, words in told.items():
        total, must, _, notes, plot = totals(name, trace)
        assert total == must and {note.split(":")[0] for note in notes} == words, name
        assert plot.title.text.startswith("imported on a kernel of somebody else")
