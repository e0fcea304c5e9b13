"""The export menu without a browser: what it says, and that a file's pieces add up."""

import base64
import time
from types import SimpleNamespace

import pytest
from two_lanes import two_lanes

from mkviz.dashboard import export_menu
from mkviz.dashboard.export_menu import ExportMenu
from mkviz.dashboard.hub import Hub
from mkviz.dashboard.panels import Panels
from mkviz.dashboard.session import Session


@pytest.fixture
def menu():
    """Of a session that shows the two-lanes step whole."""
    scene, hub, panels = two_lanes(), Hub(openers={}), Panels()
    hub.add_source("two", SimpleNamespace(snapshot=lambda: scene.snapshot, label="two", kind="simulated"))
    session = Session(hub, panels)
    panels.connect(session)
    session.choose("two")
    session.go(-100, 1100)
    menu = ExportMenu(session)
    menu.sent = []
    menu._send_msg = menu.sent.append
    return menu


def finish(menu):
    deadline = time.monotonic() + 60
    while not menu._job.over:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    menu.tick()


def test_it_says_the_range(menu):
    menu._handle_msg({"type": "open"})
    assert menu.what == "The view: step 7 · 1.00 µs · no record lost" and menu.table == "ops"
    menu._session.range, menu._session.tab = (100.0, 600.0), "waits"
    menu._handle_msg({"type": "open"})
    assert menu.what == "The measured range: step 7 · 500 ns · no record lost" and menu.table == "waits"


def test_the_pieces_add_up(menu, monkeypatch):
    monkeypatch.setattr(export_menu, "CHUNK", 50)
    menu._handle_msg({"type": "make", "form": "csv"})
    assert menu.note == "making it …" and not menu.file_name
    finish(menu)
    assert menu.file_name == "mkviz-step-7.csv" and menu.note == f"{len(menu._job.data)} B"
    for index in range(menu.chunks):
        menu._handle_msg({"type": "chunk", "index": index})
    pieces = [base64.b64decode(message["data"]) for message in menu.sent]
    assert max(map(len, pieces)) == 50 and b"".join(pieces) == menu._job.data
    assert b"".join(pieces).startswith(b"op,tasks,time (ns)")


def test_where_nothing_is_it_says_so(menu):
    menu._session.go(5000, 6000)
    menu._handle_msg({"type": "make", "form": "png"})
    assert menu.wrong and menu.note == "no step lies in the view; move to one first" and menu._job is None


def test_a_bug_is_one_line(menu, monkeypatch):
    def broken(*_):
        raise ValueError("two\nlines")

    monkeypatch.setattr(export_menu, "render", broken)
    menu._handle_msg({"type": "make", "form": "svg"})
    finish(menu)
    assert menu.wrong and menu.note == "the export failed: ValueError: two"
