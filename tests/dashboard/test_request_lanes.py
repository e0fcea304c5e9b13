"""Request lanes, the table of requests and rows in words, of requests made up by hand."""

import numpy as np
import pytest

from mkviz import lod, palette
from mkviz.dashboard import probe, request_words
from mkviz.dashboard.hub import Hub
from mkviz.dashboard.panels import Panels
from mkviz.dashboard.request_lanes import SHOWN, RequestLanes, shown
from mkviz.dashboard.request_table import requests
from mkviz.dashboard.scene import Look, Scene
from mkviz.dashboard.session import Session
from mkviz.graph import GraphBuilder
from mkviz.protocols import RequestInfo, Row, StepInfo, TokenInfo
from mkviz.record import EVENT
from mkviz.schedule import Schedule
from mkviz.store import LiveStore


def store_of(changes, tokens=(), steps=4, ahead=0):
    """Steps 0, 1, … from 1000, 2000, … ns, 600 ns each; step n has rows of requests n and n + 1."""
    builder = GraphBuilder("g", ("a",))
    builder.task("a")
    store = LiveStore("measured (cpu)")
    store.graph(0, builder.build(), Schedule.from_lists([[0]]))
    for n in range(steps):
        events = np.zeros(1, EVENT)
        begin = 1000 * (n + 1)
        for name in ("claim", "ready", "begin"):
            events[name] = begin
        events["end"] = events["publish"] = begin + 600
        events["step"] = n
        rows = [Row(0, n, 9, 1, "decode"), *(Row(i, n + 1, i, 1, "prefill") for i in (1, 2, 3))]
        store.step(StepInfo(n, 0, begin, begin + 600, rows), events)
    for request, state, time in changes:
        store.request(
            RequestInfo(request, state, time + ahead, 5, 2, "p", "length" if state == "done" else "", f"<i>{request}")
        )
    for request, index, step, time in tokens:
        store.token(TokenInfo(request, index, 1, "t", step, time + ahead))
    return store


def scene_of(store, x0=0.0, x1=4000.0):
    snapshot = store.snapshot()
    return Scene(snapshot, lod.GraphTables(snapshot), Look(), x0, x1, 100)


TWO = [(0, "queued", 900), (0, "prefill", 1100), (1, "queued", 1500), (0, "decode", 1700), (1, "prefill", 2000),
       (1, "preempted", 2600), (0, "failed", 3650), (1, "prefill", 3700)]  # fmt: skip


@pytest.mark.parametrize("ahead", [0, 5 * 10**18])
def test_lanes(ahead):
    """The origin is 1000.  On a GPU's clock request times are ``ahead``; its only token came with the end of its step."""
    lanes = RequestLanes(Panels().timeline.x_range)
    lanes.update(scene_of(store_of(TWO, [(0, 0, 0, 1600)], ahead=ahead)))
    spans = lanes.spans.data
    grey, orange, blue, red = palette.STATES[False].values()
    assert list(zip(spans["left"], spans["right"], spans["y"], spans["colour"], strict=True)) == [
        (-0.1, 0.1, 0.5, grey), (0.1, 0.7, 0.5, orange), (0.7, 2.65, 0.5, blue),
        (0.5, 1.0, 1.5, grey), (1.0, 1.6, 1.5, orange), (1.6, 2.7, 1.5, red),
        (2.7, 3.6, 1.5, orange),  # it runs: up to the end of the last step
    ]  # fmt: skip
    assert lanes.ends.data == {"x": [2.65], "y": [0.5]}
    assert lanes.root.visible and lanes.root.yaxis[0].major_label_overrides == {0.5: "req 0", 1.5: "req 1"}
    assert "2 in view" in lanes.legend.object and "not shown" not in lanes.legend.object
    assert [lanes.at(y) and lanes.at(y).request for y in (-0.1, 0.1, 1.9, 2.1)] == [None, 0, 1, None]


def test_hidden_where_there_is_nothing_to_tell_apart():
    lanes = RequestLanes(Panels().timeline.x_range)
    for changes, visible in (([], False), (TWO[:2], False), (TWO, True)):
        lanes.update(scene_of(store_of(changes)))
        assert (lanes.root.visible, lanes.legend.visible) == (visible, visible)
    lanes.clear()
    assert not lanes.root.visible and not lanes.legend.visible


def test_the_newest_in_view_get_lanes():
    many = [(n, state, 1000 + 100 * n + later) for n in range(20) for state, later in (("queued", 0), ("done", 50))]
    found, count, _ = shown(store_of(many).snapshot(), 0, 4000)
    assert [t.request for t in found] == list(range(12, 20)) and count == 20 and SHOWN == 8
    found, count, _ = shown(store_of(many).snapshot(), 250, 500)  # of 2 to 4: 1 was over at 150, 5 begins with the end
    assert [t.request for t in found] == [3, 4] and count == 2
    lanes = RequestLanes(Panels().timeline.x_range)
    lanes.update(scene_of(store_of(many)))
    assert "the newest 8 of 20 in view, 12 not shown" in lanes.legend.object


def test_tip():
    store = store_of(TWO, [(0, 0, 0, 1650), (0, 1, 1, 1950), (0, 2, 2, 2550)])
    session = Session(Hub({}), Panels())
    session.scene = scene_of(store)
    html = session.panels.requests._tip(session, 0)
    assert "<b>request 0: failed</b>" in html and "&lt;i&gt;0" in html and "<i>" not in html  # a label is anybody's words
    assert "<th>queued</th><td>200 ns</td>" in html and "<th>first token after</th><td>750 ns</td>" in html
    assert "<th>between tokens</th><td>median 300 ns</td>" in html and "preempted" not in html
    assert "<th>preempted</th><td>1 ×, 1.10 µs</td>" in session.panels.requests._tip(session, 1)
    assert session.panels.requests._tip(session, 77) == ""


def test_a_click_leads_to_the_first_step():
    hub = Hub({})
    hub.add_source("s", store_of(TWO))
    session = Session(hub, Panels())
    session.panels.connect(session)
    session.choose("s")
    lanes = session.panels.requests
    lanes._commanded(session, {"name": ["tap"], "x": [0], "y": [1.5]})
    assert (session.x0, session.x1) == (-12.0, 612.0)  # request 1: step 0 with 2 % on either side
    lanes._commanded(session, {"name": ["tap"], "x": [0], "y": [7.5]})
    assert (session.x0, session.x1) == (-12.0, 612.0)
    lanes.go_to(session, 99)
    assert session.panels.chat.note == "no step of request 99 is kept any more"


def test_table():
    store = store_of([*TWO, (2, "queued", 4900)], [(0, 0, 0, 1650), (0, 1, 1, 1950), (0, 2, 2, 2550), (1, 0, 2, 2550)])
    table = requests(scene_of(store), 0, 4000)
    assert table.rows == [
        ["2", "queued", "5", "2", "0 ns", "–", "–", "–"],
        ["1", "prefill", "5", "2", "500 ns", "1.05 µs", "–", "–"],
        ["0", "failed", "5", "3", "200 ns", "750 ns", "300 ns", "600 ns"],
    ]
    assert table.goes_to == [(1, -1), (0, -1), (0, -1)]
    assert table.caption == "3 requests · TTFT p50 750 ns, p99 1.05 µs · ITL p50 300 ns, p99 600 ns"
    assert [row[0] for row in requests(scene_of(store), 0, 400).rows] == ["0"]
    assert requests(scene_of(store), -900, -200).caption == "no request in it"


def test_rows_in_words():
    def words(*rows):
        return request_words.rows_words(StepInfo(0, 0, 0, 0, [Row(i, r, 0, 0, kind) for i, (r, kind) in enumerate(rows)]))

    assert words() == "" and words((4, "decode"), (5, "decode")) == "decode of req 4, 5"
    assert words((4, "decode"), (7, "prefill"), (7, "prefill")) == "decode of req 4 · 2 rows of prefill of req 7"
    assert words(*((n, "decode") for n in range(9))) == "decode of req 0, 1, 2, 3, 4, 5 and 3 more"
    scene = scene_of(store_of(()))
    facts = dict(probe.facts(scene, probe.hit(scene.snapshot, 1100, 0)))
    assert facts["rows"] == "decode of req 1 · 3 rows of prefill of req 2"


def test_a_server_opens_on_its_requests_unless_another_table_or_then_the_text_is_asked_for():
    hub = Hub({"one": lambda model=None: None})
    for name in ("server: a", "server: b", "trace: t"):
        hub.add_source(name, store_of(TWO))
    session = Session(hub, Panels())
    session.panels.connect(session)
    session.choose("trace: t")
    assert (session.tab, session.panels.tabs.chosen) == ("text", "text")
    session.choose("server: a")
    assert (session.tab, session.panels.tabs.chosen) == ("requests", "requests")
    assert session.panels.chat.empty.endswith("not by the server.")
    session.tabbed("tab", "text")
    session.choose("server: a")
    session.tick()
    assert session.tab == "text"
    session.tabbed("tab", "steps")
    assert session.panels.tabs.rows
    session.choose("server: b")
    assert (session.tab, session.panels.tabs.chosen) == ("steps", "steps")


def test_a_source_that_begins_anew_is_shown_anew():
    class Anew:
        run, words = 1, "The server is gone"

        def __init__(self, store):
            self.store = store

        def __getattr__(self, name):
            return getattr(self.store, name)

    hub = Hub({})
    source = Anew(store_of(TWO))
    hub.add_source("s", source)
    session = Session(hub, Panels())
    session.panels.connect(session)
    session.choose("s")
    session.tick()
    session.panels.show_stats(session)
    assert session.panels.timeline.title.text == "measured (cpu) · g · 1 SMs · The server is gone"
    session.pinned, session.paused = (0, 0), True
    first = session.scene.snapshot
    source.store, source.run = store_of((), steps=1), 2
    session.tick()
    assert session.pinned is None and not session.paused
    assert session.scene.snapshot is not first and len(session.scene.snapshot.steps) == 1
    assert not session.panels.requests.root.visible


def test_a_live_source_whose_records_can_be_read_no_more_says_so():
    hub, empty, store = Hub({}), LiveStore(), store_of(())
    hub.add_source("empty", empty)
    hub.add_source("some", store)
    session = Session(hub, Panels())
    session.panels.connect(session)
    said = "Nothing new is shown: records can be read no more (OSError: gone)"
    session.choose("empty")
    empty.failed("OSError: gone")
    session.tick()
    assert session.panels.message.text == said
    session.choose("some")
    session.tick()
    session._last.clear()  # it is time for the slower parts
    store.failed("OSError: gone")
    session.tick()
    assert session.panels.timeline.title.text == f"measured (cpu) · g · 1 SMs · {said}"
