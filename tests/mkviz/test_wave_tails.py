"""Wave tails: steps worked by hand, and random schedules painted ns by ns."""

import numpy as np
import pytest
from step_makers import simulated_steps, step_of, store_of_steps

from mkviz.errors import MkvizError
from mkviz.graph import GraphBuilder
from mkviz.wave_tails import PARTS, _of_step, tails


def graph():
    """Tasks 0 to 3 of op a, 4 of op b, all of layer 0."""
    builder = GraphBuilder("waves", ["a", "b"])
    for op in "aaaab":
        builder.task(op, layer=0)
    return builder.build()


ROWS = [  # task, SM, ready, begin, end
    (0, 0, 0, 0, 100),
    (1, 0, 100, 100, 200),
    (2, 1, 0, 0, 120),
    (4, 1, 120, 120, 150),  # other work in the tail of a
    (3, 2, 20, 20, 90),
]


def wave(found, op):
    row = found.frame().set_index("op").loc[op]
    return {name: int(row[name]) for name in ("area", "compute", *PARTS, "unknown") if row[name]}


@pytest.mark.parametrize("base", [0, -(2**63) + 1, 2**63 - 300])
def test_a_step_worked_by_hand(base):
    found = tails(store_of_steps(step_of(graph(), 3, ROWS, 0, 260, base)))
    assert (found.label, found.ops, found.notes) == ("made by hand", ("a", "b"), [])
    # a from 0 to 200. SM 1 has its last task of a done at 120, b fills 30 of the 80 left; SM 2 begins at 20 and ends at 90
    assert wave(found, "a") == {"area": 600, "compute": 390, "lead_idle": 20, "tail_idle": 50 + 110, "tail_filled": 30}
    # b from 120 to 150 on SM 1 alone; SM 0 works on a, SM 2 stands idle
    assert wave(found, "b") == {"area": 90, "compute": 30, "absent_idle": 30, "absent_filled": 30}
    rows = found.frame()
    assert rows[["tasks", "sms", "begin", "end"]].values.tolist() == [[4, 3, 0, 200], [1, 1, 120, 150]]
    assert rows["waves"].tolist() == [4 / 3, 1] and rows["loss"].tolist() == pytest.approx([1 / 3, 0])  # 4 of 6 slots
    assert found.finishers[["op", "rank", "task", "sm", "end", "late"]].tolist() == [
        (0, 0, 1, 0, 200, 80),  # two of three SMs had finished at 120
        (0, 1, 2, 1, 120, 0),
        (0, 2, 3, 2, 90, -30),
        (1, 0, 4, 1, 150, 0),
    ]
    assert found.last("op", "task").values.tolist() == [["a", 1, 1, 80], ["b", 4, 1, 0]]


def test_of_two_sms_the_first_to_finish_is_half():
    found = tails(store_of_steps(step_of(graph(), 2, [(0, 0, 0, 0, 100), (1, 1, 0, 0, 60)], 0, 100)))
    assert found.finishers[["sm", "late"]].tolist() == [(0, 40), (1, 0)]


def test_gaps_within_an_op_and_what_filled_them():
    rows = [(0, 0, 0, 0, 50), (4, 0, 50, 50, 60), (1, 0, 80, 80, 100), (2, 1, 0, 0, 100)]
    found = tails(store_of_steps(step_of(graph(), 2, rows, 0, 100)))
    assert wave(found, "a") == {"area": 200, "compute": 170, "gap_idle": 20, "gap_filled": 10}


def test_what_a_lane_did_around_a_record_that_is_wrong_is_unknown():
    rows = [(0, 0, 0, 0, 40), (4, 0, 50, 60, 0), (1, 0, 90, 90, 100), (2, 1, 0, 0, 60), (3, 1, 65, 65, 0)]
    found = tails(store_of_steps(step_of(graph(), 2, rows, 0, 120)))
    # a from 0 to 100: SM 0 in doubt from 40 to 90, SM 1 after 60
    assert wave(found, "a") == {"area": 200, "compute": 40 + 10 + 60, "unknown": 50 + 40}
    assert found.faults["broken"] == 2


def test_sums_over_steps():
    found = tails(store_of_steps(*(step_of(graph(), 3, ROWS, 0, 260, base) for base in (0, 300))))
    by = found.by("op")
    assert by[["op", "groups", "tasks", "area", "tail_idle", "tail_filled"]].values.tolist() == [
        ["a", 2, 8, 1200, 320, 60],
        ["b", 2, 2, 180, 0, 0],
    ]
    assert by["loss"].tolist() == pytest.approx([1 / 3, 0])
    assert found.by()["area"].tolist() == [1380] and found.by("step")["step"].tolist() == [0, 1]
    for wrong in (lambda: found.by("sm"), lambda: found.last("step")):
        with pytest.raises(MkvizError, match="any of"):
            wrong()
    plot = found.plot()
    assert plot.title.text.startswith("made by hand · SM time") and plot.yaxis.axis_label == "SM time (µs)"
    assert plot.renderers[0].data_source.data["tail, idle"].tolist() == [0.32, 0]


def test_steps_that_lost_records_are_left_out():
    found = tails(store_of_steps(step_of(graph(), 3, ROWS, 0, 260), step_of(graph(), 3, ROWS, 300, 560, lost=1)))
    assert set(found.waves["step"].tolist()) == {0} and found.notes == ["of 2 steps 1 lost records and is left out"]
    empty = tails(store_of_steps(step_of(graph(), 3, [], 0, 10)))
    assert len(empty.frame()) == 0 and len(empty.by("op")) == 0 and len(empty.last()) == 0


def painted(step, sms):
    """ns by (op, layer, part) of each lane of each wave, from an array per lane of who worked when."""
    lanes = np.full((sms, step.makespan), -1)
    events = step.events
    for e in events[np.lexsort((events["end"], events["begin"]))[::-1]].tolist():
        lanes[e[7], e[3] - step.begin : e[4] - step.begin] = e[6]
    out = {}
    key = {t: (int(step.graph.op[t]), int(step.graph.layer[t])) for t in range(len(step.graph))}
    for wave in set(key.values()):
        mine = np.isin(lanes, [t for t in key if key[t] == wave])
        if not mine.any():
            continue
        at = np.flatnonzero(mine.any(0))
        begin, end = at[0], at[-1] + 1
        for sm in range(sms):
            own = np.flatnonzero(mine[sm])
            for ns in range(begin, end):
                where = "absent" if not len(own) else "lead" if ns < own[0] else "tail" if ns > own[-1] else "gap"
                what = "compute" if mine[sm, ns] else f"{where}_{'filled' if lanes[sm, ns] >= 0 else 'idle'}"
                out[(*wave, what)] = out.get((*wave, what), 0) + 1
    return out


def test_random_schedules_are_divided_to_the_nanosecond():
    seen = set()
    for seed, step, sms in simulated_steps(40):
        if step.makespan * sms > 60_000:
            continue
        waves, _ = _of_step(step, np.arange(len(step.graph.ops)))
        found = {}
        for w in waves:
            assert w["area"] == w["compute"] + w["unknown"] + sum(w[part] for part in PARTS)
            found |= {(int(w["op"]), int(w["layer"]), part): int(w[part]) for part in ("compute", *PARTS) if w[part]}
        assert found == painted(step, sms), seed
        seen |= {part for *_, part in found}
    assert seen == {"compute", *PARTS}
