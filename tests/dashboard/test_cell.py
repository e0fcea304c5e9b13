"""Views as objects: what a notebook's cell shows, and that they answer the browser's half of their channel."""

import asyncio
import json
import sys
import time
from threading import Thread, get_ident
from unittest.mock import Mock

import numpy as np
import panel as pn
import pytest
from replay_generator import ReplayGenerator

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
    builder.task("mul", raises=[done], bytes=3000)
    builder.task("add", waits=[done], bytes=3000)
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
    return view.figure


def told(view, kind):
    """One of the channel's models: view, command, tip, frame."""
    return getattr(view.panels.timeline, kind)


def command(view, name, x=0.0, y=0.0, text=""):
    told(view, "command").data = {"n": [1], "name": [name], "x": [x], "y": [y], "text": [text]}


def look(view, x0, x1, n=1):
    """The browser says that it shows x0 to x1 µs."""
    model, attribute, value = seen(view, x0, x1, n)
    setattr(model, attribute, value)


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


class Shown:
    """A view as the value of a cell: its ``html``; ``hear`` a message of the browser; ``changes``: (model, attribute) sent."""

    def __init__(self, view):
        (bundle, _), layout = view.layout._repr_mimebundle_(), view.layout
        self.html = bundle["text/html"]
        (ref,) = layout._models
        comm, self.client = layout._comms[ref]
        self.sent = []
        comm._comm, comm.send = True, lambda data=None, metadata=None, buffers=(): self.sent.append(data)
        self.client._on_error = self.failed = Mock()

    def hear(self, *changes):
        """All in one message: (model, attribute, new value)."""
        events = [{"kind": "ModelChanged", "model": {"id": m.id}, "attr": attr, "new": new} for m, attr, new in changes]
        header = {"msgid": "1", "msgtype": "PATCH-DOC"}
        self.client._handle_msg({"header": header, "metadata": {}, "content": {"events": events}, "_buffers": {}})
        self.failed.assert_not_called()

    @property
    def changes(self):
        bodies = (json.loads(data) for data in self.sent if data)
        return [(e["model"]["id"], e["attr"]) for b in bodies for e in b.get("events", ()) if "attr" in e]


def seen(view, x0, x1, n=1):
    """What the browser says of the range that it shows (µs), as a change of a model."""
    return told(view, "view"), "data", {
        "x0": [x0], "x1": [x1], "width": [800], "height": [300], "follow": [0],
        "moves": list(told(view, "frame").data["moves"]), "n": [n],
    }  # fmt: skip


def test_all_of_a_message_is_heard_and_answered_with_what_it_led_to(trace):
    """Bokeh's models reach a notebook only by a push; and no change goes back to where it was made."""
    view = mkviz.timeline(trace)
    shown = Shown(view)
    theme = {"n": [1], "name": ["theme"], "x": [0], "y": [0], "text": ["dark"]}
    shown.hear((view.panels.timeline.x_range, "start", 0.34), (told(view, "command"), "data", theme), seen(view, 0.34, 0.36))
    assert view.session.look.dark and (view.session.x0, view.session.x1) == pytest.approx((340, 360))
    bars = columns(view, "left", "right", "y", "color")
    assert bars.data["left"].tolist() == [0.35]  # the other lies outside now
    answered = shown.changes
    for model, attribute in ((told(view, "frame"), "data"), (bars, "data"), (figure(view), "background_fill_color")):
        assert (model.id, attribute) in answered
    for model, attribute in ((told(view, "view"), "data"), (told(view, "command"), "data"), (figure(view).x_range, "start")):
        assert (model.id, attribute) not in answered


def test_a_page_opened_anew_is_sent_what_it_has_not_seen(trace):
    view = mkviz.timeline(trace)
    frames = []
    for n in (1, 2, 3, 1, 2):  # the page counts what it says
        look(view, 0.1, 0.2, n)
        frames.append(view.session.seq)
    assert np.diff(frames).tolist() == [0, 0, 1, 0]


def test_nothing_is_to_be_had_from_outside(trace):
    """Neither at first nor for a pane that was written anew, whose style sheets Panel would name by their place on its CDN."""
    view = mkviz.timeline(trace)
    shown = Shown(view)
    view.panels.details.param.update(object="<b>new</b>", visible=True)
    assert any("new" in data for data in shown.sent)
    assert not any(word in text for text in (shown.html, *shown.sent) for word in ("https://cdn", "http://cdn", "unpkg.com"))
    assert "pn-loading" in shown.html  # they are part of the view


def test_the_browser_is_heard_on_the_thread_that_made_the_view(trace, monkeypatch):
    """A kernel hears comm messages on threads of their own; two threads would mix up the pieces of what they send."""
    heard, output = [], sys.stdout
    monkeypatch.setattr(cell.CellColumn, "_on_msg", lambda self, *message: heard.append((get_ident(), message[-1]["k"])))

    async def notebook():
        clients = [Shown(mkviz.timeline(trace)).client for _ in range(2)]
        clients[0]._handle_msg({"k": 1})
        subshells = [Thread(target=lambda c=c: [c._handle_msg({"k": k}) for k in (2, 3)]) for c in clients]
        for subshell in subshells:
            subshell.start()
        assert len(heard) == 1  # not before the cell has run
        while any(subshell.is_alive() for subshell in subshells):
            await asyncio.sleep(0.01)

    asyncio.run(notebook())
    assert {thread for thread, _ in heard} == {get_ident()} and sorted(k for _, k in heard) == [1, 2, 2, 3, 3]
    assert sys.stdout is output


def test_the_scripts_that_draw_are_where_they_were_when_their_cell_is_run_again(trace, monkeypatch):
    loads, cells = [], iter(["first", "second", "first", "first"])
    monkeypatch.setattr(cell, "running_cell", lambda: next(cells))
    monkeypatch.setattr(cell.Cell, "_scripts_in", None)
    monkeypatch.setattr(pn.extension, "_loaded", False)

    class Extension:
        _loaded = False

        def __call__(self, **how):
            loads.append(how)
            Extension._loaded = True

    monkeypatch.setattr(cell.pn, "extension", Extension())
    counts = []
    for _ in range(4):
        mkviz.timeline(trace)
        counts.append(len(loads))
    assert counts == [1, 1, 2, 3] and all(how["inline"] for how in loads)


def value(view, time):
    """What the hover says at a time in µs."""
    command(view, "hover", x=time)
    return told(view, "tip").data["html"][0]


@pytest.mark.parametrize("name", ["occupancy", "waits", "tails", "bandwidth"])
@pytest.mark.parametrize("as_part", [False, True])
def test_each_strip_is_a_view(trace, name, as_part):
    """From 0 to 300 ns SM 0 computes and SM 1 waits; then SM 0 has no task left; from 350 to 500 ns SM 1 computes."""
    view = getattr(mkviz.timeline(trace), name) if as_part else getattr(mkviz, name)(trace)
    assert view.title.text.startswith("recorded (cpu) · ")
    first, last = {
        "occupancy": ("1.0", "1.0"),
        "waits": ("1.0", "0.0"),
        "tails": ("0.0", "1.0"),
        "bandwidth": ("10 GB/s", "20 GB/s"),
    }[name]
    assert f"<b>{first}</b>" in value(view, 0.1) and f"<b>{last}</b>" in value(view, 0.45)
    assert value(view, 5.0) == ""
    timeline = view.panels.timeline
    assert timeline._open.args["bands"] == [timeline.band] and timeline.band in view.figure.center  # of a measured range
    assert mkviz.timeline(trace).occupancy is not None and figure(view).xaxis.visible


def test_views_of_one_timeline_move_together_and_others_do_not(trace):
    view, other = mkviz.timeline(trace), mkviz.timeline(trace)
    strip = view.occupancy
    assert strip is view.occupancy
    before = (other.session.x0, other.session.x1)
    look(view, 0.1, 0.2)
    assert (strip.session.x0, strip.session.x1) == pytest.approx((100, 200))
    moves = strip.session.moves
    look(strip, 0.1, 0.2)  # the browser of the strip has obeyed: nothing goes back and forth
    assert strip.session.moves == moves
    look(strip, 0.3, 0.5)
    assert (view.session.x0, view.session.x1) == pytest.approx((300, 500))
    assert told(view, "frame").data["x0"] == [pytest.approx(0.3)]
    assert (other.session.x0, other.session.x1) == before
    assert view.bandwidth.session.x0 == pytest.approx(300)  # made later, it begins where the others are


def test_the_notebooks_theme_is_taken_over(trace):
    for view in (mkviz.timeline(trace), mkviz.occupancy(trace)):
        assert figure(view).background_fill_color == "#ffffff"
        command(view, "theme", text="dark")
        assert figure(view).background_fill_color == "#14181f" and figure(view).title.text_color == "#7db7f5"


def test_each_view_has_a_document_to_itself(trace):
    """Two of one process share no model, or a notebook that shows both would mix them up."""
    view = mkviz.timeline(trace)
    views = [view, view.occupancy, view.waits, view.tails, view.bandwidth, mkviz.timeline(trace), mkviz.occupancy(trace)]
    models = [set(v.layout.get_root().references()) for v in views]
    for i, mine in enumerate(models):
        assert not any(mine & theirs for theirs in models[:i])


def test_a_generator_live(monkeypatch):
    generator = ReplayGenerator(pace=0.001)
    view = mkviz.live(generator, "Write a function")
    pushed = []
    monkeypatch.setattr(cell.pn.io, "push_notebook", pushed.append)
    said = []
    monkeypatch.setattr(view.panels.chat, "_send_msg", said.append)
    assert view.session.generation is None  # not before its text pane is there
    view.panels.chat._handle_msg({"type": "shown"})
    deadline = time.monotonic() + 60
    while (view.session.generation.tokens < 5 or len(said) < 2) and time.monotonic() < deadline:
        view.tick()
        time.sleep(0.02)
    newest = lambda: generator.source.snapshot().extent[1]  # noqa: E731
    before = newest()
    view.tick()
    assert before <= view.session.x1 <= newest()
    assert view.session.source is generator.source and view.session.follow
    assert figure(view).title.text.startswith("simulated (test replay)")
    assert len(pushed) > 1
    text = "".join(piece[0] for message in said if message["type"] == "append" for piece in message["pieces"])
    assert text.startswith("def reverse(items):")
    view.close()
    while not view.session.generation.over and time.monotonic() < deadline:
        time.sleep(0.02)
    assert view.session.generation.state == "stopped"


def test_what_is_no_trace_is_refused(tmp_path):
    with pytest.raises(MkvizError, match=r"nothing\.mkt"):
        mkviz.timeline(tmp_path / "nothing.mkt")


def test_other_names_are_not_there():
    with pytest.raises(AttributeError, match="timelime"):
        mkviz.timelime  # noqa: B018
