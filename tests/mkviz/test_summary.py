"""The summary's figures: a trace worked out by hand, and random ones painted nanosecond by nanosecond."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import mkviz
from mkviz.accounting import account
from mkviz.cli import main
from mkviz.graph import GraphBuilder
from mkviz.protocols import Row, StepInfo, TokenInfo
from mkviz.record import EVENT, FLAG_BYTES_LAST, KIND_SKIPPED
from mkviz.schedule import Schedule
from mkviz.summary import StepTimes, summarise
from mkviz.trace import Trace, TraceWriter


def event(step, task, sm, ready, begin, end, flags=0):
    out = np.zeros(1, EVENT)
    out["step"], out["task"], out["sm"], out["flags"] = step, task, sm, flags
    out["claim"], out["ready"], out["begin"], out["end"], out["publish"] = ready, ready, begin, end, end
    return out


@pytest.fixture
def by_hand(tmp_path):
    """Two steps of two SMs, and a third step that has lost a record.

    step 0, 1000..1100    SM 0: load 1000..1040, add ready 1050, begins 1060 (bytes came last), ends 1100
                          SM 1: load ready 1010, begins 1015, ends 1030; the slot of its second add is skipped
    step 1, 1200..1260    SM 0: load 1200..1260             SM 1: nothing
    """
    builder = GraphBuilder("hand", ["load", "add"])
    for op, size in (("load", 600), ("load", 400), ("add", 0), ("add", 0)):
        builder.task(op, bytes=size)
    graph, schedule = builder.build(), Schedule.from_lists([[0, 2], [1, 3]])
    with TraceWriter(tmp_path / "hand.mkt", kind="measured", device="cpu", command="made by hand") as writer:
        writer.graph(0, graph, schedule)
        writer.step(
            StepInfo(0, 0, 1000, 1100, [Row(0, 0, 0, 1, "prefill"), Row(1, 0, 1, 1, "prefill")]),
            np.concatenate([
                event(0, 0, 0, 1000, 1000, 1040), event(0, 2, 0, 1050, 1060, 1100, FLAG_BYTES_LAST),
                event(0, 1, 1, 1010, 1015, 1030), event(0, 3, 1, 1031, 1031, 1031, KIND_SKIPPED),
            ]),
        )  # fmt: skip
        writer.step(StepInfo(1, 0, 1200, 1260, [Row(0, 0, 2, 1, "decode")]), event(1, 0, 0, 1200, 1200, 1260))
        writer.step(StepInfo(2, 0, 1300, 1350, [Row(0, 0, 3, 1, "decode")], lost=1), event(2, 0, 0, 1300, 1300, 1350))
        writer.lost(7, 2)
        for index, time in enumerate((1100, 1260, 1350)):
            writer.token(TokenInfo(0, index, 5, "a", index, time))
    return tmp_path / "hand.mkt"


def test_figures_of_a_trace_worked_out_by_hand(by_hand):
    s = summarise(Trace.open(by_hand))
    assert (s.label, s.complete, s.command, s.sms) == ("recorded (cpu)", True, "made by hand", 2)
    assert (s.records, s.lost_records, s.lost_steps) == (6, 7, 2)
    assert s.steps == StepTimes(2, 60, 100, 100)  # the step with a lost record has no time that can be trusted
    assert s.decode == StepTimes(1, 60, 60, 60)
    assert s.prefill == StepTimes(1, 100, 100, 100)
    assert s.tokens == 3
    assert s.tok_s == pytest.approx(3 / 350e-9)
    assert s.request_tok_s == pytest.approx(2 / 250e-9)
    assert s.sm_time == 2 * (100 + 60 + 50)
    assert s.shares == {
        "compute": 40 + 40 + 15 + 60,
        "wait": 10 + 10,  # SM 0 from 1040 to 1050, SM 1 from 1000 to 1010
        "starved": 10,  # SM 0 from 1050 to 1060
        "overhead": 5,  # SM 1 from 1010 to 1015
        "tail": 70 + 60,  # SM 1 after 1030, and all of step 1
        "unknown": 100,
    }
    assert list(s.ops) == ["load", "add"]
    load, add = s.ops["load"], s.ops["add"]
    assert (load.tasks, load.skipped, load.compute, load.wait, load.starved, load.overhead) == (3, 0, 115, 10, 0, 5)
    assert (load.bytes, load.active) == (1600, 40 + 60)  # SM 1's load lay within SM 0's
    assert load.gb_s == pytest.approx(16.0)
    assert (add.tasks, add.skipped, add.compute, add.wait, add.starved, add.overhead) == (1, 1, 40, 10, 10, 0)
    assert add.gb_s is None


def paint(infos, events, sms):
    """The definition, ns by ns: each lane of each step is an array that tasks paint, later ones over earlier idle only."""
    totals = dict.fromkeys(("compute", "wait", "starved", "overhead", "tail"), 0)
    for info in infos:
        for sm in range(sms):
            lane = np.full(info.end - info.begin, "tail", object)
            mine = [e for e in events if e["step"] == info.step and e["sm"] == sm and e["flags"] & 0xF == 0]
            for e in sorted(mine, key=lambda e: (e["begin"], e["end"]))[::-1]:
                cause = "starved" if e["flags"] & FLAG_BYTES_LAST else "overhead"
                for ns in range(info.begin, min(e["end"], info.end)):
                    if ns >= e["begin"]:
                        lane[ns - info.begin] = "compute"
                    elif ns >= e["ready"]:
                        lane[ns - info.begin] = cause
                    else:
                        lane[ns - info.begin] = "wait"
            for name in totals:
                totals[name] += int((lane == name).sum())
    return totals


@given(seed=st.integers(0, 10**6))
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_nanosecond_is_counted_once(tmp_path, seed):
    rng = np.random.default_rng(seed)
    sms = int(rng.integers(1, 4))
    builder = GraphBuilder("random", ["op"])
    for _ in range(12):
        builder.task("op")
    infos, parts = [], []
    for step in range(int(rng.integers(1, 6))):
        begin, mine, free = 1000 * step, [], np.full(sms, 1000 * step)
        for task in range(int(rng.integers(0, 13))):
            sm = int(rng.integers(0, sms))
            start = int(free[sm] + rng.integers(0, 20))
            end = int(start + rng.integers(0, 30))
            ready = int(start - rng.integers(0, 40))  # may lie before the lane was free: a wait that was hidden
            flags = int(rng.choice([0, FLAG_BYTES_LAST, KIND_SKIPPED], p=[0.5, 0.4, 0.1]))
            mine.append(event(step, task, sm, max(begin, ready), start, end, flags))
            free[sm] = end
        infos.append(StepInfo(step, 0, begin, int(free.max())))
        parts.append(np.concatenate([np.zeros(0, EVENT), *mine]))
    with TraceWriter(tmp_path / "t.mkt", kind="measured", overwrite=True, segment_records=7) as writer:
        writer.graph(0, builder.build(), Schedule.from_lists([[] for _ in range(sms)], range(12)))
        for info, events in zip(infos, parts, strict=True):
            writer.step(info, events)
    s = summarise(Trace.open(tmp_path / "t.mkt"))
    assert s.shares == {**paint(infos, np.concatenate(parts), sms), "unknown": 0}
    assert sum(s.shares.values()) == s.sm_time


def test_a_part_of_the_sms_has_no_idle_time_to_tell(by_hand, tmp_path):
    trace = Trace.open(by_hand)
    s = summarise(trace.slice(tmp_path / "part.mkt", sms=0))
    assert s.shares is None
    assert (s.ops["load"].tasks, s.ops["load"].wait) == (2, None)
    both = Trace.merge([tmp_path / "part.mkt", trace.slice(tmp_path / "rest.mkt", sms=1)], tmp_path / "both.mkt")
    assert summarise(both).shares is None  # nobody checked that the parts make a whole
    assert summarise(trace.slice(tmp_path / "steps.mkt", steps=[0, 1])).shares["unknown"] == 0


def test_records_without_a_graph_are_still_summed(tmp_path):
    with TraceWriter(tmp_path / "t.mkt", kind="imported") as writer:
        writer.step(StepInfo(4, -1, 10, 30), np.concatenate([event(4, 9, 0, 10, 10, 20), event(4, 8, 2, 10, 10, 30)]))
    s = summarise(Trace.open(tmp_path / "t.mkt"))
    assert s.ops["(no graph)"].tasks == 2
    assert (s.sms, s.sm_time, s.shares["compute"], s.shares["tail"]) == (3, 60, 30, 30)
    assert (s.decode, s.prefill) == (None, None)


def test_an_empty_trace_is_summed_too(tmp_path, capsys):
    TraceWriter(tmp_path / "t.mkt", kind="measured", device="cpu").close(complete=False)
    s = summarise(Trace.open(tmp_path / "t.mkt"))
    assert (s.steps, s.tok_s, s.request_tok_s, s.sm_time, s.ops) == (None, None, None, 0, {})
    assert "incomplete" in s.to_text()


def test_the_command_prints_a_table(by_hand, capsys):
    assert main(["summary", str(by_hand)]) == 0
    out = capsys.readouterr().out
    assert "recorded (cpu) · complete · 6 records (7 records and 2 steps lost)" in out
    assert re.search(r"steps decode +1 +p50 60 ns", out)
    assert re.search(r"SM time  2 SMs, 420 ns in all: compute 36.9%, wait 4.8%, starved 2.4%, overhead 1.2%, tail 31.0%", out)
    assert re.search(r"^load +3 +115 ns +74.2% +1.6 kB +16.0 +10 ns +0 ns +5 ns$", out, re.M)
    assert re.search(r"^add +1 +40 ns +25.8% +0 B +10 ns +10 ns +0 ns$", out, re.M)


def test_the_command_prints_the_blame_path_of_the_median_step(by_hand, tmp_path, capsys):
    assert main(["summary", str(by_hand)]) == 0
    out = capsys.readouterr().out
    assert "\nblame    step 1, of median time, 60 ns: compute 100.0%\n" in out
    assert "\n         most of it: compute load 100.0%\n" in out
    assert "\n         bounds: longest chain of dependencies 60 ns\n" in out
    assert "\n         no dependencies: " in out
    assert main(["summary", "--json", str(by_hand)]) == 0
    blame = json.loads(capsys.readouterr().out)["blame"]
    assert (blame["step"], blame["makespan"], blame["critical"], blame["bytes"], blame["floor"]) == (1, 60, 60, 600, None)
    assert blame["waterfall"] == [{"cause": "compute", "op": "load", "segments": 1, "ns": 60}]
    Trace.open(by_hand).slice(tmp_path / "part.mkt", sms=0)
    assert main(["summary", str(tmp_path / "part.mkt")]) == 0
    assert "blame" not in capsys.readouterr().out


def test_a_recording_of_an_h200_has_a_bandwidth_floor():
    path = Path(mkviz.__file__).parent / "recordings" / "h200-north-mini-code-6-layers-8K.mkt.zip"
    s = summarise(Trace.open(path))
    assert s.blame.floor == -(-s.blame.bytes * 10**9 // 4_550_000_000_000) < s.blame.makespan
    assert sum(s.blame.totals.values()) == s.blame.makespan == s.steps.p50
    assert s.blame.totals["unknown"] == 0 and s.blame.critical < s.blame.makespan
    assert account(path).totals == s.shares  # two programs, one definition


def test_summary_and_accounting_agree_where_records_are_lost(by_hand):
    assert account(by_hand).totals == summarise(Trace.open(by_hand)).shares


def test_the_command_prints_json(by_hand, capsys):
    assert main(["summary", "--json", str(by_hand)]) == 0
    out = json.loads(capsys.readouterr().out)
    assert out["ops"]["load"]["gb_s"] == 16.0
    assert out["shares"]["wait"] == 20


def test_the_command_names_what_is_no_trace(tmp_path, capsys):
    assert main(["summary", str(tmp_path / "gone.mkt")]) == 2
    assert "gone.mkt does not exist; check the path" in capsys.readouterr().err
