"""The timeline as an object: what a notebook's cell shows, and that it answers the browser's half of its channel."""

import numpy as np
import pytest

import mkviz
from mkviz.dashboard import cell
from mkviz.errors import MkvizError
from mkviz.graph import GraphBuilder
from mkviz.protocols import StepInfo
from mkviz.record import EVENT
from mkviz.schedule import Schedule
from mkviz.store import store_of
from mkviz.trace import Trace, TraceWriter


def recording():
    """Two tasks on two SMs: mul from 100 to 400 ns on SM 0; add waits for it and runs from 450 to 600 ns on SM 1."""
    builder = GraphBuilder("two", ["mul", "add"])
    done = builder.counter("done")
    builder.task("mul", raises=[done])
    builder.task("add", waits=[done])
    events = np.zeros(2, EVENT)
    for name, values in {"task": (0, 1), "sm": (0, 1), "claim": (100, 100), "ready": (100, 420), "begin": (100, 450),
                         "end": (400, 600), "publish": (410, 600)}.items():  # fmt: skip
        events[name] = values
    return builder.build(), Schedule.from_lists([[0], [1]]), events


@pytest.fixture
def trace(tmp_path):
    graph, schedule, events = recording()
    with TraceWriter(tmp_path / "two.mkt", kind="measured", device="cpu") as writer:
        writer.graph(0, graph, schedule)
        writer.step(StepInfo(0, 0, 100, 600), events)
    return Trace.open(tmp_path / "two.mkt")


def figure(view):
    return view[0].object


def columns(view, *names):
    """The data source of the figure that has these columns."""
    return next(r.data_source for r in figure(view).renderers if set(names) <= set(r.data_source.data))


def test_it_shows_the_tasks_of_a_trace_and_where_they_come_from(trace):
    view = mkviz.timeline(trace)
    assert figure(view).title.text.startswith("recorded (cpu) · two · 2 SMs")
    bars = columns(view, "left", "right", "y", "color").data
    np.testing.assert_allclose(sorted(zip(bars["left"], bars["right"], strict=True)), [(0, 0.3), (0.35, 0.5)])  # µs from origin
    waits = next(
        r.data_source.data for r in figure(view).renderers if set(r.data_source.data) == {"left", "right", "y"} and
        len(r.data_source.data["left"])
    )  # fmt: skip
    np.testing.assert_allclose([*waits["left"], *waits["right"]], [0, 0.32])


@pytest.mark.parametrize("of", ["path", "text", "source"])
def test_a_path_or_a_source_will_do(trace, of):
    graph, schedule, events = recording()
    source = store_of(events, {0: (graph, schedule)}, label="simulated two", kind="simulated")
    view = mkviz.timeline({"path": trace.path, "text": str(trace.path), "source": source}[of])
    assert len(columns(view, "left", "right", "y", "color").data["left"]) == 2
    assert figure(view).title.text.startswith("simulated two" if of == "source" else "recorded (cpu)")


def test_a_new_view_is_answered_and_pushed(trace, monkeypatch):
    """Raw Bokeh models reach a notebook only by a push."""
    pushed = []
    monkeypatch.setattr(cell.pn.io, "push_notebook", pushed.append)
    view = mkviz.timeline(trace)
    channel = {tuple(sorted(m.data)): m for m in figure(view).tags}
    channel["follow", "height", "moves", "n", "width", "x0", "x1"].data = {
        "x0": [0.34], "x1": [0.36], "width": [800], "height": [300], "follow": [0], "n": [1],
        "moves": next(m.data["moves"] for names, m in channel.items() if "seq" in names and "moves" in names),
    }  # fmt: skip
    assert pushed == [view]
    assert columns(view, "left", "right", "y", "color").data["left"].tolist() == [0.35]  # the other lies outside now


def test_what_is_no_trace_is_refused(tmp_path):
    with pytest.raises(MkvizError, match=r"nothing\.mkt"):
        mkviz.timeline(tmp_path / "nothing.mkt")


def test_other_names_are_not_there():
    with pytest.raises(AttributeError, match="timelime"):
        mkviz.timelime  # noqa: B018
