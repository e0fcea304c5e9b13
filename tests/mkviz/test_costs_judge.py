"""Costs by op, fitted to some steps and judged on others, on steps whose costs were written down."""

import json
from dataclasses import replace

import numpy as np
import pytest
from test_simulated import PLAIN
from test_whatif import moved

from mkviz.cli import main
from mkviz.costs import Costs
from mkviz.costs_judge import judge
from mkviz.errors import MkvizError
from mkviz.findings import ANALYSES
from mkviz.graph import GraphBuilder
from mkviz.protocols import Row, StepInfo
from mkviz.reading import Reading
from mkviz.schedule import Schedule
from mkviz.simulator import simulate
from mkviz.store import LiveStore
from mkviz.trace import TraceWriter
from mkviz.whatif import whatif

LISTS = [[0, 2, 4], [1, 3, 5]]


def graph_of(rows):
    """Tiles of 1000 and 1500 bytes of ``up``, ``down`` alike but 3 flops a byte and row, and a ``head`` of the last rows."""
    b = GraphBuilder(f"{rows} rows", ["up", "down", "head"], {"rows": rows, "last_row_ops": ["head"]})
    x, y = b.counter("x"), b.counter("y")
    for size in (1000, 1500):
        b.task("up", layer=0, tile=size, bytes=size, flops=rows * size, raises=[x])
    for size in (1000, 1500):
        b.task("down", layer=0, tile=size, bytes=size, flops=3 * rows * size, waits=[x], raises=[y])
    for size in (2000, 3000):
        b.task("head", tile=size, bytes=size, flops=rows * size, waits=[y])
    return b.build()


def took(graph, rows, requests):
    """ns of math: up 50 and half a flop; down 70 and a tenth a flop; head 0.1 a byte and 0.2 a flop."""
    flops = graph.flops * rows / graph.meta["rows"]
    flops[graph.op == 2] *= requests / rows
    ns = np.select([graph.op == 0, graph.op == 1], [50 + flops / 2, 70 + flops / 10], graph.bytes / 10 + flops / 5)
    return np.rint(ns).astype(np.int64)


def record(sink, steps, late=0):
    """Steps of (rows, requests) with publish 5, hop 7 and nothing else around math, which takes ``late`` ns longer in steps of
    8 rows; without a measured machine."""
    graphs = {}
    for number, (rows, requests) in enumerate(steps):
        full = 1 << (rows - 1).bit_length()
        if full not in graphs:
            graphs[full] = len(graphs), graph_of(full)
            sink.graph(graphs[full][0], graphs[full][1], Schedule.from_lists(LISTS))
        of, graph = graphs[full]
        other = {"publish": 5, "hop": 7, "feed": 0, "overhead": 0}
        costs = {name: np.full(len(graph), ns) for name, ns in other.items()}
        costs = Costs(math=took(graph, rows, requests), **costs)
        bare = replace(graph, bytes=np.zeros_like(graph.bytes))
        costs = replace(costs, math=costs.math + late * (rows == 8))
        result, begin = simulate(bare, Schedule.from_lists(LISTS), PLAIN, costs=costs), 10**6 * number
        kind = "decode" if rows == requests else "prefill"
        told = [Row(i, i % requests, i, 0, kind) for i in range(rows)]
        sink.step(StepInfo(number, of, begin, begin + result.makespan, told), moved(result.events, number, begin))
    return sink


def steps(*found, late=0):
    return record(LiveStore("measured (cpu)"), found, late)


def test_a_batch_is_predicted_from_another_and_its_prompts():
    """Fitted to a decoded row and a chunk of 4; rows of 8 and a chunk of 7 of 2 requests in a graph of 8 were not seen."""
    found = judge(steps((1, 1), (1, 1), (4, 1)), steps((8, 8), (7, 2)))
    costs = found.costs.ops
    assert (costs["up"].base, costs["up"].per_flop) == pytest.approx((50, 0.5)) and costs["up"].flops == "told"
    assert (costs["down"].base, costs["down"].per_flop) == pytest.approx((70, 0.1)) and costs["down"].flops == "told"
    # The head did one row in each: what a flop takes is the middle of the others by their time, that of up
    assert costs["head"].flops == "lent" and costs["head"].per_flop == pytest.approx(0.3)  # 0.5 would be more than it took
    assert found.fitted == [(1, 0, 2), (4, 4, 1)]
    ops = found.frame("op").set_index(["rows", "op"])
    assert ops.loc[(8, "up"), "recorded"] == ops.loc[(8, "up"), "predicted"] == 2 * 50 + 2500 * 8 / 2
    assert ops.loc[(7, "down"), "predicted"] == 2 * 70 + 2500 * 3 * 7 / 10
    assert [(s.rows, s.prefill) for s in found.steps] == [(8, 0), (7, 7)]
    # SM 1 is the longer one: 50 + 750 * 8, published and seen 12 later, 70 + 450 * 8, 12 later its head, published 5 later
    assert found.steps[0].recorded == 50 + 6000 + 12 + 70 + 3600 + 12 + 300 + 4800 + 5


def test_with_other_flops_in_all_ops_the_whole_step_is_predicted():
    found = judge(steps((1, 1), (2, 2)), steps((16, 16), (5, 5)))
    assert found.worst < 1e-3 and {cost.flops for cost in found.costs.ops.values()} == {"told"}
    assert found.costs.ops["head"].per_byte == pytest.approx(0.1, rel=1e-2)
    frame = found.frame()
    assert list(frame["rows"]) == [16, 5] and list(frame["steps"]) == [1, 1]
    assert json.loads(json.dumps(found.to_json()))["kinds"][0]["rows"] == 16
    text = found.to_text()
    assert text.startswith(
        "costs by op, fitted to 1 step of 1 row, 1 step of 2 rows, judged on measured (cpu)\n16 rows, 1 step: "
    )
    data = found.plot().renderers[0].data_source.data
    assert data["name"][0] == "16 rows: up" and data["name"][-1] == "5 rows" and max(map(abs, data["error"])) < 1e-2


def test_what_one_batch_cannot_tell_is_said_with_both_ends():
    """From one row nobody knows whether more rows take longer: from no longer at all to that many times."""
    of = steps((1, 1), (1, 1))
    of.graph(9, graph_of(8), Schedule.from_lists(LISTS))
    found = whatif(of, 0, rows=8)
    (p,) = found.predictions
    once = 50 + 750 + 12 + 70 + 450 + 12 + 300 + 600 + 5
    assert p.before_ns == p.after.makespan == once
    math = once - 29  # all but publishes and hops
    assert p.grown == pytest.approx(29 + 8 * math, rel=0.02) and f"as much as {p.grown_change:+.1%}" in p.doubt
    notes = " ".join(found.notes)
    assert "no fitted step tells" in notes and "up to 1 row: what 8 take is extrapolated" in notes and "nobody judged" in notes


def test_a_prediction_of_a_batch_is_judged_on_that_batch():
    """In its own source, where steps of it are left out of the fit, and on another, whose graph it may be, too."""
    found = whatif(steps((1, 1), (2, 2), (8, 8)), 0, rows=8)
    assert [step for step, _ in found.held_out] == [2] and abs(found.held_out[0][1]) < 1e-3
    assert not any("nobody judged" in note for note in found.notes)
    found = whatif(steps((1, 1), (2, 2)), 0, rows=8, judge=steps((8, 8)))
    assert found.predictions[0].after.makespan == pytest.approx(found.judged.steps[0].recorded, rel=1e-3)
    assert "judged on measured (cpu)" in found.to_text() and found.to_json()["judged"]["kinds"][0]["rows"] == 8
    found = whatif(steps((1, 1), (2, 2), (8, 8), late=1000), 0, rows=8)
    assert found.held_out[0][1] == pytest.approx(14849 / 17849 - 1, rel=1e-3)
    # all three tasks of a lane 1000 ns later than these costs say, of 14,849
    (p,) = whatif(steps((1, 1), (2, 2)), 0, rows=8, judge=steps((8, 8), late=1000)).predictions
    assert p.margin == pytest.approx(1 - 14849 / 17849, rel=1e-3) and "off by up to 16.8% out of sample" in p.doubt
    assert whatif(steps((1, 1), (2, 2), (4, 4)), 0, rows=3).predictions[0].after.events["task"].size == 6  # in a graph of 4
    with pytest.raises(MkvizError, match="no graph for 9 rows; 1 to 2"):
        whatif(steps((1, 1), (2, 2)), 0, rows=9)


def test_a_page_shows_what_it_was_judged_on():
    found = ANALYSES["whatif"].find(Reading.of_source(steps((1, 1), (2, 2), (2, 2))), "rows", "8", steps((8, 8), late=1000))
    (kind,), ops = found.tables["costs by op, judged on measured (cpu)"].values, found.tables["math of each op"].values
    assert kind[:5] == [8, 0, 1, 17849, 14849] and kind[5] == pytest.approx(14849 / 17849 - 1)
    assert kind[6:] == kind[4:6]  # the tasks of an op all take what its mean says
    assert [row[1] for row in ops] == ["up", "down", "head"] and ops[0][2:4] == [12100, 10100]
    assert len(found.plots) == 2 and found.plots[1](True).title.text.endswith("costs by op, out of sample")


def test_of_many_kinds_of_steps_those_with_most_stand_for_all():
    found = judge(steps((1, 1), (1, 1), (2, 2), (2, 2), *((n, n) for n in range(3, 19))), steps((64, 64)))
    assert len(found.fitted) == 16 and found.fitted[:2] == [(1, 0, 2), (2, 0, 2)]
    assert "of 18 kinds of steps of measured (cpu) the 16 with most" in found.notes and found.worst < 1e-3


def test_traces_of_other_models_or_machines_are_refused():
    b = GraphBuilder("other", ["else"])
    for _ in range(2):
        x = b.counter(f"x{_}")
        b.task("else", flops=5, waits=[] if not _ else [0], raises=[x])
    other, graph = LiveStore("measured (cpu)"), b.build()
    other.graph(0, graph, Schedule.from_lists([[0, 1]]))
    result = simulate(graph, Schedule.from_lists([[0, 1]]), PLAIN)
    other.step(StepInfo(0, 0, 0, result.makespan), moved(result.events, 0, 0))
    with pytest.raises(MkvizError, match="has only ops that ran"):
        judge(steps((1, 1)), other)
    with pytest.raises(MkvizError, match="that costs were not fitted to"):
        judge(steps((1, 1)), steps((1, 1)))  # the very step
    found = judge(steps((1, 1), (1, 1)), steps((1, 1), (1, 1), (2, 2)))
    assert [s.step for s in found.steps] == [2]
    on_h200 = record(LiveStore("measured on NVIDIA H200"), [(1, 1)])
    with pytest.raises(MkvizError, match="traces of the same machine"):
        judge(steps((1, 1)), on_h200)


def test_the_command_takes_two_traces(tmp_path, capsys):
    for name, found in (("a", [(1, 1), (2, 2)]), ("b", [(8, 8)])):
        writer = TraceWriter(tmp_path / f"{name}.mkt", kind="measured", device="cpu")
        record(writer, found)
        writer.close()
    a, b = str(tmp_path / "a.mkt"), str(tmp_path / "b.mkt")
    assert main(["whatif", a, "--judge", b]) == 0
    out = capsys.readouterr().out
    assert out.startswith(
        "costs by op, fitted to 1 step of 1 row, 1 step of 2 rows, judged on recorded (cpu)\n8 rows, 1 step: "
    )
    assert main(["whatif", a, "--judge", b, "--rows", "8", "--json"]) == 0
    out = json.loads(capsys.readouterr().out)
    assert out["change"] == "8 rows" and abs(out["judged"]["kinds"][0]["error"]) < 1e-3
