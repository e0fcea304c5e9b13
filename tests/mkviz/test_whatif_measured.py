"""What-if of measured steps: costs fitted to their records, how far predictions hold, and what is refused."""

import re
from dataclasses import replace

import numpy as np
import pytest
from random_graphs import random_graph
from step_makers import SMALL
from test_simulated import PLAIN, chain
from test_simulator import JOIN_LISTS, TOY, join
from test_whatif import AFTER, moved, parts, source, spans

from mkviz.accounting import account
from mkviz.cli import main
from mkviz.costs import Costs
from mkviz.costs_fit import fit_step
from mkviz.errors import MkvizError
from mkviz.findings import ANALYSES
from mkviz.graph import GraphBuilder
from mkviz.policies import make_schedule
from mkviz.protocols import StepInfo
from mkviz.reading import Reading
from mkviz.schedule import Schedule
from mkviz.simulator import simulate
from mkviz.step_records import steps_of
from mkviz.store import LiveStore
from mkviz.trace import TraceWriter
from mkviz.whatif import whatif
from mkviz.whatif_case import Case
from mkviz.whatif_change import Change


def measured(*begin_end, publish=5, graph=None, label="measured", machine=PLAIN):
    """A source of one measured step of ``chain``: (begin, end) of each task, each on its SM."""
    graph, schedule = graph or chain()
    store = LiveStore(label)
    store.graph(0, graph, schedule)
    events = simulate(graph, schedule, machine).events
    events = events[np.argsort(events["task"])]
    for event, (begin, end) in zip(events, begin_end, strict=True):
        event["claim"], event["ready"], event["begin"], event["end"], event["publish"] = 0, begin, begin, end, end + publish
    store.step(StepInfo(7, 0, 0, int(events["publish"].max())), events)
    return store


def test_a_measured_step_is_replayed_with_its_own_costs():
    # up 30 to 130, published at 135; down begins 40 later, takes 60 and is published 5 later
    of = measured((30, 130), (175, 235))
    assert spans(of, PLAIN, faster={"up": 2}) == (240, 190)
    # The hop of 40 is one: down's kernel starts 100 after 135 and sees at once what the one before had published.
    assert spans(of, PLAIN, kernel_per_op=True) == (240, 135 + 100 + 60 + 5)
    assert spans(of, None, faster={"down": 2}) == (240, 210)  # of a machine that nobody measured
    found = whatif(of, faster={"down": 2})
    assert found.notes and found.notes[0] in found.to_text()
    with pytest.raises(MkvizError, match="measured names no machine"):
        whatif(of, bandwidth=2)


def test_a_simulation_of_another_kind_is_fitted_as_if_it_had_been_measured():
    """As a kernel per op: down begins 105 + 100 after up; that wait is its cost, and goes where it is launched anyway."""
    of = source(*chain(), PLAIN, barrier_per_op=True)
    assert spans(of, PLAIN, faster={"down": 2}) == (260, 235)
    assert spans(of, PLAIN, faster={"up": 2}) == (260, 210)


def test_hops_are_those_of_each_task():
    """up publishes at 105; one down on an idle SM is ready 40 later, another 10 later."""
    b = GraphBuilder("two", ["up", "down"])
    x = b.counter("x")
    b.task("up", flops=100, raises=[x])
    for _ in range(2):
        b.task("down", flops=50, waits=[x])
    graph, schedule = b.build(), Schedule.from_lists([[0], [1], [2]])
    of = measured((0, 100), (145, 195), (115, 165), graph=(graph, schedule), machine=replace(PLAIN, sms=3))
    fitted = fit_step(next(steps_of(of)), schedule, replace(PLAIN, sms=3))
    assert fitted.case.costs.hop[1:].tolist() == [40, 10] and fitted.error == 0
    assert fitted.case.costs.overhead.tolist() == [0, 0, 0]


def test_a_stall_that_the_replay_overrates_does_not_make_math_fast():
    """Three tasks of two chunks, 20 ns each, on a machine that would take 1 us for every chunk."""
    b = GraphBuilder("stream", ["head", "end"])
    x = b.counter("x")
    for tile in range(3):
        b.task("head", tile=tile, bytes=2048, raises=[x])
    b.task("end", waits=[x])
    graph, schedule = b.build(), Schedule.from_lists([[0, 1, 2], [3]])
    of = measured((0, 20), (20, 40), (40, 60), (65, 70), graph=(graph, schedule))
    step = next(steps_of(of))
    fitted = fit_step(step, schedule, replace(PLAIN, bandwidth=1.024e9, sm_bandwidth=1.024e9))
    assert fitted.case.costs.math.tolist() == [20, 20, 20, 5] and fitted.error > 1


def test_a_step_that_cannot_be_replayed_is_not_predicted():
    # down begins 100 before what it waits for was published: no replay can do that.  85 to 145 in the record, 135 to 195 in it.
    with pytest.raises(MkvizError, match=r"recorded 150 ns, replayed unchanged 200 ns, error \+33.3%, beyond 5%"):
        whatif(measured((30, 130), (85, 145)), machine=PLAIN, faster={"down": 2})


def test_a_page_and_the_command_refuse_it_too(tmp_path, capsys):
    """Without a measured machine, as on a page of a source that names none."""
    words = r"recorded 150 ns, replayed unchanged 200 ns, error \+33.3%, beyond 5%"
    of = measured((30, 130), (85, 145))
    with pytest.raises(MkvizError, match=words):
        ANALYSES["whatif"].find(Reading.of_source(of), "faster", "down=2")
    writer = TraceWriter(tmp_path / "early.mkt", kind="measured", device="cpu")
    graph, schedule = of.graphs[0]
    writer.graph(0, graph, schedule)
    (step,) = steps_of(of)
    writer.step(StepInfo(7, 0, 0, step.end), step.events)
    writer.close()
    for options in (["--faster", "down=2"], ["--faster", "down=2", "--json"], ["--rows", "1"]):
        assert main(["whatif", str(tmp_path / "early.mkt"), *options]) == 2
        told = capsys.readouterr()
        assert not told.out and re.search(words, told.err)
    assert main(["whatif", str(tmp_path / "early.mkt"), "--judge", str(tmp_path / "early.mkt")]) == 2
    assert "is replayed within 5%" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "otherwise", "words"),
    [
        ({"bandwidth": 2}, 450 + 50, ", or as much as -"),  # 900 of waiting becomes 450, the sum of 50 stays
        ({"bandwidth": 0.5}, 1800 + 50, ", or as much as +"),
        ({"faster": {"part": 3}}, 900 + 50, ", or as little as +0.0%"),
        ({"faster": {"part": 3}, "bandwidth": 3}, 300 + 50, ", or as "),
        ({"sms": 2}, 2 * 450 + 50, ", or as little as +"),  # two after each other, each with twice the share of bandwidth
        ({"faster": {"sum": 2}}, None, ""),
        ({"kernel_per_op": True}, None, ""),
    ],
)
def test_how_far_off_a_prediction_is_if_what_counts_as_math_was_waiting_for_bytes(change, otherwise, words):
    """Tasks of one chunk that took 900 ns, of which nobody knows how much was the wait for their 64 bytes."""
    machine = replace(PLAIN, publish_ns=0, hop_ns=0, feed_ns=0, sms=4)
    b = GraphBuilder("reads", ["part", "sum"])
    done = b.counter("done")
    for tile in range(4):
        b.task("part", layer=0, tile=tile, bytes=64, flops=900, raises=[done])
    b.task("sum", layer=0, flops=50, waits=[done])
    of = source(b.build(), Schedule.from_lists([[0, 4], [1], [2], [3]], policy="round_robin"), machine, kind="measured")
    (p,) = whatif(of, 7, machine, **change).predictions
    assert p.stalled == (pytest.approx(otherwise, abs=4) if otherwise else None)  # to each 1 ns: what 64 bytes take to land
    assert words in p.doubt and bool(words) == ("waiting for bytes" in p.doubt)
    told = p.to_json()["if_math_is_stalls"]
    assert told == (otherwise and {"changed": p.stalled, "change": p.stalled / p.before_ns - 1})


def test_how_much_steps_differ_unchanged_stands_beside_the_prediction():
    graph, schedule = parts(100, 100, 100, 100)
    store = LiveStore("measured (plain)", "measured")
    store.graph(0, graph, schedule)
    for number, ns in enumerate((267, 534, 801)):
        result = simulate(graph, schedule, PLAIN)
        store.step(StepInfo(number, 0, 1000 * number, 1000 * number + ns), moved(result.events, number, 1000 * number))
    words = "2 other steps of its kind took +100.0% to +200.0% against step 0, unchanged"
    found = whatif(store, 0, PLAIN, faster={"part": 2})
    assert words in found.notes and words in found.to_text()
    assert not any("of its kind" in note for note in whatif(source(graph, schedule, PLAIN), 7, PLAIN, sms=1).notes)


def test_costs_that_are_known_leave_no_doubt():
    (p,) = whatif(source(join(), JOIN_LISTS, TOY), 7, TOY, bandwidth=2).predictions
    assert p.fitted.exact and p.stalled is None and "waiting" not in p.doubt


def test_a_change_smaller_than_the_error_is_not_told():
    of = measured((30, 130), (131, 191))  # 4 ns too early, of 196
    (p,) = whatif(of, machine=PLAIN, faster={"up": 1.03}).predictions
    assert p.fitted.error == pytest.approx(4 / 196) and p.change == pytest.approx(-2 / 200) and not p.told
    assert "not distinguishable from the error of 2.04%" in whatif(of, machine=PLAIN, faster={"up": 1.03}).to_text()
    assert whatif(of, machine=PLAIN, faster={"up": 1.2}).predictions[0].told


def test_another_batch_is_predicted_from_costs_by_op():
    """1,000 bytes a tile, flops in proportion to rows: fitted to steps of 1 and of 2 rows, a step of 4 is 3 ns + 2 a flop."""

    def batch(rows):
        b = GraphBuilder(f"{rows} rows", ["up", "down"], {"rows": rows})
        x = b.counter("x")
        for tile in range(3):
            b.task("up", tile=tile, bytes=1000 + 100 * tile, flops=10 * rows * (tile + 1), raises=[x])
        b.task("down", bytes=500, flops=7 * rows, waits=[x])
        return b.build(), Schedule.from_lists([[0, 2], [1, 3]])

    store, machine = LiveStore("measured"), replace(PLAIN, chunk_bytes=4096, ring_bytes=16384)
    for i, rows in enumerate((1, 2, 4)):
        graph, schedule = batch(rows)
        store.graph(i, graph, schedule)
        costs = {"math": 3 + 2 * graph.flops, "publish": 5, "hop": 7, "feed": 0, "overhead": 0}
        costs = {name: np.broadcast_to(ns, len(graph)) for name, ns in costs.items()}
        result = simulate(graph, schedule, machine, costs=Costs(**costs))
        store.step(StepInfo(i, i, 1000 * i, 1000 * i + result.makespan), moved(result.events, i, 1000 * i))
    found = whatif(store, [0, 1], machine, rows=4)
    # SM 0: bytes after 1 ns, tiles 0 and 2, 83 + 243 ns; seen 12 later; down 59, stored 5 later
    assert [p.after.makespan for p in found.predictions] == [1 + 83 + 243 + 12 + 59 + 5] * 2
    assert [step for step, _ in found.held_out] == [2] and found.held_out[0][1] == pytest.approx(0, abs=1e-3)
    assert found.predictions[0].told


def test_the_slowest_task_of_another_batch_is_waited_for():
    """Two tiles take 100 and 300 ns, whatever the rows; the task behind them waits for the second, not for the mean of both."""
    store, costs = LiveStore("measured"), {"math": [100, 300, 40], "publish": 5, "hop": 7, "feed": 0, "overhead": 0}
    for i, rows in enumerate((1, 2)):
        b = GraphBuilder(f"{rows} rows", ["up", "down"], {"rows": rows})
        x = b.counter("x")
        for tile in range(2):
            b.task("up", tile=tile, raises=[x])
        b.task("down", waits=[x])
        graph, schedule = b.build(), Schedule.from_lists([[0], [1, 2]])
        store.graph(i, graph, schedule)
    told = Costs(**{name: np.broadcast_to(ns, 3).astype(np.int64) for name, ns in costs.items()})
    result = simulate(graph, schedule, PLAIN, costs=told)
    store.step(StepInfo(0, 0, 0, result.makespan), moved(result.events, 0, 0))
    found = whatif(store, 0, PLAIN, rows=2)
    assert found.predictions[0].after.makespan == 300 + 5 + 7 + 40 + 5  # 200 from means
    assert any(note.startswith("costs keep their spread") for note in found.notes)
    assert "costs keep their spread" in found.to_text() and found.to_json()["costs"] == "costs by op with their spread"
    assert whatif(store, 0, PLAIN, rows=2).to_json() == found.to_json()


def test_a_trace_without_dependencies_is_refused():
    graph, schedule = parts(100, 100, lists=((0,), (1,)))
    bare = replace(graph, wait_ptr=np.zeros_like(graph.wait_ptr), wait_counter=graph.wait_counter[:0],
                   wait_need=graph.wait_need[:0])  # fmt: skip
    with pytest.raises(MkvizError, match="step 7 has no dependencies"):
        whatif(source(bare, schedule, PLAIN), machine=PLAIN, sms=1)
    store = source(graph, schedule, PLAIN)
    with pytest.raises(MkvizError, match="step 8 is not there"):
        whatif(store, 8, PLAIN, sms=1)


def test_without_a_plan_tasks_stay_where_they_were_seen():
    graph, _ = parts(100, 100, 100, 100)
    plan = parts(100, 100, 100, 100)[1]
    result, store = simulate(graph, plan, PLAIN), LiveStore("imported", "imported")
    store.graph(0, graph, Schedule.from_lists([[], []]))
    store.step(StepInfo(7, 0, 0, result.makespan), moved(result.events, 7, 0))
    assert spans(store, PLAIN, faster={"part": 2}) == (200 + AFTER, 100 + AFTER)
    assert account(store).faults["lost"] == 0


def test_the_plot_leads_from_the_unchanged_replay_to_the_changed():
    found = whatif(source(*parts(100, 100, 100, 100), PLAIN), 7, PLAIN, sms=4)
    data = found.plot().renderers[0].data_source.data
    assert list(data["name"]) == ["unchanged", "compute", "changed", "recorded"]
    assert (data["right"][0], data["left"][1], data["right"][1], data["right"][2]) == (267, 267, 167, 167)
    with pytest.raises(MkvizError, match="step 8 was not replayed; one of 7"):
        found.plot(8)


def test_predictions_come_near_what_the_changed_machine_does():
    """Steps of a machine whose hand-overs and math nobody is told, predicted from their records, against that machine changed.
    Its bandwidth and ring are known, as they are of a measured GPU."""
    told = replace(SMALL, publish_ns=0, hop_ns=5, feed_ns=0, task_overhead_ns=0, sm_math_bandwidth=1e12)
    changes = {"faster": {"matmul": 2}, "no_prefetch": True, "bandwidth": 0.5, "kernel_per_op": True, "sms": 4}
    off, refused = {name: [] for name in changes}, 0
    for seed in range(1, 25):
        graph = random_graph(seed, layers=4, width=8)
        schedule = make_schedule(graph, 1 + seed % 3, "round_robin")
        if len(graph.wait_counter) == 0 or not (graph.op == graph.ops.index("matmul")).any():
            continue
        of = source(graph, schedule, SMALL, kind="measured")
        true = Case(graph, schedule, SMALL, Costs.of_machine(graph, SMALL), np.zeros(len(graph), bool))
        for name, value in changes.items():
            try:
                (p,) = whatif(of, 7, told, **{name: value}).predictions
            except MkvizError as error:
                assert "beyond 5%" in str(error)
                refused += 1
            else:
                off[name].append(abs(p.change - Change.of(**{name: value}).on(true).replay.makespan / true.replay.makespan + 1))
    assert refused <= 10 and min(map(len, off.values())) >= 15
    assert max(np.median(points) for points in off.values()) < 0.03  # of changes that are 5 to 40 % of a step
