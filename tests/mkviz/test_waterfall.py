"""Waterfall: a step worked by hand, random schedules whose parts add up, and a recording of an H200."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from step_makers import SMALL, simulated_steps, step_of, store_of_steps

import mkviz
from mkviz.cli import main
from mkviz.errors import MkvizError
from mkviz.graph import GraphBuilder
from mkviz.protocols import StepInfo
from mkviz.ring_fill import stages_told
from mkviz.schedule import Schedule
from mkviz.step_records import of_events
from mkviz.trace import Trace
from mkviz.waterfall import waterfall, waterfall_of

RECORDING = Path(mkviz.__file__).parent / "recordings" / "h200-north-mini-code-6-layers-8K.mkt.zip"
MACHINE = replace(SMALL, bandwidth=12e9, ring_bytes=1600, chunk_bytes=100)


def by_hand():
    """One SM, three tasks of 800 bytes.  At 100, when the first begins, 1200 have landed, at 300 all; 12 bytes a ns."""
    builder = GraphBuilder("by hand", ("a", "b"))
    for op in ("a", "a", "b"):
        builder.task(op, bytes=800)
    graph = builder.build()
    step = step_of(graph, 1, [(0, 0, 100, 100, 200), (1, 0, 200, 200, 300), (2, 0, 300, 300, 400)], 0, 400)
    events = step.events.copy()
    events["fill"] = [12, 0, 8]
    return of_events(StepInfo(0, 0, 0, 400), events, graph, Schedule.from_lists([[0, 1, 2]]))


def test_what_memory_did_not_bring_is_charged_to_what_held_the_step():
    """0 to 100, before a: 1200 bytes, all that memory can bring.  100 to 300, in a: 1200 where 2400 could be, 100 ns lost.
    300 to 400, in b: nothing lands."""
    found = waterfall_of(by_hand(), MACHINE, "made by hand")
    assert (found.makespan, found.bytes, found.floor) == (400, 2400, 200)
    told = [(cause, op, path, round(lost, 6)) for cause, op, path, lost in found.charges]
    assert sorted(told) == [("compute", "a", 200, 100), ("compute", "b", 100, 100), ("overhead", "a", 100, 0)]
    assert [(cause, path, round(lost, 6)) for cause, path, lost in found.by_cause()] == [
        ("compute", 300, 200),
        ("overhead", 100, 0),
    ]
    assert found.frame()["share"].tolist() == pytest.approx([0.25, 0.25, 0])
    assert found.to_text().splitlines() == [
        "made by hand",
        "step 0, 0.4 µs",
        "its bytes        0.2 µs   50.0%   2.40 kB at 0.01 TB/s",
        "compute          0.2 µs   50.0%   of 0.3 on the path: a 0.1, b 0.1",
        "overhead         0.0 µs    0.0%   of 0.1 on the path",
    ]


def test_random_schedules_add_up_to_the_makespan():
    for seed, step, _ in simulated_steps(40):
        if step.graph.bytes[step.events["task"]].any():
            found = waterfall_of(step, SMALL)
            assert found.floor + sum(lost for *_, lost in found.charges) == pytest.approx(found.makespan), seed
            assert sum(path for _, _, path, _ in found.charges) == found.makespan


def test_a_ring_tells_its_chunks_by_the_readings_that_occur():
    assert stages_told(np.array([0, 2, 4, 6, 8, 10, 12, 14, 15, 2])) == 8
    assert stages_told(np.array([15, 0, 1, 3, 5, 7, 8, 10, 12, 14])) == 9
    assert stages_told(np.array([0, 2, 4])) == 0 and stages_told(np.array([], np.uint8)) == 0


def test_the_step_before_and_the_command(capsys):
    first, second = Trace.open(RECORDING).infos()
    assert waterfall(RECORDING, first.step).since_last is None
    assert main(["summary", str(RECORDING), "--waterfall", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["step"] == second.step and found["since_last"] == second.begin - first.end
    assert found["floor"] + sum(row["lost"] for row in found["charges"]) == pytest.approx(second.end - second.begin)


def test_what_cannot_be_told_is_refused():
    with pytest.raises(MkvizError, match="no machine whose memory was measured"):
        waterfall(store_of_steps(by_hand()))
    with pytest.raises(MkvizError, match="step 7"):
        waterfall(store_of_steps(by_hand()), 7, MACHINE)
    with pytest.raises(MkvizError, match="reads no bytes"):
        waterfall_of(replace(by_hand(), graph=replace(by_hand().graph, bytes=np.zeros(3, np.int64))), MACHINE)
    with pytest.raises(MkvizError, match="lost 2 records"):
        waterfall_of(replace(by_hand(), lost=2), MACHINE)
