"""Traces: what is written is read; parts of it are what numpy says they are."""

import shutil
import zipfile
from dataclasses import asdict

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from made_traces import all_events, assert_same_arrays, make_recording, record

from mkviz.clocks import Clocks
from mkviz.errors import MkvizError
from mkviz.graph import GraphBuilder
from mkviz.protocols import ClockSink, Row, StepInfo
from mkviz.record import EVENT
from mkviz.schedule import Schedule
from mkviz.trace import Trace, TraceWriter

relaxed = settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


# identity


@given(seed=st.integers(0, 10**6), segment=st.integers(1, 60))
@relaxed
def test_what_is_written_is_read(tmp_path, seed, segment):
    recording = make_recording(seed)
    graphs, told, tokens, requests = recording
    record(tmp_path / "t.mkt", recording, segment_records=segment)
    trace = Trace.open(tmp_path / "t.mkt")
    assert trace.complete
    assert trace.graphs.keys() == graphs.keys()
    for graph_id, (graph, schedule) in graphs.items():
        read_graph, read_schedule = trace.graphs[graph_id]
        assert_same_arrays(graph, read_graph)
        assert_same_arrays(schedule, read_schedule)
        assert (read_graph.name, read_graph.ops, read_graph.counters, read_graph.meta, read_graph.hash) == (
            graph.name, graph.ops, graph.counters, graph.meta, graph.hash,
        )  # fmt: skip
        assert (read_schedule.sms, read_schedule.policy) == (3, "random")
    assert trace.infos() == [info for info, _ in told]
    assert np.array_equal(trace.events(), all_events(recording))
    assert trace.tokens.to_pylist() == [asdict(t) for t in tokens]
    assert trace.requests.to_pylist() == [asdict(r) for r in requests]


def test_tables_are_plain_parquet_with_readable_columns(tmp_path):
    graph = GraphBuilder("tiny", ["load", "add"])
    done = graph.counter("done")
    graph.task("load", layer=3, bytes=4096, raises=[done])
    graph.task("add", tile=2, flops=10, waits=[done])
    recording = {0: (graph.build(), Schedule.from_lists([[0], [1]]))}, [], [], []
    record(tmp_path / "t.mkt", recording)
    assert Trace.open(tmp_path / "t.mkt").tasks.to_pylist() == [
        {"graph": 0, "task": 0, "op": "load", "layer": 3, "slot": -1, "tile": -1, "bytes": 4096, "flops": 0,
         "wait_counter": [], "wait_need": [], "raise_counter": [0], "sm": 0, "order": 0, "load_order": 0},
        {"graph": 0, "task": 1, "op": "add", "layer": -1, "slot": -1, "tile": 2, "bytes": 0, "flops": 10,
         "wait_counter": [0], "wait_need": [1], "raise_counter": [], "sm": 1, "order": 1, "load_order": 1},
    ]  # fmt: skip
    assert Trace.open(tmp_path / "t.mkt").counters.to_pylist() == [{"graph": 0, "counter": 0, "name": "done", "arrivals": 1}]


def test_an_empty_trace_has_every_table(tmp_path):
    TraceWriter(tmp_path / "t.mkt", kind="measured").close()
    trace = Trace.open(tmp_path / "t.mkt")
    assert len(trace.events()) == trace.sms == len(trace.graphs) == len(trace.infos()) == 0
    for name in ("tasks", "counters", "records", "steps", "rows", "requests", "routes", "tokens", "clocks"):
        assert getattr(trace, name).num_rows == 0


def test_clocks_and_their_error_are_kept(tmp_path):
    writer, clocks = TraceWriter(tmp_path / "t.mkt", kind="measured", device="NVIDIA H200"), Clocks(1.98)
    assert isinstance(writer, ClockSink)
    writer.clocks(clocks)
    for k in range(10):
        clocks.add(4, 32 * 10**9 * k, 57 * 10**9 * k, step=k)
    writer.flush()
    clocks.add(4, 32 * 10**10, 57 * 10**10, step=99)
    writer.close()
    trace = Trace.open(tmp_path / "t.mkt")
    assert trace.clocks.num_rows == 11
    assert trace.clocks.to_pylist()[-1] == {"sm": 4, "step": 99, "ns": 32 * 10**10, "cycles": 57 * 10**10}
    assert trace.meta["clock"]["error_ns"] == pytest.approx(clocks.tick_ns, abs=1)


# selections


def overlaps(events, window):
    return (events["claim"] < window[1]) & (events["publish"] >= window[0])


@given(data=st.data(), seed=st.integers(0, 10**6))
@relaxed
def test_events_of_a_selection_are_what_numpy_filters(tmp_path, data, seed):
    recording = make_recording(seed)
    record(tmp_path / "t.mkt", recording, segment_records=10)
    trace, events = Trace.open(tmp_path / "t.mkt"), all_events(recording)
    mask = np.ones(len(events), bool)
    selected = {}
    if data.draw(st.booleans()):
        selected["steps"] = data.draw(st.one_of(st.integers(0, 45), st.builds(range, st.integers(0, 20), st.integers(0, 45)),
                                                st.lists(st.integers(0, 45))))  # fmt: skip
        mask &= np.isin(events["step"], np.array(selected["steps"]).reshape(-1))
    if data.draw(st.booleans()):
        base = 1_700_000_000 * 10**9
        selected["time"] = tuple(sorted(base + data.draw(st.integers(-500, 45_000)) for _ in range(2)))
        mask &= overlaps(events, selected["time"])
    if data.draw(st.booleans()):
        selected["sms"] = data.draw(st.one_of(st.integers(0, 3), st.sets(st.integers(0, 3))))
        mask &= np.isin(events["sm"], np.array(list(np.atleast_1d(list(selected["sms"])
                        if isinstance(selected["sms"], set) else selected["sms"]))))  # fmt: skip
    if data.draw(st.booleans()):
        selected["ops"] = data.draw(st.sampled_from(["first", "zwölf", ["first", "zwölf"], ["never used"]]))
        graphs = {info.step: recording[0][info.graph][0] for info, _ in recording[1]}
        names = [graphs[e["step"]].ops[graphs[e["step"]].op[e["task"]]] for e in events]
        mask &= np.isin(names, np.atleast_1d(selected["ops"]))
    assert np.array_equal(trace.events(**selected), events[mask])


@pytest.mark.parametrize(
    ("window", "held"),
    [((0, 100), 0), ((0, 101), 1), ((100, 101), 1), ((120, 130), 1), ((500, 900), 1), ((501, 900), 0), ((110, 110), 1)],
)
def test_an_event_lies_in_a_window_that_any_part_of_it_touches(tmp_path, window, held):
    event = np.zeros(1, EVENT)
    for name, ns in zip(("claim", "ready", "begin", "end", "publish"), (100, 200, 300, 400, 500), strict=True):
        event[name] = ns
    record(tmp_path / "t.mkt", ({}, [(StepInfo(0, -1, 200, 500), event)], [], []))
    assert len(Trace.open(tmp_path / "t.mkt").events(time=window)) == held


def test_only_row_groups_that_can_hold_an_event_are_read(tmp_path):
    recording = make_recording(3, steps=100)
    record(tmp_path / "t.mkt", recording)  # a flush, so a segment, every seven steps
    trace, read = Trace.open(tmp_path / "t.mkt"), []
    original = Trace._read
    trace._read = lambda file, *args, **kw: read.append(file) or original(trace, file, *args, **kw)
    step = recording[1][50][0].step
    assert (trace.events(steps=step)["step"] == step).all()
    assert len(read) == 1
    read.clear()
    assert len(trace.events(sms=99)) == 0
    assert read == []


@given(seed=st.integers(0, 10**6), first=st.integers(0, 30), length=st.integers(0, 30))
@relaxed
def test_a_slice_is_a_trace_of_its_own(tmp_path, seed, first, length):
    recording = make_recording(seed)
    record(tmp_path / "t.mkt", recording, complete=False)
    part = Trace.open(tmp_path / "t.mkt").slice(tmp_path / "s.mkt", steps=range(first, first + length), overwrite=True)
    kept = [(info, events) for info, events in recording[1] if first <= info.step < first + length]
    assert part.infos() == [info for info, _ in kept]
    assert np.array_equal(part.events(), np.concatenate([np.zeros(0, EVENT), *(events for _, events in kept)]))
    assert [t["step"] for t in part.tokens.to_pylist()] == [info.step for info, _ in kept]
    assert part.graphs.keys() == recording[0].keys()
    assert part.lost == (sum(info.lost for info, _ in kept), 0)
    assert (part.label, part.complete) == ("recorded (cpu)", False)
    assert part.meta["recording"] == Trace.open(tmp_path / "t.mkt").meta["recording"]


def test_a_slice_by_sm_and_op_keeps_steps_and_thins_records(tmp_path):
    recording = make_recording(5)
    record(tmp_path / "t.mkt", recording)
    trace = Trace.open(tmp_path / "t.mkt")
    part = trace.slice(tmp_path / "s.mkt", sms=[0, 1], ops="first")
    assert part.infos() == trace.infos()
    assert np.array_equal(part.events(), trace.events(sms=[0, 1], ops="first"))
    assert part.meta["slice"] == {"lost": [0, 0], "steps": None, "time": None, "sms": "0..1", "ops": "first"}


def test_a_slice_by_time_keeps_the_steps_it_touches(tmp_path):
    recording = make_recording(6)
    record(tmp_path / "t.mkt", recording)
    trace, (middle, _) = Trace.open(tmp_path / "t.mkt"), recording[1][10]
    window = (middle.begin, middle.end)
    part = trace.slice(tmp_path / "s.mkt", time=window)
    assert np.array_equal(part.events(), trace.events(time=window))
    assert middle.step in [info.step for info in part.infos()]
    assert len(part.infos()) < len(trace.infos())


@pytest.mark.parametrize(
    ("selected", "message"),
    [
        ({"ops": "matmul"}, "op 'matmul' is not in trace .*; one of first, never used, zwölf"),
        ({"steps": 1.5}, "steps 1.5"),
        ({"steps": "3"}, "steps '3'; a number, a range or a sequence"),
        ({"sms": ["a"]}, r"sms \['a'\]"),
        ({"time": (5, 3)}, "ends before it begins"),
        ({"time": 5}, r"time 5; a pair \(from, to\) in ns"),
    ],
)
def test_bad_selections_name_the_argument(tmp_path, selected, message):
    record(tmp_path / "t.mkt", make_recording(1))
    trace = Trace.open(tmp_path / "t.mkt")
    with pytest.raises(MkvizError, match=message):
        trace.events(**selected)
    with pytest.raises(MkvizError, match=message):
        trace.slice(tmp_path / "s.mkt", **selected)
    assert not (tmp_path / "s.mkt").exists()


# merging


@given(seed=st.integers(0, 10**6), cut=st.integers(0, 40), overlap=st.integers(0, 10))
@relaxed
def test_slices_merge_into_the_whole(tmp_path, seed, cut, overlap):
    recording = make_recording(seed)
    record(tmp_path / "t.mkt", recording)
    trace = Trace.open(tmp_path / "t.mkt")
    parts = [
        trace.slice(tmp_path / "a.mkt", steps=range(cut, 60), overwrite=True),
        trace.slice(tmp_path / "b.mkt", steps=range(0, cut + overlap), sms=[0, 2], overwrite=True),
        trace.slice(tmp_path / "c.mkt", steps=range(0, cut + overlap), sms=1, overwrite=True),
    ]
    whole = Trace.merge([parts[0], *(p.path for p in parts[1:])], tmp_path / "m.mkt", overwrite=True)
    assert [asdict(i) | {"graph": 0} for i in whole.infos()] == [asdict(i) | {"graph": 0} for i in trace.infos()]
    for a, b in zip(whole.infos(), trace.infos(), strict=True):
        assert whole.graphs[a.graph][0].hash == trace.graphs[b.graph][0].hash
    ordered = sorted(trace.events().tolist())
    assert sorted(whole.events().tolist()) == ordered
    assert sorted(t["index"] for t in whole.tokens.to_pylist()) == list(range(20))
    assert whole.requests.to_pylist() == trace.requests.to_pylist()
    assert whole.meta["recording"] == trace.meta["recording"]


def test_other_recordings_are_renumbered_and_share_equal_graphs(tmp_path):
    recording = make_recording(8)
    record(tmp_path / "a.mkt", recording)
    record(tmp_path / "b.mkt", recording, complete=False)
    a = Trace.open(tmp_path / "a.mkt")
    both = Trace.merge([a, tmp_path / "b.mkt"], tmp_path / "m.mkt")
    steps = [info.step for info, _ in recording[1]]
    shift = steps[-1] + 1 - steps[0]
    assert [i.step for i in both.infos()] == steps + [s + shift for s in steps]
    assert len(both.graphs) == len(a.graphs)
    assert both.meta["rows"]["records"] == 2 * len(a.events())
    assert {r["request"] for r in both.requests.to_pylist()} == {0, 1}
    assert both.infos()[-1].rows == [Row(r.row, r.request + 1, r.position, r.token, r.kind) for r in a.infos()[-1].rows]
    assert not both.complete
    assert both.meta["recording"] not in {m["recording"] for m in both.meta["merged"]}


def test_merging_what_has_no_common_label_is_refused(tmp_path):
    record(tmp_path / "a.mkt", make_recording(1))
    record(tmp_path / "b.mkt", make_recording(1), kind="simulated")
    record(tmp_path / "c.mkt", make_recording(1), device="NVIDIA H200")
    with pytest.raises(MkvizError, match="kinds differ \\(measured, simulated\\)"):
        Trace.merge([tmp_path / "a.mkt", tmp_path / "b.mkt"], tmp_path / "m.mkt")
    with pytest.raises(MkvizError, match="devices differ"):
        Trace.merge([tmp_path / "a.mkt", tmp_path / "c.mkt"], tmp_path / "m.mkt")
    with pytest.raises(MkvizError, match="no traces"):
        Trace.merge([], tmp_path / "m.mkt")
    with pytest.raises(MkvizError, match="is what is being read"):
        Trace.merge([tmp_path / "a.mkt"], tmp_path / "a.mkt", overwrite=True)
    assert not (tmp_path / "m.mkt").exists()


# zipped


def test_a_zip_opens_as_it_is(tmp_path):
    recording = make_recording(9)
    record(tmp_path / "t.mkt", recording)
    packed = Trace.open(tmp_path / "t.mkt").zip()
    assert packed == tmp_path / "t.mkt.zip"
    shutil.rmtree(tmp_path / "t.mkt")
    trace = Trace.open(packed)
    assert np.array_equal(trace.events(), all_events(recording))
    assert trace.infos() == [info for info, _ in recording[1]]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["t.mkt.zip"]  # nothing was unpacked
    with pytest.raises(MkvizError, match="exists"):
        trace.zip(packed)


@pytest.mark.parametrize("prefix", ["", "shared/by mail/t.mkt/"])
def test_a_zip_that_something_else_packed_opens_too(tmp_path, prefix):
    recording = make_recording(9)
    record(tmp_path / "t.mkt", recording)
    with zipfile.ZipFile(tmp_path / "other.zip", "w", zipfile.ZIP_DEFLATED) as zipped:
        for file in (tmp_path / "t.mkt").iterdir():
            zipped.write(file, prefix + file.name)
    assert np.array_equal(Trace.open(tmp_path / "other.zip").events(), all_events(recording))


# labels


@pytest.mark.parametrize(
    ("kind", "device", "label", "kind_read", "label_read"),
    [
        ("measured", "cpu", "", "recorded", "recorded (cpu)"),
        ("measured", "NVIDIA H200", "", "recorded", "recorded on NVIDIA H200"),
        ("simulated", "NVIDIA H200", "", "simulated", "simulated on NVIDIA H200"),
        ("simulated", "", "lesson 3", "simulated", "simulated: lesson 3"),
        ("imported", "NVIDIA H200", "imported from FlashInfer", "imported", "imported from FlashInfer"),
        ("measured", "cpu", "measured (cpu), bf16", "recorded", "recorded (cpu), bf16"),
    ],
)
def test_a_label_says_what_it_is(tmp_path, kind, device, label, kind_read, label_read):
    TraceWriter(tmp_path / "t.mkt", kind=kind, device=device, label=label).close()
    trace = Trace.open(tmp_path / "t.mkt")
    assert (trace.kind, trace.label) == (kind_read, label_read)
    assert trace.slice(tmp_path / "s.mkt").label == label_read
