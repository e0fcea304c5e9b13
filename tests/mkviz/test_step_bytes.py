"""Step bytes: what two steps of a graph worked by hand read, as every analysis, summary and view tells it."""

from dataclasses import replace

import numpy as np
import pytest
from step_makers import SMALL

import mkviz.blame_steps
from mkviz import accounting, lod, lod_kernels, lod_numpy
from mkviz.blame import blame
from mkviz.blame_steps import blame_steps
from mkviz.busy import occupancy
from mkviz.dashboard import probe
from mkviz.dashboard.scene import Look, Scene
from mkviz.exports.document import _columns
from mkviz.exports.excerpt import Excerpt
from mkviz.findings.verdict import rate_of
from mkviz.graph import GraphBuilder
from mkviz.protocols import Row, StepInfo
from mkviz.record import EVENT, KIND_SKIPPED, KIND_TASK
from mkviz.schedule import Schedule
from mkviz.simulated import SimulatedSource
from mkviz.step_bytes import step_bytes
from mkviz.step_records import steps_of
from mkviz.store import store_of_trace
from mkviz.summary import summarise
from mkviz.trace import Trace, TraceWriter
from mkviz.waterfall import waterfall
from mkviz.work import Work

OPS = ("attention", "up", "down")
READ = {0: {"attention": 80, "up": 900, "down": 800}, 1: {"attention": 160, "up": 1200, "down": 1000}}
"""Step 0 has a row of 8 keys where 16 are counted, and of 4 slots of experts no row chose the last: its task has no work, and
the task that goes down, 0.8 of whose 1000 bytes are of slots, reads 3/4 of those.  Step 1 has it all."""
TOTAL = {step: sum(of.values()) for step, of in READ.items()}
MACHINE = replace(SMALL, bandwidth=10e9)


@pytest.fixture
def trace(tmp_path):
    builder = GraphBuilder("by hand", OPS, {"rows": 4, "keys": {"attention": 16}, "slot_bytes": {"down": 0.8}})
    met = builder.counter("met")
    builder.task("attention", layer=0, bytes=160, raises=[met])
    for slot in range(4):
        builder.task("up", layer=0, slot=slot, bytes=300, raises=[met])
    builder.task("down", layer=0, bytes=1000, waits=[(met, 4)])
    schedule = Schedule.from_lists([[0, 1, 2], [3, 4, 5]])
    places = [(0, 0, 100), (0, 100, 200), (0, 200, 300), (1, 0, 100), (1, 100, 200), (1, 300, 500)]  # SM, begin, end
    with TraceWriter(tmp_path / "t.mkt", kind="measured", label="by hand") as writer:
        writer.graph(0, builder.build(), schedule)
        for step, (position, used) in enumerate([(7, 3), (15, 4)]):
            events = np.zeros(6, EVENT)
            for task, (sm, begin, end) in enumerate(places):
                e, at = events[task], 1000 * step
                e["step"], e["task"], e["sm"] = step, task, sm
                e["flags"] = KIND_SKIPPED if 1 <= task <= 4 and task > used else KIND_TASK
                e["claim"] = e["ready"] = e["begin"] = at + begin
                e["end"] = e["publish"] = at + end
            rows, routes = [Row(0, 0, position, 5, "decode")], [(0, slot, 9 - slot, 1) for slot in range(used)]
            writer.step(StepInfo(step, 0, 1000 * step, 1000 * step + 500, rows, routes), events)
    return Trace.open(tmp_path / "t.mkt")


@pytest.fixture(params=["read whole", "swept"])
def size(request, monkeypatch):
    """A large capture is swept by compiled passes: these say the same."""
    if request.param == "swept":
        monkeypatch.setattr(accounting, "LARGE", 0)
        monkeypatch.setattr(mkviz.blame_steps, "COMPILED", 0)


def test_analyses_of_many_steps(trace, size):
    assert blame_steps(trace).held["bytes"].tolist() == [TOTAL[0], TOTAL[1]]
    found = occupancy(trace, bins=3)
    assert (found.read, found.bytes.tolist()) == (TOTAL[0] + TOTAL[1], [TOTAL[0], 0, TOTAL[1]])
    told = summarise(trace)
    assert {op: of.bytes for op, of in told.ops.items()} == {op: READ[0][op] + READ[1][op] for op in OPS}
    assert told.ops["up"].skipped == 1


def test_analyses_of_one_step(trace):
    for source in (trace, store_of_trace(trace)):
        for step, total in TOTAL.items():
            found = blame(source, step, MACHINE)
            assert (found.bytes, found.floor) == (total, total // 10)
            assert (waterfall(source, step, MACHINE).bytes, waterfall(source, step, MACHINE).floor) == (total, total / 10)
            (records,) = steps_of(source, step)
            assert rate_of(records, "down") == READ[step]["down"] / 200 * 1e9


@pytest.mark.parametrize("kernels", [lod_kernels, lod_numpy])
def test_ranges_and_their_rates(trace, kernels):
    snapshot = store_of_trace(trace).snapshot()
    tables = lod.GraphTables(snapshot)
    for step in (0, 1):
        total = lod.summary(snapshot, tables, 1000 * step, 1000 * step + 500, kernels)
        assert dict(zip(snapshot.ops, total.bytes.tolist(), strict=True)) == pytest.approx(READ[step])
    frame = lod.image_frame(snapshot, tables, 0, 1500, 15, tables.op, np.ones(3), kernels)
    assert frame.rate[3:5].tolist() == pytest.approx([4, 4]) and frame.rate[13:].tolist() == pytest.approx([5, 5])
    assert lod.summary(snapshot, tables, 0, 1500, kernels).bytes.sum() == pytest.approx(TOTAL[0] + TOTAL[1])


def test_a_task_that_is_pointed_at_and_one_in_a_file(trace):
    snapshot = store_of_trace(trace).snapshot()
    scene = Scene(snapshot, lod.GraphTables(snapshot), Look(), 0, 1500, 500)
    for time, words in ((400, "800 B · 4.0 GB/s"), (1400, "1000 B · 5.0 GB/s")):
        assert dict(probe.facts(scene, probe.hit(snapshot, time, 1)))["read"] == words
    frame = lod.rect_frame(snapshot, scene.tables, 0, 1500, 100)
    columns = _columns(Excerpt(snapshot, 0, 1500, "by hand", "measured"), scene.tables, frame)
    told = sorted(zip(columns["step"].tolist(), columns["task"].tolist(), columns["bytes"].tolist(), strict=True))
    assert [size for step, _, size in told if step == 0] == [80, 300, 300, 300, 800]
    assert [size for step, _, size in told if step == 1] == [160, 300, 300, 300, 300, 1000]


def test_a_simulated_step_has_all_that_its_graph_counts(trace):
    source = SimulatedSource(store_of_trace(trace), replace(MACHINE, sms=2))
    source.wait()
    assert [blame(source, step).bytes for step in (0, 1)] == [TOTAL[1], TOTAL[1]]


@pytest.mark.parametrize(
    ("meta", "position"),
    [
        ({"keys": {"attention": 16}}, -1),  # of a row whose position nobody knows
        ({"keys": ["attention"], "slot_bytes": "down"}, 7),  # what a graph of others may mean by these names
        ({"keys": {"attention": "16"}, "slot_bytes": {"down": None}}, 7),
        ({"keys": {"attention": 0}, "slot_bytes": {"attention": 0.8}}, 7),  # the layer of the attention has no slots
    ],
)
def test_what_nobody_tells_leaves_a_step_all_of_its_bytes(meta, position):
    builder = GraphBuilder("by hand", OPS, {"rows": 1, **meta})
    builder.task("attention", layer=0, bytes=160, flops=32)
    graph, info = builder.build(), StepInfo(0, 0, 0, 100, [Row(0, 0, position, 5, "decode")], [(0, 0, 1, 1)])
    assert step_bytes(graph, info).tolist() == [160]
    done = Work.of(graph, info, np.ones(1, bool))
    assert (done.bytes.tolist(), done.flops.tolist()) == ([160], [32])
