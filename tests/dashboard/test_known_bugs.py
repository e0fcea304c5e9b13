"""Eighteen kinds of bug that pages of this sort have had, in bokeh, panel, holoviews, dask's dashboard, memray and viztracer.

What guards each here; ``here`` is this file, ``pages`` test_page_known_bugs.py:

== ================================================  =================================================================
 1 bokeh#14843: a million glyphs, seconds a pan      here: test_a_frame_is_bounded
 2 bokeh#13314: columns of unequal length            here: test_columns_stay_equally_long (nothing is streamed or patched)
 3 bokeh#7374, #7144, holoviews#2255: message over   here: test_a_frame_is_bounded; conftest.py: no message of any page
   the limit closes the socket                       reaches 1 MB
 4 bokeh#8583: the limit is fixed in notebooks       as 3: a cell shows the same frames
 5 panel#8189, #8607: sessions are never freed       pages: test_a_closed_page_is_let_go; benchmarks/dashboard.py sessions
 6 holoviews#6990, #3421: streams stay registered    here: test_no_holoviews_in_the_page
 7 holoviews#6672: storms of range events            pages: test_a_storm_of_notches_becomes_few_messages
 8 holoviews#3746: stale data, queued                here: test_a_slow_page_is_sent_less_and_then_the_newest
 9 bokeh#11477, #7992: closures hold data            pages: test_a_closed_page_is_let_go, after clicks, hovers and a generation
10 panel#5072: models touched by other threads       here: test_threads_touch_no_models
11 panel#8693, #8137: ticks registered twice,        pages: test_each_page_ticks_once_in_a_document_of_its_own
   documents mixed up
12 panel#6584: reconnecting                          test_page_live.py: test_the_server_is_killed_and_comes_back;
                                                     test_page_look.py: test_search_colours_and_state_survive_a_reload
13 bokeh#13782, #7832, #15063: ns cut off, labels    test_lod.py: test_long_times_stay_exact;
   that jump or are equal                            here: test_ns_stay_exact_in_the_figure;
                                                     pages: test_labels_of_the_time_axis
14 bokeh#13416, holoviews#3373: None, NaN, images    here: test_an_image_of_one_value_shows
   of one value
15 bokeh#10804, panel#2915, #6592: export without    test_page_export.py: test_it_keeps_the_theme_and_changes_it;
   its theme, of WebGL                               test_exports.py: test_a_picture_shows_ops_in_their_colours;
                                                     here: test_a_frame_is_bounded (no WebGL)
16 distributed#4055, #5087: work without a viewer    here: test_nothing_new_is_nothing_sent
   or without news
17 distributed#2979, #2501: too many items; a tick   here: test_a_frame_is_bounded, test_a_tick_that_fails_is_not_the_last
   that dies
18 memray#987, viztracer#308: exports too large to   test_exports.py: test_too_many_tasks_for_one_page,
   open                                              test_numbers_of_every_width_come_back; test_page_export.py:
                                                     test_each_kind_says_its_size_and_is_saved_whole
== ================================================  =================================================================
"""

import subprocess
import sys
import threading

import numpy as np
import pytest
from bokeh.document import Document
from bokeh.models import ColumnDataSource, Plot
from replay_generator import ReplayGenerator, layered_graph, play

from mkviz.dashboard.hub import Hub
from mkviz.dashboard.panels import Panels
from mkviz.dashboard.scene import RECT_LIMIT
from mkviz.dashboard.session import IN_FLIGHT, Session
from mkviz.graph import GraphBuilder
from mkviz.protocols import StepInfo
from mkviz.record import EVENT
from mkviz.schedule import Schedule
from mkviz.store import LiveStore

WAIT = 60  # s; what has not come by then never will


def write(store, count, lanes=132, layers=40):
    """``count`` steps of a layered graph, one after the other."""
    graph, schedule = layered_graph(layers, lanes)
    store.graph(0, graph, schedule)
    events, clock = play(graph, schedule, np.random.default_rng(0), 0), 0
    for number in range(count):
        now = events.copy()
        for name in ("claim", "ready", "begin", "end", "publish"):
            now[name] += clock
        now["step"] = number
        end = int(now["publish"].max())
        store.step(StepInfo(number, 0, clock, end), now)
        clock = end + 1000


def session_of(store, hub=None):
    hub, panels = hub or Hub(openers={}), Panels()
    hub.add_source("one", store)
    session = Session(hub, panels)
    panels.connect(session)
    session.choose("one")
    return session


def look(session, x0, x1, width=1000):
    """The browser's half of the channel: it shows [x0, x1] ns and has drawn all frames."""
    session.acknowledged({"seq": [session.seq]})
    session.viewed({"x0": [x0 / 1000], "x1": [x1 / 1000], "width": [width], "height": [500], "follow": [0],
                    "moves": [session.moves]})  # fmt: skip


def models(session, kind):
    """Of the figures, found once: that takes Bokeh a while."""
    if not hasattr(session, "found"):
        figures = [session.panels.timeline, session.panels.minimap, *session.panels.strips]
        session.found = {m for figure in figures for m in figure.root.references()}
    return [m for m in session.found if isinstance(m, kind)]


def columns(session):
    return [source.data for source in models(session, ColumnDataSource)]


@pytest.fixture(scope="module")
def store():
    """A million records are not needed to be more than a frame may hold: 12 steps of 3,882 tasks."""
    store = LiveStore()
    write(store, 12)
    store.close()
    return store


@pytest.mark.parametrize("width", [1440, 3840])
def test_a_frame_is_bounded(store, width):
    session = session_of(store)
    lo, hi = store.snapshot().extent
    kinds = set()
    for share in (1, 0.3, 0.1, 0.02, 0.001):
        look(session, lo, lo + share * (hi - lo), width)
        glyphs = max(len(values) for data in columns(session) for name, values in data.items() if name != "image")
        assert glyphs <= max(RECT_LIMIT, width)
        size = sum(np.asarray(values).nbytes if name != "color" else 8 * len(values) for data in columns(session)
                   for name, values in data.items())  # fmt: skip
        assert size < 1_000_000
        kinds.add(bool(len(session.panels.timeline.image.data["image"])))
    assert kinds == {True, False}  # both ways of drawing were seen
    assert {figure.output_backend for figure in models(session, Plot)} == {"canvas"}
    assert {figure.lod_threshold for figure in models(session, Plot)} == {None}


def test_columns_stay_equally_long(store):
    session = session_of(store)
    lo, hi = store.snapshot().extent
    seen = 0

    def check():
        for data in columns(session):
            assert len({len(values) for values in data.values()}) <= 1
        return sum(len(values) for data in columns(session) for values in data.values())

    for share in (1, 0.02, 0.3, 0.001):
        look(session, lo, lo + share * (hi - lo))
        session.commanded({"name": ["tap"], "x": [(lo + 0.0005 * (hi - lo)) / 1000], "y": [100.5], "text": [""]})
        seen = max(seen, check())
        session.commanded({"name": ["key"], "x": [0], "y": [0], "text": ["Escape"]})
        check()
    session.panels.clear()
    assert check() < seen


def test_no_holoviews_in_the_page():
    program = (
        "import sys; from mkviz.dashboard.hub import Hub; from mkviz.dashboard.page import page; page(Hub(openers={}));"
        "print([m for m in list(sys.modules) if m.split('.')[0] == 'holoviews'])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "[]", done.stderr


def test_a_slow_page_is_sent_less_and_then_the_newest():
    store = LiveStore()
    generator = ReplayGenerator(layers=1, pace=0)
    session = session_of(generator.source)
    for _ in range(20):
        generator._advance()
        session.tick()
    assert session.seq == IN_FLIGHT + 1
    session.acknowledged({"seq": [session.seq]})
    session.tick()
    assert session.seq == IN_FLIGHT + 2  # one frame for the seventeen steps in between
    assert session.x1 == generator.source.snapshot().extent[1]
    assert session.panels.timeline.frame.data["x1"] == [session.x1 / 1000]
    store.close()


def test_nothing_new_is_nothing_sent(store):
    session = session_of(store)
    events = listen(session)
    session.tick()
    lo, hi = store.snapshot().extent
    look(session, lo, hi)
    session._last = {}  # the slower parts are due
    session.tick()
    assert events
    events.clear()
    session._last = {}
    for _ in range(3):
        session.tick()
    assert events == []


def listen(session):
    """What the session's figures would send to their page."""
    document, events = Document(), []
    for figure in (session.panels.timeline, session.panels.minimap, *session.panels.strips):
        document.add_root(figure.root)
    document.on_change(events.append)
    return events


def test_threads_touch_no_models():
    generator = ReplayGenerator(layers=1, pace=0.001)
    session = session_of(generator.source, Hub({"replay": lambda model: generator}))
    session.tick()
    events, sent = listen(session), []
    session.panels.chat.param.watch(sent.append, list(session.panels.chat.param))
    session.panels.chat._send_msg = sent.append
    session.generate("go", "demo", 40)
    sent.clear()
    for thread in [t for t in threading.enumerate() if t.name == "mkviz-generation"]:
        thread.join(WAIT)
    assert session.generation.state == "done" and session.generation.tokens == 40
    assert events == [] and sent == []
    session.tick()
    assert events and any(message["type"] == "append" for message in sent if isinstance(message, dict))


def test_a_tick_that_fails_is_not_the_last(store, monkeypatch, caplog):
    session = session_of(store)
    monkeypatch.setattr(session.panels, "draw", lambda _: 1 / 0)
    session.go(0, 1000)
    session.tick()
    assert "ZeroDivisionError" in caplog.text
    monkeypatch.undo()
    session.go(0, 2000)
    session.tick()
    assert session.panels.timeline.frame.data["x1"] == [2.0]


def one_op(*spans):
    """A store of one lane and one op, tasks at these (begin, end) ns; the step begins at 0."""
    builder = GraphBuilder("one", ("only",))
    events = np.zeros(len(spans), EVENT)
    for task, (begin, end) in enumerate(spans):
        builder.task("only")
        events[task]["task"] = task
        for name, value in (("claim", begin), ("ready", begin), ("begin", begin), ("end", end), ("publish", end)):
            events[task][name] = value
    store = LiveStore("simulated", "simulated")
    store.graph(0, builder.build(), Schedule.from_lists([list(range(len(spans)))]))
    store.step(StepInfo(0, 0, 0, max(end for _, end in spans)), events)
    store.close()
    return store


def test_an_image_of_one_value_shows():
    store = one_op(*((10 * k, 10 * k + 10) for k in range(RECT_LIMIT + 1)))
    session = session_of(store)
    look(session, 0, 10 * (RECT_LIMIT + 1))
    (image,) = session.panels.timeline.image.data["image"]
    columns_inside = image[0][image.shape[1] // 4 + 2 : -image.shape[1] // 4 - 2]
    (value,) = set(columns_inside.tolist())
    mapper = session.panels.timeline.mapper
    assert (mapper.low, mapper.high, len(mapper.palette)) == (-0.5, 255.5, 256)  # never taken from the data
    assert len(mapper.palette[value]) == 7 or mapper.palette[value].lower().endswith("ff")  # opaque
    for data in columns(session):
        for name, values in data.items():
            assert not any(v is None for v in values)
            array = np.asarray(values)
            assert name == "line" or array.dtype.kind != "f" or np.isfinite(array).all()


def test_ns_stay_exact_in_the_figure():
    hour = 3_600_000_000_000
    session = session_of(one_op((0, 7), (hour + 1, hour + 6)))
    look(session, hour - 20, hour + 20)
    data = session.panels.timeline.rects.data
    task = int(np.argmax(data["left"]))
    assert data["left"][task] * 1000 - hour == pytest.approx(1, abs=0.001)
    assert (data["right"][task] - data["left"][task]) * 1000 == pytest.approx(5, abs=0.001)
