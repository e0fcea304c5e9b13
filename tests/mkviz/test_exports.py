"""Files that leave mkviz: the two-lanes step worked by hand, read back with independent readers."""

import base64
import csv
import io
import json
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import mkviz
from mkviz.dashboard.recordings import recordings
from mkviz.errors import MkvizError
from mkviz.exports import document, excerpt_of, render, saved
from mkviz.exports.columns import pack
from mkviz.graph import GraphBuilder
from mkviz.protocols import StepInfo
from mkviz.record import EVENT, NO_WAIT
from mkviz.schedule import Schedule
from mkviz.store import LiveStore
from mkviz.trace import Trace, TraceWriter

ROOT = Path(__file__).parents[2]


def tell(sink):
    """Steps 7 and 8, 1100 ns apart.  SM 0: qkv 0..400.  SM 1: qkv 0..300, waits for both qkv until 420, attention 450..900.
    Each step ends at 1000."""
    builder = GraphBuilder("two", ("qkv", "attention"))
    done = builder.counter("both </script> done")
    builder.task("qkv", layer=3, tile=0, raises=[done])
    builder.task("qkv", layer=3, tile=1, raises=[done])
    builder.task("attention", layer=3, bytes=4096, waits=[done])
    sink.graph(0, builder.build(), Schedule.from_lists([[0], [1, 2]]))
    rows = [(0, 0, 0, 0, 400, 410, NO_WAIT), (1, 1, 0, 0, 300, 310, NO_WAIT), (2, 1, 420, 450, 900, 910, 0)]
    for number, start in ((7, 5000), (8, 6100)):
        events = np.zeros(3, EVENT)
        for event, (task, sm, ready, begin, end, publish, last) in zip(events, rows, strict=True):
            event["task"], event["sm"], event["last_wait"], event["step"] = task, sm, last, number
            event["claim"] = event["ready"] = ready + start
            event["begin"], event["end"], event["publish"] = begin + start, end + start, publish + start
        sink.step(StepInfo(number, 0, start, start + 1000), events)


@pytest.fixture
def trace(tmp_path):
    with TraceWriter(tmp_path / "two.mkt", kind="measured", device="cpu") as writer:
        tell(writer)
    return Trace.open(tmp_path / "two.mkt")


@pytest.fixture
def source():
    store = LiveStore("simulated", "simulated")
    tell(store)
    store.close()
    return store


def read(page: bytes):
    """What a page says of itself, and its columns."""
    text = page.decode()
    about = json.loads(re.search(r'<script type="application/json" id="about">(.*?)</script>', text, re.S)[1])
    raw = zlib.decompress(base64.b64decode(re.search(r'id="columns">(.*?)</script>', text, re.S)[1]))
    columns, at = {}, 0
    for column in about["columns"]:
        count, width = column["count"], column["width"]
        planes = [raw[at + k * count : at + (k + 1) * count] for k in range(width)]
        columns[column["name"]] = [sum(plane[i] << 8 * k for k, plane in enumerate(planes)) for i in range(count)]
        at += count * width
    assert at == len(raw)
    return about, columns


def test_the_page_holds_every_time_of_every_task(trace):
    about, c = read(render(excerpt_of(trace), "html"))
    assert about["title"] == "recorded (cpu) · two · 2 SMs" and about["range"] == [0, 2100]
    assert about["words"] == "step 7 to 8 · 2.10 µs · no record lost · 6 tasks"
    assert c["lane"] == [0, 2, 6]
    begin = [about["base"] + b for b in c["begin"]]
    assert begin == [0, 1100, 0, 450, 1100, 1550]
    assert c["took"] == [400, 400, 300, 450, 300, 450]
    assert c["gap"] == [0, 0, 0, 30, 0, 30] and c["wait"] == [0, 0, 0, 120, 0, 120]
    assert [about["ops"][c["op"][t]] for t in c["task"]] == ["qkv", "qkv", "qkv", "attention", "qkv", "attention"]
    assert [about["counters"][k] for k in c["on"]] == ["its turn"] * 3 + [
        "both </script> done",
        "its turn",
        "both </script> done",
    ]
    assert c["step_number"] == [7, 8] and c["step"] == [0, 1, 0, 0, 1, 1]
    assert [about["base"] + t for t in c["tail_begin"]] == [400, 900, 1500, 2000]
    assert [about["base"] + t for t in c["tail_end"]] == [1000, 1000, 2100, 2100]


def test_a_page_asks_for_nothing(trace):
    page = render(excerpt_of(trace), "html").decode()
    assert "default-src 'none'" in page and not re.search(r"(src|href)=|https?://|@[A-Z]+@", page)


@pytest.mark.parametrize(
    ("which", "span", "tasks"),
    [
        ({"steps": 8}, [1100, 2100], 3),
        ({"steps": (7, 8)}, [0, 2100], 6),
        ({"span": (350, 500)}, [350, 500], 2),  # qkv of SM 0 ends at 400, attention begins at 450
        ({"span": (320, 410)}, [320, 410], 2),  # of attention only its wait
    ],
)
def test_a_part(trace, source, which, span, tasks):
    for of in (trace, source):
        about, c = read(render(excerpt_of(of, **which), "html"))
        assert about["range"] == span and len(c["begin"]) == tasks


def test_a_part_of_a_trace_counts_from_the_first_step_of_all(trace):
    about, c = read(render(excerpt_of(trace, steps=8), "html"))
    assert [about["base"] + b for b in c["begin"]] == [1100, 1100, 1550]
    assert len(excerpt_of(trace, steps=8).snapshot.steps) == 1  # the others were not read


def test_too_many_tasks_for_one_page(trace, monkeypatch):
    monkeypatch.setattr(document, "MAX_TASKS", 5)
    with pytest.raises(MkvizError, match="6 tasks in one HTML file; at most 5: a shorter range"):
        render(excerpt_of(trace), "html")
    render(excerpt_of(trace, steps=8), "html")


def test_numbers_of_every_width_come_back():
    values = np.array([0, 255, 256, (1 << 40) + 3, (1 << 48) - 1])
    described, data = pack({"wide": values, "none": np.zeros(0), "small": np.array([7]), "nine bits": np.array([256])})
    assert [d["width"] for d in described] == [6, 1, 1, 2]
    raw = np.frombuffer(zlib.decompress(base64.b64decode(data)), np.uint8)
    np.testing.assert_array_equal((raw[:30].reshape(6, 5) * 256 ** np.arange(6)[:, None].astype(object)).sum(0), values)
    for wrong in (-1, 1 << 48):
        with pytest.raises(MkvizError, match="column x"):
            pack({"x": np.array([wrong])})


def test_tables(trace):
    def rows(table):
        return list(csv.reader(io.StringIO(render(excerpt_of(trace, steps=7), "csv", table).decode())))

    assert rows("ops") == [
        ["op", "tasks", "time (ns)", "share (of 1)", "read (bytes)", "GB/s per SM"],
        ["qkv", "2", "700.0", str(700 / 1150), "0", "0.0"],
        ["attention", "1", "450.0", str(450 / 1150), "4096", str(4096 / 450)],
    ]
    waits = ["attention · layer 3 · SM 1", "both </script> done", "qkv · layer 3 · tile 0 on SM 0", "120"]
    assert [row[:4] for row in rows("waits")[1:]] == [waits]
    assert rows("steps")[1:] == [["7", "1000", "3", "0"]]


def near(picture: Image.Image, colour: str) -> int:
    wanted = [int(colour[i : i + 2], 16) for i in (1, 3, 5)]
    return int((np.abs(np.asarray(picture.convert("RGB")).astype(int) - wanted).max(2) < 6).sum())


def test_a_picture_shows_ops_in_their_colours(trace):
    light = Image.open(io.BytesIO(render(excerpt_of(trace, steps=7), "png")))
    assert light.size == (2100, 1290)
    qkv, attention = near(light, "#0072B2"), near(light, "#E69F00")
    assert qkv > 100_000 and 0.55 < attention / qkv < 0.7  # 450 to 700 ns of lane, and the strip of reads in the blue of qkv
    assert near(light, "#ffffff") > 1_000_000
    excerpt = excerpt_of(trace, steps=7)
    dark = Image.open(io.BytesIO(render(replace(excerpt, look=replace(excerpt.look, dark=True)), "png")))
    assert near(dark, "#14181f") > 1_000_000 and near(dark, "#E69F00") == pytest.approx(attention, rel=0.05)


def test_an_svg_keeps_its_text(trace):
    root = ET.fromstring(render(excerpt_of(trace, steps=7), "svg"))
    texts = {"".join(e.itertext()).strip() for e in root.iter("{http://www.w3.org/2000/svg}text")}
    assert {"recorded (cpu) · two · 2 SMs", "SM 0", "SM 1", "step 7 · 1.00 µs", "qkv 35.0 %", "attention 22.5 %"} <= texts
    assert render(excerpt_of(trace, steps=7), "svg") == render(excerpt_of(trace, steps=7), "svg")


def test_many_tasks_become_an_image():
    path = next(p for name, p in recordings().items() if "demo" in name)
    everything = render(excerpt_of(path), "svg")
    assert b"<image" in everything and len(everything) < 1 << 20


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("a.pdf", "ending"),
        ("there.html", "exists"),
        ("folder.html", "is a folder"),
        ("no/a.html", "there is no folder"),
    ],
)
def test_where_nothing_can_be_written(trace, tmp_path, name, message):
    (tmp_path / "there.html").write_text("mine")
    (tmp_path / "folder.html").mkdir()
    with pytest.raises(MkvizError, match=message):
        mkviz.export(trace, tmp_path / name)
    assert (tmp_path / "there.html").read_text() == "mine"


def test_nothing_half_written_is_left(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    (tmp_path / "a.csv").write_text("before")
    monkeypatch.setattr(saved.os, "replace", full)
    with pytest.raises(MkvizError, match=r"a\.csv cannot be written \(No space left on device\)"):
        saved.save(b"after", tmp_path / "a.csv")
    assert [p.name for p in tmp_path.iterdir()] == ["a.csv"] and (tmp_path / "a.csv").read_text() == "before"


@pytest.mark.parametrize(
    ("which", "message"),
    [
        ({"steps": 9}, "no step 9; from 7 to 8"),
        ({"steps": (1, 2)}, "no step from 1 to 2"),
        ({"span": (5000, 6000)}, r"no step within 5 to 6 µs; a range within 0 to 2\.100 µs"),
        ({"span": (500, 400)}, "range: 500 to 400 ns; two times, the end after the begin"),
        ({"span": (0, float("inf"))}, "range: 0 to inf ns"),
        ({"steps": 7, "span": (0, 1)}, "at once"),
    ],
)
def test_a_part_that_is_not_there(trace, source, which, message):
    for of in (trace, source):
        with pytest.raises(MkvizError, match=message):
            excerpt_of(of, **which)


def run(*words):
    return subprocess.run([sys.executable, "-m", "mkviz", "export", *map(str, words)], cwd=ROOT, capture_output=True, text=True)


def test_the_command_says_the_size_and_writes(trace, tmp_path):
    done = run(trace.path, tmp_path / "a.csv", "--steps", "7")
    size = (tmp_path / "a.csv").stat().st_size
    assert done.stdout.splitlines() == [
        "recorded (cpu) · two · 2 SMs · step 7 · 1.00 µs · no record lost", f"writing {tmp_path / 'a.csv'}: {size} B"
    ]  # fmt: skip
    again = run(trace.path, tmp_path / "a.csv")
    assert again.returncode == 2 and "exists" in again.stderr
    assert run(trace.path, tmp_path / "a.csv", "--overwrite", "--range", "0.35-0.5", "--table", "steps").returncode == 0
    assert (tmp_path / "a.csv").read_text().startswith("step,time (ns)")


@pytest.mark.parametrize(
    "words", [["--steps", "seven"], ["--range", "1"], ["--range", "0-inf"], ["--steps", "7", "--range", "0-1"]]
)
def test_bad_words(trace, tmp_path, words):
    done = run(trace.path, tmp_path / "a.csv", *words)
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and not (tmp_path / "a.csv").exists()
