"""What findings say in words, on steps worked by hand: a memory-bound one, one that waits, one without dependencies."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from step_makers import step_of, store_of_steps

from mkviz import plots
from mkviz.blame import blame_of
from mkviz.errors import MkvizError
from mkviz.findings import ANALYSES
from mkviz.findings.changed import CHANGES, change_of
from mkviz.findings.finding import fault_words
from mkviz.findings.html import prose, table_html
from mkviz.findings.steps import of_diff
from mkviz.findings.verdict import rate_of, verdict
from mkviz.graph import GraphBuilder
from mkviz.machine import H200
from mkviz.reading import Reading
from mkviz.table import Table


def chain(sizes=(0, 0)):
    """up raises what down waits for."""
    builder = GraphBuilder("chain", ("up", "down"))
    done = builder.counter("done")
    builder.task("up", layer=0, bytes=sizes[0], raises=[done])
    builder.task("down", layer=0, bytes=sizes[1], waits=[done])
    return builder.build()


def waits(sizes=(0, 0), **info):
    """up 0..600 on SM 0, published at 620; down on SM 1, ready at 700, begins at 800, ends and is published at 1000."""
    return step_of(chain(sizes), 2, [(0, 0, 0, 0, 600, 620), (1, 1, 700, 800, 1000)], end=1000, **info)


def test_the_verdict_names_the_cause_the_op_and_what_is_next():
    step = waits()
    said = verdict(blame_of(step), step, None)
    assert (said.cause, said.share, said.op, said.op_share, said.rate) == ("compute", 0.8, "up", 0.6, None)
    assert said.text == (
        "Step 0 takes 1.00 µs; 80.0 % of it is compute, above all up (60.0 %). "
        "Next is overhead (idle although ready), 10.0 %, above all before down (10.0 %). "
        "Unless its tasks or the memory become faster, no schedule takes less than 820 ns (82.0 %), its longest chain of "
        "dependencies."
    )


@pytest.mark.parametrize(("size", "bound"), [(2_700_000, "memory bounds it"), (1_000_000, "memory does not bound it")])
def test_an_op_that_reads_as_fast_as_memory_can_is_bound_by_it(size, bound):
    """up reads ``size`` bytes in 600 ns; the ceiling of the H200 is 4.55 TB/s."""
    step = waits((size, 0))
    said = verdict(blame_of(step, H200), step, H200)
    assert said.rate == pytest.approx(size / 600e-9)
    assert f"it reads {size / 600e-9 / 1e12:.2f} TB/s, {100 * size / 600e-9 / 4.55e12:.1f} % of" in said.text
    assert said.text.count(bound) == 1


@pytest.mark.parametrize(("size", "words"), [(2_700_000, None), (3_000_000, "for 600 ns in all bytes land faster")])
def test_what_lands_faster_than_the_ceiling_is_shown_and_said(size, words):
    """up reads ``size`` bytes in 600 ns, evenly: 4.5 or 5 TB/s; the ceiling of the H200 is 4.55."""
    found = ANALYSES["occupancy"].find(Reading.of_source(store_of_steps(waits((size, 0)), label="measured on NVIDIA H200")))
    said = [note for note in found.remarks if "ceiling" in note]
    assert len(said) == bool(words) and found.figures["read"] == size
    if words:
        assert said[0].startswith(words) and "5,000 GB/s" in said[0]


def test_what_other_ops_read_at_the_same_time_counts_before_memory_is_acquitted():
    """up reads 1 MB in 0..600, other 2.2 MB in 300..900: 1.1 MB of it while up runs."""
    builder = GraphBuilder("beside", ("up", "other"))
    builder.task("up", layer=0, bytes=1_000_000)
    builder.task("other", layer=0, bytes=2_200_000)
    rows = [(0, 0, 0, 0, 600), (1, 1, 0, 300, 900)]
    step = step_of(builder.build(), 2, rows, end=900)
    assert rate_of(step, "up", beside=True) == pytest.approx(2_100_000 / 600e-9)
    assert rate_of(step, "up") == pytest.approx(1_000_000 / 600e-9)
    path = blame_of(step_of(builder.build(), 2, [(0, 0, 0, 0, 600), (1, 1, 0, 0, 590)], end=600), H200)
    said = verdict(path, step, H200)
    assert "While up runs, it reads 1.67 TB/s" in said.text and "memory does not bound it" in said.text
    step = step_of(builder.build(), 2, [(0, 0, 0, 0, 600), (1, 1, 0, 0, 590)], end=600)
    said = verdict(blame_of(step, H200), step, H200)
    assert "with what else reads then it is 5.33 TB/s, and memory bounds them" in said.text


def test_a_rate_counts_the_time_in_which_any_task_of_the_op_ran_once():
    builder = GraphBuilder("two", ("op",))
    for _ in range(3):
        builder.task("op", bytes=1000)
    rows = [(0, 0, 0, 0, 100), (1, 1, 0, 50, 150), (2, 0, 0, 400, 450)]  # 0..150 and 400..450
    assert rate_of(step_of(builder.build(), 2, rows, end=500), "op") == pytest.approx(3000 / 200e-9)


def source(*steps, label="recorded (cpu)"):
    found = store_of_steps(*steps, label=label)
    found.kind = "recorded"
    return found


def test_every_analysis_answers_and_its_figures_are_those_of_its_words():
    reading = Reading.of_source(source(waits((1000, 0)), waits((1000, 0))))
    found = {name: ANALYSES[name].find(reading) for name in ("blame", "accounting", "occupancy", "waits", "tails", "steps")}
    # of 4 µs of SM time: 600 + 200 compute; wait 700; overhead 100; tail 400 of SM 0 (nobody ran after 600), twice
    assert (
        found["accounting"].answer
        == "Of 4.00 µs of SM time in 2 steps: 40.0 % compute, 35.0 % wait, 20.0 % tail, 5.0 % overhead."
    )
    assert found["accounting"].figures["kinds"] == {
        "compute": 1600, "wait": 1400, "starved": 0, "overhead": 200, "tail": 800, "unknown": 0,
    }  # fmt: skip
    assert found["waits"].answer.startswith(
        "SMs stood idle for 2 of 2 waits, 1.40 µs of SM time; most of it (100.0 %) down for up,"
    )
    assert [task for _, task in found["waits"].tables["most waited for"].goes_to] == [1]
    assert (
        found["steps"].answer == "2 steps of chain, 1.00 µs to 1.00 µs; the slowest, step 0, takes 0.0 % more than the middle."
    )
    for finding in found.values():
        assert finding.label == "recorded (cpu)"
        for plot in finding.plots:
            for dark in (False, True):
                assert plot(dark).title.text.startswith("recorded (cpu) · ")
    assert "nobody measured this machine's memory" in " ".join(found["blame"].remarks)


def of_one_load(size: int, end: int, label: str = "recorded (NVIDIA H200)"):
    """The waterfall of a step of 1000 ns, all of it one task that reads ``size`` bytes, with math until ``end``."""
    builder = GraphBuilder("one", ("load",))
    builder.task("load", bytes=size)
    step = step_of(builder.build(), 1, [(0, 0, 0, 0, end, 1000)], end=1000)
    return ANALYSES["waterfall"].find(Reading.of_source(source(step, label=label)))


def test_parts_of_a_step_are_its_bytes_and_what_held_it():
    """910 kB are 200 ns at 4.55 TB/s; they come evenly while their task runs, from 0 to 800 ns; then its publish."""
    found = of_one_load(910_000, end=800)
    assert found.answer == (
        "Step 0 takes 1.00 µs. Reading its bytes, 910.00 kB at 4.55 TB/s, takes 200 ns of that (20.0 %); "
        "what it takes beyond is above all compute 600 ns (60.0 %) and publish 200 ns (20.0 %)."
    )
    rows = found.tables["parts of step 0"].values
    assert [(row[0], round(row[1]), round(row[2], 6)) for row in rows] == [
        ("its bytes", 200, 0.2), ("compute", 600, 0.6), ("publish", 200, 0.2), ("step", 1000, 1.0),
    ]  # fmt: skip
    assert [row[3:] for row in rows] == [[None, None], [800, "load 600 ns"], [200, "load 200 ns"], [1000, None]]
    plot = found.plots[0](True)
    data = plot.renderers[0].data_source.data
    assert list(data["name"]) == ["its bytes", "compute", "publish", "step"]
    assert list(data["left"]) == pytest.approx([0, 0.2, 0.8, 0])  # µs
    assert list(data["right"]) == pytest.approx([0.2, 0.8, 1, 1])
    assert list(data["words"]) == ["200 ns · 20.0 %", "600 ns · 60.0 %", "200 ns · 20.0 %", "1.00 µs"]
    with pytest.raises(MkvizError, match="nobody measured this machine's memory"):
        of_one_load(910_000, end=800, label="recorded (cpu)")


def test_a_step_may_be_faster_than_memory():
    """9.1 MB are 2 µs at 4.55 TB/s: a cache had some of them."""
    found = of_one_load(9_100_000, end=1000)
    assert found.answer == (
        "Step 0 takes 1.00 µs. Reading its bytes, 9.10 MB at 4.55 TB/s, takes 2.00 µs: more than the step, so that not all of "
        "them came from memory."
    )
    assert [row[:3] for row in found.tables["parts of step 0"].values] == [
        ["its bytes", 2000, 2], ["compute", -1000, -1], ["step", 1000, 1],
    ]  # fmt: skip


def test_without_dependencies_waits_cannot_be_named():
    builder = GraphBuilder("bare", ("op",))
    builder.task("op")
    found = ANALYSES["waits"].find(Reading.of_source(source(step_of(builder.build(), 1, [(0, 0, 0, 10, 100)], end=100))))
    assert found.answer == "This source names no dependencies: who waited for whom cannot be told."
    assert "no dependencies: waits cannot be named" in found.remarks and not found.plots and not found.tables


def test_faults_in_words():
    assert fault_words({"lost": 1, "broken": 0, "overlapping": 1200}) == [
        "1 record is lost: the time of its step is unknown",
        "1 200 records begin before the task before them had ended: time that two share counts once",
    ]
    lossy = Reading.of_source(source(waits(lost=2)))
    assert any("2 records are lost" in text for text in ANALYSES["accounting"].find(lossy).remarks)
    with pytest.raises(MkvizError, match="lost records"):
        ANALYSES["blame"].find(lossy)


def test_what_if_is_simulated_and_tells_its_error_first():
    found = ANALYSES["whatif"].find(Reading.of_source(source(waits(), waits())), "faster", "up=2")
    assert found.label == "simulated from: recorded (cpu)"
    assert found.answer.startswith(
        "Replayed as it was, step 0 takes 1.00 µs, recorded 1.00 µs: an error of +0.00%. With up 2 times"
    )
    assert all(plot(False).title.text.startswith("simulated from: recorded (cpu)") for plot in found.plots)
    p = found.figures["predictions"][0]
    assert p["changed"] < p["replayed"] and f"{p['change']:+.1%}".replace("-", "−") in found.answer


@pytest.mark.parametrize(
    ("name", "value", "change"),
    [
        ("kernel_per_op", "", {"kernel_per_op": True}),
        ("faster", " attention = 2 ", {"faster": {"attention": 2.0}}),
        ("bandwidth", "1.5", {"bandwidth": 1.5}),
        ("sms", "64", {"sms": 64}),
        ("split", "", {"split": "longest"}),
    ],
)
def test_a_form_asks_for_a_change(name, value, change):
    assert change_of(name, value) == change


@pytest.mark.parametrize(("name", "value"), [("faster", "attention"), ("sms", "many"), ("bandwidth", "x"), ("none", "")])
def test_a_form_that_asks_for_none(name, value):
    with pytest.raises(MkvizError) as error:
        change_of(name, value)
    assert error.value.remedy and (name == "none" or CHANGES[name].like in error.value.remedy)


def test_diff_of_the_same_steps_says_so_and_of_others_adds_up():
    slow = step_of(chain(), 2, [(0, 0, 0, 0, 900, 920), (1, 1, 1000, 1100, 1300)], end=1300)
    reading = Reading.of_source(source(waits(), slow))
    with pytest.raises(MkvizError, match="the same steps"):
        of_diff(reading, reading)
    found = of_diff(reading.only("0"), reading.only("worst"))
    assert found.answer.startswith(
        "step 0 (1.00 µs) → step 1 (1.30 µs): +300 ns, +30.0%; the largest change is compute up, +300 ns"
    )
    assert found.figures["change"] == 300


def test_a_table_in_html_escapes_and_leads():
    table = Table({"op": "", "time": "ns"}, [["<b>", 1500], ["q", None]], [(3, 7), (3, -1)])
    text = table_html("a & b", table, lambda step, task: f"?pin={step}.{task}&x=1")
    assert "<b>" not in text and "&lt;b&gt;" in text and "a &amp; b" in text
    assert 'href="?pin=3.7&amp;x=1"' in text and "1.50 µs" in text and "<td >–</td>" in text
    assert "href" not in table_html("", replace(table, goes_to=[]), lambda step, task: "")


def test_of_very_many_steps_some_are_drawn_and_every_outlier():
    """10,001 steps: each third one; of 3 outliers all; the legend says so."""
    ns, marked = np.full(10_001, 500.0), np.zeros(10_001, bool)
    ns[[7, 8, 9000]], marked[[7, 8, 9000]] = 900.0, True
    drawn = plots.points(np.arange(10_001), ns, marked, [], plots.Head("times", "recorded"), False)
    items = {item.label.value: item.renderers[0].data_source.data["x"] for item in drawn.legend[0].items}
    assert list(items) == ["steps (1 of 3)", "outliers"]
    assert len(items["steps (1 of 3)"]) == -(-9998 // 3) and list(items["outliers"]) == [7, 8, 9000]


def test_every_definition_that_is_named_is_there():
    document = (Path(__file__).parents[2] / "docs" / "analyses.md").read_text(encoding="utf-8")
    for analysis in ANALYSES.values():
        assert f"\n## {analysis.section}\n" in document, analysis.section


def test_figures_stay_with_their_units():
    assert prose("20.4 % of 602 µs, 2 GB < 3 GiB") == "20.4&nbsp;% of 602&nbsp;µs, 2&nbsp;GB &lt; 3&nbsp;GiB"
