"""What a point of the timeline says, on a step worked by hand."""

from dataclasses import replace

import numpy as np
import pytest
from two_lanes import two_lanes

from mkviz import lod
from mkviz.dashboard import probe
from mkviz.dashboard.scene import Look, Scene
from mkviz.dashboard.units import decimal, duration, percent, size
from mkviz.graph import GraphBuilder
from mkviz.protocols import StepInfo
from mkviz.record import EVENT
from mkviz.schedule import Schedule
from mkviz.store import LiveStore


@pytest.fixture
def scene():
    return two_lanes()


def words(scene, time, lane):
    return dict(probe.facts(scene, probe.hit(scene.snapshot, time, lane)))


def test_a_running_task(scene):
    said = words(scene, 600, 1)
    assert said[""] == "attention · layer 3" and said["SM"] == "1 · step 7"
    assert said["begin"] == "450 ns into the step" and said["took"] == "450 ns"
    assert said["exposed wait"] == (
        "120 ns on qkv of layer 3 (last raised by qkv · layer 3 · tile 0 on SM 0), 10 ns of it after that publish"
    )
    assert said["slack"] == "none of the last producer, 100 ns of the one before it"  # published at 410 and 310
    assert said["ready to begin"] == "30 ns" and said["read"] == "4.0 KiB · 9.1 GB/s"


def test_a_wait_an_idle_gap_and_a_tail(scene):
    assert words(scene, 350, 1)[""] == "waiting for attention · layer 3"
    assert words(scene, 430, 1)[""] == "about to begin attention · layer 3"
    assert words(scene, 950, 0) == {"": "no task left · SM 0", "step": "7"}
    assert words(scene, 100, 0)["exposed wait"] == "none" and "slack" not in words(scene, 100, 0)


def test_nothing_outside(scene):
    for time, lane in ((-1, 0), (1001, 0), (100, 2), (100, -1)):
        assert probe.hit(scene.snapshot, time, lane) is None
        assert probe.tip(scene, time, lane) == ""


def test_dependencies_latest_first(scene):
    snapshot = scene.snapshot
    found = [(int(snapshot.task[row]), last) for row, _, last in probe.dependencies(snapshot, 0, 2)]
    assert found == [(0, True), (1, False)]
    assert probe.dependencies(snapshot, 0, 0) == []


def test_several_tasks_in_a_pixel(scene):
    scene.x0, scene.x1, scene.width = 0.0, 2000.0, 2  # 1000 ns a pixel, around 500: 0..1000
    assert probe.pixel_shares(scene, 500, 1) == [("attention", 0.45), ("qkv", 0.3)]
    assert probe.pixel_shares(scene, 500, 0) == []


def test_markup_in_names_stays_text(scene):
    builder = GraphBuilder("odd", ("<b>op</b>",))
    builder.task("<b>op</b>")
    store = LiveStore()
    store.graph(0, builder.build(), Schedule.from_lists([[0]]))
    events = np.zeros(1, EVENT)
    events["end"] = 10
    store.step(StepInfo(0, 0, 0, 10), events)
    snapshot = store.snapshot()
    odd = Scene(snapshot, lod.GraphTables(snapshot), Look(), 0.0, 10.0, 100)
    assert "&lt;b&gt;op" in probe.tip(odd, 5, 0) and "<b><b>" not in probe.tip(odd, 5, 0)


@pytest.mark.parametrize(
    ("query", "tasks"),
    [("qkv", [0, 1]), ("attention L3", [2]), ("layer 3", [0, 1, 2]), ("l2", []), ("AT", [2]), ("nothing", [])],
)
def test_search(scene, query, tasks):
    scene = replace(scene, look=Look(query=query))
    assert np.flatnonzero(scene.matches).tolist() == tasks


def test_next_match_goes_on_and_around(scene):
    scene = replace(scene, look=Look(query="qkv"))
    assert probe.next_match(scene, -1)[1] == 0
    assert probe.next_match(scene, 500) == (0, 0)  # none after: the first
    scene = replace(scene, look=Look(query="attention"))
    assert scene.snapshot.task[probe.next_match(scene, 100)[1]] == 2
    scene = replace(scene, look=Look(query="l9"))
    assert probe.next_match(scene, 0) is None


def test_hidden_ops_are_not_drawn_and_search_dims_the_rest(scene):
    scene = replace(scene, look=Look(hidden=frozenset({"attention"})))
    _, alpha = scene.rect_colours(scene.rects)
    shown = dict(zip(scene.snapshot.task[scene.rects.row].tolist(), alpha.tolist(), strict=True))
    assert shown == {0: 1, 1: 1, 2: 0}
    fresh = Scene(scene.snapshot, scene.tables, Look(query="attention"), 0.0, 1000.0, 100)
    _, alpha = fresh.rect_colours(fresh.rects)
    shown = dict(zip(scene.snapshot.task[fresh.rects.row].tolist(), alpha.tolist(), strict=True))
    assert shown[2] == 1 and 0 < shown[0] < 0.5


def test_units():
    assert [duration(t) for t in (0, 999, 1000, 12_340, 1_920_000, 3.1e9)] == [
        "0 ns", "999 ns", "1.00 µs", "12.3 µs", "1.92 ms", "3.10 s",
    ]  # fmt: skip
    assert [size(n) for n in (0, 1023, 16384, 3 << 20)] == ["0 B", "1023 B", "16.0 KiB", "3.0 MiB"]
    assert [decimal(n) for n in (0, 999, 15_650_000)] == ["0 B", "999 B", "15.7 MB"] and decimal(7_156_011_008, 2) == "7.16 GB"
    assert [percent(share) for share in (-0.0003, 0, -0.02, 1)] == ["0.0 %", "0.0 %", "-2.0 %", "100.0 %"]
