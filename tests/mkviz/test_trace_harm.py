"""Traces whose writer, disk or file comes to harm: what was whole stays readable, and the rest is named."""

import errno
import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
from made_traces import all_events, make_graph, make_recording, make_schedule, record

from mkviz.errors import MkvizError
from mkviz.protocols import Row, StepInfo, TokenInfo
from mkviz.record import EVENT
from mkviz.schedule import Schedule
from mkviz.trace import Trace, TraceWriter
from mkviz.trace import writer as writer_module

ROOT = Path(__file__).parents[2]


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
from test_trace_harm import write_many
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
from test_trace_harm import write_many
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
