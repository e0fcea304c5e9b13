"""The page attached to a running server: request lanes, what the pointer finds on them, and the server gone and back."""

import contextlib
import os
import tempfile
import time

import numpy as np
import pytest
from page_server import Server
from test_request_lanes import TWO, store_of

from mkviz.attach.server import AttachServer
from mkviz.protocols import RequestInfo
from mkviz.record import EVENT

pytestmark = [pytest.mark.browser, pytest.mark.timeout(900)]

FIGURE = """
const lanes = [...Bokeh.documents[0]._all_models.values()].find((m) => m.name === "requests")
const view = lanes?.document.views_manager.find_one(lanes)
"""
TITLE = "[...Bokeh.documents[0]._all_models.values()].some((m) => m.type === 'Title' && m.text.includes({!r}))"


@pytest.fixture
def folder(monkeypatch):
    with tempfile.TemporaryDirectory(prefix="mkv") as folder:
        monkeypatch.setenv("MKVIZ_HOME", folder)
        yield folder


@contextlib.contextmanager
def told(changes, steps=4):
    """A server that was told of these."""
    server, held = AttachServer("measured (cpu)", name="demo"), store_of(changes, steps=steps).snapshot()
    server.graph(0, *held.graphs[0])
    for info in held.infos:
        events = np.zeros(1, EVENT)
        events["step"], events["claim"], events["ready"], events["begin"] = info.step, info.begin, info.begin, info.begin
        events["end"] = events["publish"] = info.end
        server.step(info, events)
    for request, state, at in changes:
        server.request(RequestInfo(request, state, at, 5, 2, "p", "", f"<b>agent {request}</b>"))
    try:
        yield server
    finally:
        server.close()


def test_a_running_server(folder, open_page):
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(told(TWO))
        viewer = Server(command=("-m", "mkviz", "view", "--no-window", "--attach", "demo", "--port"))
        stack.callback(viewer.stop)
        page = open_page(viewer.url)
        page.wait_for_function(TITLE.format("measured (cpu) · g · 1 SMs"))
        assert page.locator("select[aria-label=source]").input_value() == "server: demo"
        page.locator("[role=tab][data-tab=requests][aria-selected=true]").wait_for()  # a server's page opens there
        page.wait_for_function(f"() => {{ {FIGURE}; return view?.canvas_view?.el?.clientHeight > 20 }}")
        page.locator(".requests", has_text="2 in view").wait_for()
        page.keyboard.press("f")
        box = page.evaluate(
            f"""() => {{ {FIGURE}
            const outer = view.canvas_view.el.getBoundingClientRect(), {{left, top, width, height}} = view.frame.bbox
            return {{x: outer.left + left, y: outer.top + top, width, height}} }}"""
        )
        tip = page.locator(".mkviz-tip", has_text="request 1: prefill")
        deadline = time.monotonic() + 120
        while not tip.count():
            assert time.monotonic() < deadline
            page.mouse.move(box["x"] + box["width"] * 0.5 + time.monotonic() % 5, box["y"] + box["height"] * 0.75)
            page.wait_for_timeout(200)
        assert "<b>agent 1</b>" in tip.inner_text()  # as words, not as markup
        page.mouse.click(box["x"] + box["width"] * 0.5, box["y"] + box["height"] * 0.75)
        page.wait_for_function("Math.abs(Object.values(window.mkviz)[0].range()[1] - 0.612) < 1e-6")  # step 0 and 2 %
        row = page.locator("[role=tabpanel] tr", has_text="prefill")
        row.wait_for()
        assert row.inner_text().split() == ["1", "prefill", "5", "2", "500", "ns", "–", "–", "–"]

        server.close()
        page.wait_for_function(TITLE.format("The server demo has ended"))
        again = stack.enter_context(told([], steps=1))
        page.wait_for_function(f"() => {{ {FIGURE}; return !lanes || !lanes.visible }}")
        page.wait_for_function(f"!{TITLE.format('has ended')}")
        assert again.viewers == 1 and os.listdir(f"{folder}/servers") == ["demo.sock"]
