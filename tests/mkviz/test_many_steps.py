"""Many steps and the flight recorder: steps worked by hand."""

import numpy as np
import pytest
from step_makers import step_of

from mkviz.accounting import account
from mkviz.errors import MkvizError
from mkviz.flight import FlightRecorder
from mkviz.graph import GraphBuilder
from mkviz.many_steps import many_steps
from mkviz.protocols import Row, StepInfo
from mkviz.schedule import Schedule
from mkviz.store import LiveStore
from mkviz.trace import Trace, TraceWriter


def graph(name="hand"):
    builder = GraphBuilder(name, ["load", "add"])
    done = builder.counter("done")
    builder.task("load", raises=[done])
    builder.task("add", waits=[done])
    return builder.build()


def tell(sink, waits, lost=(), rows=1):
    """Steps on two SMs, 1000 ns apart: SM 0 loads for 40 ns, waits until ``waits[k]`` and adds for 60 ns."""
    sink.graph(0, graph(), Schedule.from_lists([[0, 1], []]))
    for number, wait in enumerate(waits):
        base = 1000 * number
        step = step_of(graph(), 2, [(0, 0, 0, 0, 40), (1, 0, wait, wait, wait + 60)], 0, wait + 60, base)
        events = step.events.copy()
        events["step"] = number
        told = [Row(r, 0, number, 1, "decode") for r in range(rows if np.isscalar(rows) else rows[number])]
        sink.step(StepInfo(number, 0, base, base + wait + 60, told, lost=3 if number in lost else 0), events)
    return sink


WAITS = [40 + k % 3 for k in range(21)]  # 100, 101, 102 ns in turn, but
WAITS[7] = 140  # 200 ns


def test_graphs_of_one_name_are_compared_each_with_its_own():
    """Steps of 100 ns, one of 200; and twice as many of a graph of the same name with other bytes, 500 ns, one of 700."""
    store = LiveStore()
    for key, (base, slow, count) in enumerate(((100, 200, 21), (500, 700, 42))):
        b = GraphBuilder("same", ["op"])
        b.task("op", bytes=key)
        store.graph(key, b.build(), Schedule.from_lists([[0]]))
        for i in range(count):
            number, ns = 100 * key + i, slow if i == 7 else base + i % 3
            events = step_of(b.build(), 1, [(0, 0, 0, 0, ns)], 0, ns, 1000 * number).events.copy()
            events["step"] = number
            store.step(StepInfo(number, key, 1000 * number, 1000 * number + ns), events)
    out = many_steps(store).outliers()
    assert {row["step"]: row["over"] for row in out.to_dict("records")} == {7: 99, 107: 199}


def check(found):
    assert found.name((0, 1, 0)) == "hand · 1 row"
    group = found.groups().iloc[0]
    assert group[["steps", "min", "p50", "p90", "p99", "max", "worst", "outliers"]].tolist() == [
        21,
        100,
        101,
        102,
        200,
        200,
        7,
        1,
    ]
    assert group["drift"] == 0 and group["low"] <= 0 <= group["high"] and not group["drifts"]
    row = found.outliers().iloc[0]
    # deviations from 101: 0 six times, 1 fourteen times, 99; their median 1
    assert (row["step"], row["ns"], row["over"]) == (7, 200, 99) and row["z"] == pytest.approx(99 / 1.4826)
    return row


def test_steps_worked_by_hand(tmp_path):
    row = check(many_steps(tell(LiveStore("made by hand"), WAITS)))
    assert row[["typical", "compute", "wait", "starved", "overhead", "tail", "unknown"]].tolist() == [1, 0, 99, 0, 0, 99, 0]
    assert (row["cause"], row["op"]) == ("wait", "add")  # SM 1 has no task at all: what it is longer is tail
    with TraceWriter(tmp_path / "t.mkt", kind="measured", device="cpu") as writer:
        tell(writer, WAITS)
    found = many_steps(tmp_path / "t.mkt")
    check(found)
    assert found.label == "recorded (cpu)" and found.notes == []
    frame = found.frame()
    assert frame["begin"].tolist() == [1000 * k for k in range(21)] and frame["outlier"].tolist() == [k == 7 for k in range(21)]
    plot = found.plot()
    assert plot.title.text == "recorded (cpu) · time of steps · hand · 1 row"
    assert plot.renderers[1].data_source.data["x"].tolist() == [7]


def test_a_drift_that_is_there():
    found = many_steps(tell(LiveStore("made by hand"), [40 + 2 * k for k in range(30)]))
    assert found.groups()[["drift", "low", "high", "drifts"]].values.tolist() == [[2000, 2000, 2000, True]]


def test_only_steps_of_one_shape_are_compared():
    found = many_steps(tell(LiveStore("made by hand"), [40, 41, 42, 500], rows=[1, 1, 1, 9]))
    assert found.groups()[["group", "steps", "p50"]].values.tolist() == [["hand · 1 row", 3, 101], ["hand · 9 rows", 1, 560]]
    assert len(found.outliers()) == 0 and found.frame()["z"].isna().all()
    assert np.isnan(found.groups()["drift"]).all()
    with pytest.raises(MkvizError, match="group 2"):
        found.plot(2)


def test_steps_that_lost_records_are_in_no_figure():
    found = many_steps(tell(LiveStore("made by hand"), WAITS, lost=(7, 8)))
    assert found.notes == ["of 21 steps 2 lost records and are in no figure"] and found.faults["lost"] == 6
    assert found.groups()[["steps", "max"]].values.tolist() == [[19, 102]]
    assert many_steps(tell(LiveStore("made by hand"), WAITS), steps=range(3)).groups()["steps"].tolist() == [3]
    with pytest.raises(MkvizError, match="step 99 is not there"):
        many_steps(tell(LiveStore("made by hand"), WAITS), steps=[2, 99])


def test_the_recorder_keeps_the_slowest_steps_whole(tmp_path):
    recorder = tell(FlightRecorder("measured (cpu)", worst=2), [*WAITS, 90, 35], lost=(22,))
    found = recorder.many_steps()
    assert found.groups()[["steps", "max", "worst"]].values.tolist() == [[22, 200, 7]]
    kept = recorder.store().snapshot().steps["step"].tolist()
    assert len(kept) == 3 and {7, 21} < set(kept)  # and one near the median
    row = found.outliers().iloc[0]
    assert (row["step"], row["cause"], row["op"]) == (7, "wait", "add") and row["typical"] in kept
    assert row["over"] * 2 == sum(row[kind] for kind in ("compute", "wait", "starved", "overhead", "tail", "unknown"))
    trace = recorder.write(tmp_path / "flight.mkt")
    assert trace.label == "recorded (cpu), its slowest steps" and trace.meta["flight"]["steps"] == 23
    assert trace.meta["flight"]["groups"][0]["worst"] == 7
    assert account(trace, steps=7).totals == account(tell(LiveStore("all of them"), WAITS), steps=7).totals
    assert Trace.open(tmp_path / "flight.mkt").complete


def test_the_recorder_stays_within_its_memory():
    recorder = FlightRecorder(worst=50, max_bytes=2000, times=100)
    tell(recorder, [40 + (k * 37) % 1000 for k in range(500)])
    assert 0 < recorder.nbytes <= 2000 and recorder.dropped > 0
    assert recorder.nbytes == sum(group.nbytes for group in recorder._groups.values())
    kept = recorder.store().snapshot().steps
    slowest = sorted(((k * 37) % 1000 for k in range(500)), reverse=True)
    assert (kept["end"] - kept["begin"]).max() == 100 + slowest[0]
    found = recorder.many_steps()
    assert len(found.times) + recorder.forgotten == 500 and len(found.times) <= 100
    assert found.times["step"].max() == 499 and any("older steps are forgotten" in note for note in found.notes)
    for wrong in ({"worst": 0}, {"max_bytes": 0}, {"times": 0}):
        with pytest.raises(MkvizError, match="1 or more"):
            FlightRecorder(**wrong)
    with pytest.raises(MkvizError, match="graph 0 is unknown"):
        FlightRecorder().step(StepInfo(0, 0, 0, 1), kept[:0])
