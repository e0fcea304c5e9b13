"""The tables of a step worked by hand (two_lanes), and where their rows lead."""

from types import SimpleNamespace

import pytest
from two_lanes import two_lanes

from mkviz.dashboard import tables
from mkviz.dashboard.hub import Hub
from mkviz.dashboard.panels import Panels
from mkviz.dashboard.session import Session


@pytest.fixture
def scene():
    return two_lanes()


def test_ops(scene):
    table = tables.ops(scene, 0, 1000)
    assert table.rows == [
        ["qkv", "2", "700 ns", "60.9 %", "0 B", "0.0"],  # 400 + 300 of 1150 ns
        ["attention", "1", "450 ns", "39.1 %", "4.0 KiB", "9.1"],  # 4096 bytes in 450 ns
    ]
    assert len(table.head) == 6 and not table.goes_to


def test_ops_of_a_part_count_what_lies_in_it(scene):
    assert tables.ops(scene, 350, 500).rows == [
        ["qkv", "1", "50 ns", "50.0 %", "0 B", "0.0"],
        ["attention", "1", "50 ns", "50.0 %", "455 B", "9.1"],  # a ninth of its bytes
    ]
    assert tables.ops(scene, 2000, 3000).rows == []


def test_waits(scene):
    table = tables.waits(scene, 0, 1000)
    # 300 to 420 exposed; published at 410 and, by the one before, 310
    row = ["attention · layer 3 · SM 1", "qkv of layer 3", "qkv · layer 3 · tile 0 on SM 0", "120 ns", "100 ns"]
    assert table.rows == [row] and table.goes_to == [(7, 2)]
    assert tables.waits(scene, 460, 1000).rows == []  # it had begun
    assert tables.waits(scene, 0, 310).rows == []  # it was not ready then, but began after it


def test_steps(scene):
    table = tables.steps(scene, 0, 1000)
    assert table.rows == [["7", "1.00 µs", "3", "0"]] and table.goes_to == [(7, -1)]
    assert tables.steps(scene, 1001, 2000).rows == []


def test_why(scene):
    """Backwards: nothing after 910; published at 910; attention worked from 450, ready since 420, claimed only then, 10 ns
    after qkv of SM 0 had published, so that its own SM was late since 300; before that qkv of tile 1."""
    table = tables.why(scene, 0, 1000)
    assert table.rows == [
        ["compute", "attention", "450 ns", "45.0 %"],
        ["compute", "qkv", "300 ns", "30.0 %"],
        ["overhead", "attention", "150 ns", "15.0 %"],
        ["tail", "", "90 ns", "9.0 %"],
        ["publish", "attention", "10 ns", "1.0 %"],
    ]
    assert table.goes_to == [(7, 2), (7, 1), (7, 2), (7, -1), (7, 2)]
    assert table.caption == "what held step 7, 1.00 µs"
    assert tables.why(scene, -5000, 1).rows == table.rows  # the middle lies before the step, which is the nearest
    assert tables.why(scene, 2000, 3000).rows == []


@pytest.fixture
def session(scene):
    hub, panels = Hub(openers={}), Panels()
    hub.add_source("two", SimpleNamespace(snapshot=lambda: scene.snapshot, label="two", kind="simulated"))
    session = Session(hub, panels)
    panels.connect(session)
    session.choose("two")
    return session


def test_a_row_pins_its_task(session):
    session.tabbed("tab", "waits")
    session.tabbed("row", 0)
    assert session.pinned == (7, 2)
    session.tabbed("row", 99)  # of a table that has shrunk meanwhile
    assert session.pinned == (7, 2)


def test_the_measured_range_goes_before_the_view(session):
    tabs = session.panels.tabs
    session.tabbed("tab", "ops")
    assert tabs.chosen == "ops" and len(tabs.rows) == 2 and tabs.caption.startswith("of the view")
    session.range = (500, 600)
    session.tabbed("tab", "ops")
    assert [row[0] for row in tabs.rows] == ["attention"] and tabs.caption == "of the measured range: 100 ns"


def test_another_source_is_an_order(session):
    """A page that had let go of one source follows the next."""
    session.go(0, 100)
    before = session.moves
    session.source_name = ""
    session.choose("two")
    assert session.moves > before and session.follow


def test_a_view_sent_before_the_last_order_arrived_does_not_undo_it(session):
    view = {"x0": [0.1], "x1": [0.2], "width": [800], "height": [300], "follow": [0]}
    session.go(0, 1000, follow=True)
    session.viewed({**view, "moves": [session.moves - 1]})
    assert session.follow
    session.viewed({**view, "moves": [session.moves]})
    assert not session.follow and (session.x0, session.x1) == (100, 200)
