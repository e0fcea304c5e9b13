"""Which steps words name, and which of them are read."""

import numpy as np
import pytest
from step_makers import step_of, store_of_steps

from mkviz import reading
from mkviz.errors import MkvizError
from mkviz.graph import GraphBuilder
from mkviz.reading import Reading


def graph():
    builder = GraphBuilder("g", ("op",))
    builder.task("op")
    return builder.build()


def steps(*ends, lost=()):
    """A source of steps of one task each that ends at these ns; those at ``lost`` lost a record."""
    g = graph()
    made = [step_of(g, 1, [(0, 0, 0, 0, end)], end=end, lost=int(i in lost)) for i, end in enumerate(ends)]
    return store_of_steps(*made)


@pytest.mark.parametrize(
    ("text", "numbers", "words"),
    [
        ("", [0, 1, 2, 3, 4], "all 5 steps"),
        (" all ", [0, 1, 2, 3, 4], "all 5 steps"),
        ("3", [3], "step 3"),
        ("1-3", [1, 2, 3], "3 steps, 1 to 3"),
        ("1–3", [1, 2, 3], "3 steps, 1 to 3"),
        ("3-99", [3, 4], "2 steps, 3 to 4"),
        ("worst", [3], "step 3, the slowest"),
        ("Median", [4], "step 4, of median time"),
    ],
)
def test_words(text, numbers, words):
    read = Reading.of_source(steps(100, 90, 300, 400, 200), text)
    assert list(read.steps) == numbers and read.words == words and not read.notes


@pytest.mark.parametrize("text", ["x", "3-1", "12", "-", "1-x", "0.5"])
def test_words_that_name_none(text):
    with pytest.raises(MkvizError) as error:
        Reading.of_source(steps(100, 90), text)
    assert error.value.remedy


def test_the_one_step_is_of_median_time_among_those_asked_for():
    source = steps(100, 90, 300, 400, 200)
    assert Reading.of_source(source).one == 4  # 200 of 90, 100, 200, 300, 400
    assert Reading.of_source(source, "0-2").one == 0 and Reading.of_source(source, "3").one == 3
    assert Reading.of_source(source).worst == 3


def test_steps_that_lost_records_are_neither_the_one_nor_the_worst():
    source = steps(100, 90, 900, lost=(2,))
    assert Reading.of_source(source).one == 1 and Reading.of_source(source).worst == 0
    assert Reading.of_source(source, "2").one is None
    with pytest.raises(MkvizError, match="the worst step cannot be told"):
        Reading.of_source(steps(100, lost=(0,)), "worst")


def test_no_steps():
    from mkviz.store import LiveStore

    with pytest.raises(MkvizError, match="no steps yet"):
        Reading.of_source(LiveStore())


def test_of_many_records_the_newest_steps_are_read(monkeypatch, tmp_path):
    monkeypatch.setattr(reading, "MOST_RECORDS", 3)
    source = steps(1, 2, 3, 4, 5)
    read = Reading.of_source(source)
    assert list(read.steps) == [2, 3, 4] and len(read.times.times) == 5
    assert read.notes == ["records are read of the newest 3 of 5 steps, 2 to 4"]
    assert list(Reading.of_source(source, "0-1").steps) == [0, 1]
    monkeypatch.setattr(reading, "MOST_RECORDS", 0)  # one step at least
    assert list(Reading.of_source(source).steps) == [4]


def test_a_trace_reads_like_a_source(tmp_path):
    from mkviz.trace import Trace, TraceWriter

    source = steps(100, 90, 300)
    with_writer = TraceWriter(tmp_path / "a.mkt", device="made by hand", kind="simulated", command="test")
    snapshot = source.snapshot()
    for key, pair in snapshot.graphs.items():
        with_writer.graph(key, *pair)
    from mkviz.step_records import steps_of

    for info, records in zip(snapshot.infos, steps_of(snapshot), strict=True):
        with_writer.step(info, records.events)
    with_writer.close()
    for text in ("", "worst", "0-1"):
        a, b = Reading.of_source(Trace.open(tmp_path / "a.mkt"), text), Reading.of_source(source, text)
        np.testing.assert_array_equal(a.steps, b.steps)
        assert (a.words, a.one, a.worst) == (b.words, b.one, b.worst)
