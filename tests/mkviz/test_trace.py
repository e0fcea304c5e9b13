"""Traces: what is written is read, whatever happens to the writer; parts of it are what numpy says they are."""

import errno
import json
import os
import shutil
import subprocess
import sys
import zipfile
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mkviz.clocks import Clocks
from mkviz.errors import MkvizError
from mkviz.graph import Graph, GraphBuilder
from mkviz.protocols import ClockSink, RequestInfo, Row, StepInfo, TokenInfo
from mkviz.record import EVENT
from mkviz.schedule import Schedule
from mkviz.trace import Trace, TraceWriter
from mkviz.trace import writer as writer_module

ROOT = Path(__file__).parents[2]
relaxed = settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def make_graph(rng, tasks=12, name="g"):
    """A graph without any order in it: the trace must not need one."""
    counters = int(rng.integers(1, 6))
    waits = [rng.integers(0, counters, rng.integers(0, 4)) for _ in range(tasks)]
    raises = [rng.integers(0, counters, rng.integers(0, 3)) for _ in range(tasks)]

    def ptr(lists):
        return np.concatenate([[0], np.cumsum([len(x) for x in lists])]).astype(np.int32)

    wait_counter = np.concatenate([*waits, []]).astype(np.int32)
    return Graph(
        name, ("first", "never used", "zwölf"), rng.choice([0, 2], tasks).astype(np.uint8),
        rng.integers(-1, 40, tasks).astype(np.int16), rng.integers(-1, 8, tasks).astype(np.int16),
        rng.integers(-1, 10**6, tasks).astype(np.int32), rng.integers(0, 2**40, tasks), rng.integers(0, 2**40, tasks),
        ptr(waits), wait_counter, rng.integers(1, 2**32, len(wait_counter)).astype(np.uint32), ptr(raises),
        np.concatenate([*raises, []]).astype(np.int32), tuple(f"c{i}" for i in range(counters)), {"model": "m", "rows": [1, 2]},
    )  # fmt: skip


def make_schedule(rng, tasks=12, sms=3):
    """Every task once, in a list or in the queue; an SM may have none."""
    order = rng.permutation(tasks).tolist()
    cuts = sorted(rng.integers(0, tasks + 1, sms).tolist())
    lists = [order[a:b] for a, b in zip([0, *cuts[:-1]], cuts, strict=True)]
    schedule = Schedule.from_lists(lists, order[cuts[-1] :], "random")
    return Schedule(sms, schedule.order_ptr, schedule.order, schedule.queue, rng.permutation(schedule.order), "random")


def make_events(rng, step, tasks=12, sms=3):
    events = np.zeros(int(rng.integers(0, tasks + 1)), EVENT)
    events["step"], events["task"] = step, rng.permutation(tasks)[: len(events)]
    events["sm"] = np.sort(rng.integers(0, sms, len(events)))
    start = 1_700_000_000 * 10**9 + step * 1000
    for name in ("claim", "ready", "begin", "end", "publish"):
        start = events[name] = start + rng.integers(0, 300, len(events))
    for name, high in (("last_wait", 2**12), ("role", 2**8), ("fill", 2**4), ("flags", 2**8)):
        events[name] = rng.integers(0, high, len(events))
    return events[np.lexsort((events["begin"], events["sm"]))]


def make_recording(seed, steps=20):
    """(graphs, [(info, events)], tokens, requests) with random contents."""
    rng = np.random.default_rng(seed)
    graphs = {i * 7: (make_graph(rng, name=f"g{i}"), make_schedule(rng)) for i in range(int(rng.integers(1, 4)))}
    told, number = [], 0
    for _ in range(steps):
        number += int(rng.integers(1, 3))
        events = make_events(rng, number)
        begin, end = (int(events["ready"].min()), int(events["publish"].max())) if len(events) else (0, 0)
        rows = [
            Row(r, int(rng.integers(0, 9)), 5 + r, int(rng.integers(0, 10**5)), "decode") for r in range(rng.integers(0, 3))
        ]
        routes = [(int(layer), 0, int(rng.integers(0, 128)), 1) for layer in range(rng.integers(0, 3))]
        told.append(
            (StepInfo(number, int(rng.choice(list(graphs))), begin, end, rows, routes, int(rng.integers(0, 3))), events)
        )
    tokens = [TokenInfo(0, i, i * 3, "é\n\0"[i % 3], info.step, 10 * i) for i, (info, _) in enumerate(told)]
    requests = [RequestInfo(0, "queued", 1, 7, 0, "prompt"), RequestInfo(0, "done", 2, 7, 5, "", "stop")]
    return graphs, told, tokens, requests


def record(path, recording, close=True, complete=True, **options):
    graphs, told, tokens, requests = recording
    writer = TraceWriter(path, **{"kind": "measured", "device": "cpu", "overwrite": True, **options})
    for graph_id, (graph, schedule) in graphs.items():
        writer.graph(graph_id, graph, schedule)
    for request in requests:
        writer.request(request)
    for k, (info, events) in enumerate(told):
        writer.step(info, events)
        if k % 7 == 6:
            writer.flush()
    for token in tokens:
        writer.token(token)
    if close:
        writer.close(complete)
    return writer


def all_events(recording):
    return np.concatenate([events for _, events in recording[1]])


def assert_same_arrays(a, b):
    for name, value in vars(a).items():
        if isinstance(value, np.ndarray):
            assert getattr(b, name).dtype == value.dtype and np.array_equal(getattr(b, name), value), name


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


# writers that come to harm

MANY = 8000  # steps that a writer has before it


def plain_step(step):
    """A step that costs nothing to make, so that a killed writer spends its time writing."""
    events = np.zeros(5, EVENT)
    events["step"], events["task"], events["begin"] = step, range(5), 10**9 + 100 * step
    return StepInfo(step, 0, 100 * step, 100 * step + 99, [Row(0, 0, step, 1, "decode")], lost=step % 2), events


def write_many(path):
    writer = TraceWriter(path, kind="measured", device="cpu", segment_records=500, segment_seconds=0.01)
    writer.graph(0, make_graph(np.random.default_rng(1)), make_schedule(np.random.default_rng(1)))
    print("go", flush=True)
    for step in range(MANY):
        writer.step(*plain_step(step))
        writer.token(TokenInfo(0, step, 1, "a", step, 0))
    writer.close()
    print(writer.error, flush=True)


# forks writers and kills each at a moment of its own: "killed <path>" or "ended <path>"
KILLER = """
import os, random, signal, sys, time
sys.path.insert(0, sys.argv[2])
from test_trace import write_many
from mkviz.trace.schema import table_of_rows
table_of_rows("clocks", [])  # pyarrow imports what it needs for this once, here, instead of in every child
rng = random.Random(20)
for k in range(20):
    path = f"{sys.argv[1]}/{k}.mkt"
    if (pid := os.fork()) == 0:
        os.close(1)
        os.open(f"{path}.out", os.O_WRONLY | os.O_CREAT)
        write_many(path)
        os._exit(0)
    while not os.path.exists(f"{path}.out") or not os.path.getsize(f"{path}.out"):
        time.sleep(0.001)
    time.sleep(rng.uniform(0, 0.4))
    os.kill(pid, signal.SIGKILL)
    print("ended" if os.waitpid(pid, 0)[1] == 0 else "killed", path, flush=True)
"""


def python(script, *args):
    command = [sys.executable, "-c", script, *map(str, args)]
    return subprocess.run(command, cwd=ROOT, text=True, capture_output=True, env={**os.environ, "PYTHONPATH": str(ROOT)})


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_killed_at_any_moment_it_leaves_a_readable_trace(tmp_path):
    done = python(KILLER, tmp_path, Path(__file__).parent)
    assert done.returncode == 0, done.stderr
    lengths = []
    for fate, path in (line.split() for line in done.stdout.splitlines()):
        trace = Trace.open(path)
        assert trace.complete == (fate == "ended")
        n = trace.meta["rows"].get("steps", 0)
        lengths.append(n)
        assert trace.infos() == [plain_step(step)[0] for step in range(n)]
        events = trace.events()
        assert np.array_equal(events, np.concatenate([np.zeros(0, EVENT), *(plain_step(step)[1] for step in range(n))]))
        assert len(trace.graphs) == 1 or n == 0
    assert len(lengths) == 20
    assert len({n for n in lengths if 0 < n < MANY}) > 5  # the moments did differ


@pytest.fixture
def full_disk(monkeypatch):
    """From the nth segment on, the disk is full."""

    def after(segments):
        left = [segments]
        write = writer_module._write

        def limited(path, data):
            if path.suffix == ".parquet":
                left[0] -= 1
                if left[0] < 0:
                    part = path.with_name(f".{path.name}.part")
                    part.write_bytes(bytes(data)[:10])
                    part.unlink()
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            write(path, data)

        monkeypatch.setattr(writer_module, "_write", limited)

    return after


def test_a_full_disk_ends_the_trace_and_nothing_else(tmp_path, full_disk):
    full_disk(7)
    recording = make_recording(11, steps=60)
    writer = record(tmp_path / "t.mkt", recording)  # goes through to the end without raising
    assert "No space left on device" in writer.error and str(tmp_path / "t.mkt") in writer.error
    trace = Trace.open(tmp_path / "t.mkt")
    assert not trace.complete
    assert trace.meta["error"] == writer.error
    kept = trace.infos()
    assert f"{len(kept)} steps are kept" in writer.error
    assert kept == [info for info, _ in recording[1][: len(kept)]]
    assert np.array_equal(trace.events(), np.concatenate([np.zeros(0, EVENT), *(e for _, e in recording[1][: len(kept)])]))


def test_a_file_size_limit_of_the_system_is_survived_too(tmp_path):
    script = """
import resource, sys
sys.path.insert(0, sys.argv[2])
from test_trace import write_many
resource.setrlimit(resource.RLIMIT_FSIZE, (4000, 4000))
write_many(sys.argv[1])
"""
    done = python(script, tmp_path / "t.mkt", Path(__file__).parent)
    assert done.returncode == 0, done.stderr
    assert "stopped: File too large" in done.stdout
    assert not Trace.open(tmp_path / "t.mkt").complete


def test_after_an_error_nothing_waits(tmp_path, full_disk):
    full_disk(0)
    writer = record(tmp_path / "t.mkt", make_recording(1), close=False, segment_records=1)
    for info, events in make_recording(2, steps=100)[1]:
        writer.step(info, events)
    writer.flush()
    writer.close()
    assert writer.error


def test_unflushed_segments_of_a_killed_writer_are_ignored(tmp_path):
    recording = make_recording(12)
    record(tmp_path / "t.mkt", recording)
    shutil.copy(tmp_path / "t.mkt" / "records-000000.parquet", tmp_path / "t.mkt" / "records-000099.parquet")
    (tmp_path / "t.mkt" / ".steps-000099.parquet.part").write_bytes(b"half")
    assert np.array_equal(Trace.open(tmp_path / "t.mkt").events(), all_events(recording))


def test_a_running_recording_can_be_opened(tmp_path):
    recording = make_recording(13)
    writer = record(tmp_path / "t.mkt", recording, close=False)
    writer.flush()
    trace = Trace.open(tmp_path / "t.mkt")
    assert not trace.complete
    assert np.array_equal(trace.events(), all_events(recording))
    writer.close()
    assert Trace.open(tmp_path / "t.mkt").complete


def test_an_exception_in_the_recording_marks_it_incomplete(tmp_path):
    with pytest.raises(KeyError), TraceWriter(tmp_path / "t.mkt", kind="measured"):
        raise KeyError
    assert not Trace.open(tmp_path / "t.mkt").complete


# names and foreign things


def test_an_existing_path_is_refused_by_name(tmp_path):
    path = tmp_path / "t.mkt"
    record(path, make_recording(1))
    with pytest.raises(MkvizError, match=f"trace {path} exists"):
        TraceWriter(path, kind="measured")
    assert Trace.open(path).complete  # untouched
    TraceWriter(path, kind="measured", overwrite=True).close()
    assert len(Trace.open(path).events()) == 0
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter1").write_text("years of work")
    with pytest.raises(MkvizError, match="thesis is not a trace; only a trace is overwritten"):
        TraceWriter(tmp_path / "thesis", kind="measured", overwrite=True)
    assert (tmp_path / "thesis" / "chapter1").exists()
    with pytest.raises(MkvizError, match=r"nowhere/t.mkt cannot be created: No such file or directory"):
        TraceWriter(tmp_path / "nowhere" / "t.mkt", kind="measured")
    with pytest.raises(MkvizError, match="kind 'live'; one of measured, recorded"):
        TraceWriter(tmp_path / "u.mkt", kind="live")


def test_a_second_graph_with_an_id_is_refused(tmp_path):
    rng = np.random.default_rng(1)
    writer = TraceWriter(tmp_path / "t.mkt", kind="measured")
    graph, schedule = make_graph(rng), make_schedule(rng)
    writer.graph(0, graph, schedule)
    writer.graph(0, graph, schedule)  # the same again is no news
    with pytest.raises(MkvizError, match="a second graph with id 0"):
        writer.graph(0, make_graph(rng), schedule)
    with pytest.raises(MkvizError, match="its schedule holds a task twice"):
        writer.graph(1, graph, Schedule.from_lists([[0, 1], [1]]))
    writer.close()
    assert Trace.open(tmp_path / "t.mkt").tasks.num_rows == len(graph)


def with_meta(path, **changes):
    meta = json.loads((path / "meta.json").read_text())
    (path / "meta.json").write_text(json.dumps({**meta, **changes}))


def damage(path, what):
    match what:
        case "no meta":
            (path / "meta.json").unlink()
        case "broken meta":
            (path / "meta.json").write_text('{"format": "mkviz tra')
        case "foreign meta":
            (path / "meta.json").write_text('{"displayTimeUnit": "ns"}')
        case "list":
            (path / "meta.json").write_text("[]")
        case "newer":
            with_meta(path, schema=2, versions={"mkviz": "9.1"})
        case "zero":
            with_meta(path, schema=0)
        case "missing segment":
            (path / "records-000001.parquet").unlink()
        case "truncated segment":
            file = path / "records-000001.parquet"
            file.write_bytes(file.read_bytes()[:-20])
        case "foreign segment":
            (path / "records-000001.parquet").write_bytes(b"nothing of ours")


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("no meta", "is not a trace: it has no meta.json; give a folder"),
        ("broken meta", r"meta.json cannot be read \("),
        ("foreign meta", "is not a trace: its meta.json says so"),
        ("list", "is not a trace"),
        ("newer", r"has schema 2, this mkviz reads up to 1; upgrade mkviz \(mkviz 9.1 wrote it\)"),
        ("zero", "has schema 0"),
        ("missing segment", "table records has .* rows, meta.json counts .*; a segment is missing"),
        ("truncated segment", r"segment records-000001.parquet is damaged \("),
        ("foreign segment", r"segment records-000001.parquet is damaged \("),
    ],
)
def test_foreign_and_damaged_traces_are_named(tmp_path, what, message):
    path = tmp_path / "t.mkt"
    record(path, make_recording(1))
    damage(path, what)
    with pytest.raises(MkvizError, match=message) as caught:
        Trace.open(path).events()
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_damaged_pages_inside_a_segment_are_named(tmp_path):
    path = tmp_path / "t.mkt"
    record(path, make_recording(1))
    file = path / "records-000000.parquet"
    data = bytearray(file.read_bytes())
    data[4:200] = bytes(196)
    file.write_bytes(data)
    with pytest.raises(MkvizError, match=r"segment records-000000.parquet is damaged"):
        Trace.open(path).events()


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 but no zip", b'[{"ph": "X"}]'])
def test_files_that_are_no_zip_are_named(tmp_path, content):
    (tmp_path / "x.mkt").write_bytes(content)
    with pytest.raises(MkvizError, match=r"x.mkt is not a trace: neither a folder nor a zip file"):
        Trace.open(tmp_path / "x.mkt")


def test_other_things_that_are_no_trace(tmp_path):
    with pytest.raises(MkvizError, match=r"gone.mkt does not exist; check the path"):
        Trace.open(tmp_path / "gone.mkt")
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as zipped:
        zipped.writestr("README", "hello")
    with pytest.raises(MkvizError, match=r"x.zip holds no trace: no meta.json in it"):
        Trace.open(tmp_path / "x.zip")
    record(tmp_path / "t.mkt", make_recording(1))
    with pytest.raises(MkvizError, match="trace table 'kernels'; one of tasks, counters"):
        Trace.open(tmp_path / "t.mkt").table("kernels")
