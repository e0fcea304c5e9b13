"""The bugs of test_known_bugs.py whose guard needs a browser; that file's table says which they are."""

import gc
import json
import logging
import socket
import time
import weakref

import panel as pn
import pytest
from bokeh.server.callbacks import PeriodicCallback
from replay_generator import ReplayGenerator
from test_page_live import generate, stop, timeline, tokens, wait

from mkviz.dashboard import page as page_module
from mkviz.dashboard.hub import Hub
from mkviz.dashboard.session import Session
from mkviz.dashboard.timeline import TICKS

pytestmark = [pytest.mark.browser, pytest.mark.timeout(900)]

PATIENCE = 120  # s


@pytest.fixture
def page(shared_page):
    return shared_page


def test_a_storm_of_notches_becomes_few_messages(page):
    generate(page)
    tokens(page).nth(5).wait_for()
    stop(page)
    page.keyboard.press("f")
    wait(page, "!t.state.follow && t.box()")
    box = page.evaluate("Object.values(window.mkviz)[0].box()")
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 50)
    before = timeline(page)
    seconds = page.evaluate("""async () => {
        const t = Object.values(window.mkviz)[0], start = performance.now(), [low, high] = t.range()
        const x_range = [...Bokeh.documents[0]._all_models.values()]
            .find((m) => m.type === "Range1d" && m.start === low && m.end === high && m.min_interval)
        for (let k = 0; k < 200; k++) {
            const [a, b] = t.range()
            x_range.setv({start: a + (b - a) * 0.001, end: b})
            await new Promise((done) => setTimeout(done, 2))
        }
        return (performance.now() - start) / 1000
    }""")
    wait(page, "t.state.timer === null && t.state.frames > 0")
    assert timeline(page)["sent"] - before["sent"] <= seconds / 0.06 + 2
    low = timeline(page)["range"][0]
    page.wait_for_function(  # the last one was told
        f"Math.abs((location.search.match(/range=([\\d.]+)/)?.[1] ?? 0) - {low}) < 0.002"
    )


@pytest.mark.parametrize(
    ("ticks", "labels"),
    [
        ([0, 50, 100], ["0 µs", "50 µs", "100 µs"]),
        ([0, 0.5, 1.0], ["0.0 µs", "0.5 µs", "1.0 µs"]),
        ([1.00, 1.01, 1.02], ["1 000 ns", "1 010 ns", "1 020 ns"]),
        ([3_600_000_000.0, 3_600_000_000.01], ["3 600 000 000 000 ns", "+10 ns"]),
        ([78_000.125, 78_000.126, 78_000.127], ["78 000 125 ns", "+1 ns", "+2 ns"]),
        ([2000, 4000, 6000], ["2 ms", "4 ms", "6 ms"]),
    ],
)
def test_labels_of_the_time_axis(page, ticks, labels):
    code = f"((ticks) => ticks.map((tick, index) => {{ {TICKS} }}))({json.dumps(ticks)})"
    assert [label.replace("\u00a0", " ") for label in page.evaluate(code)] == labels


def test_unchanged_style_sheets_are_not_written(page):
    """A Bokeh of the future may do without: then this fails, and ``sparingly`` of timeline.js can go."""
    wait(page, "t.state.frames > 0")
    kept, changed = page.evaluate("""() => {
        const {InlineStyleSheet} = Bokeh.require("core/dom"), sheet = new InlineStyleSheet("p { color: red }")
        const text = sheet.el.firstChild
        sheet.replace("p { color: red }")
        const kept = sheet.el.firstChild === text
        sheet.replace("p", {color: "blue"})
        return [kept, sheet.css]
    }""")
    assert kept and "blue" in changed and "red" not in changed


def test_bars_that_move_and_lose_rows_in_one_message(page):
    """A Bokeh of the future may do without ``glyphs.js``: then this passes without."""
    generate(page)
    tokens(page).nth(5).wait_for()
    stop(page)
    wait(page, "t.state.frames > 0 && t.box()")
    assert page.evaluate("""async () => {
        const {plot} = Object.values(window.mkviz)[0], view = plot.document.views_manager.find_one(plot)
        const steps = view.computed_renderer_views.find(({model: m}) => m.glyph?.type === "HBar" && m.data_source.data.text)
        const {glyph, data_source: source} = steps.model, y = glyph.y, before = source.data, found = []
        const turns = () => new Promise((done) => setTimeout(done, 200))
        const show = (n) => {
            const some = {left: 0, right: 9, alpha: 1, x: 0, text: "a"}
            source.data = Object.fromEntries(Object.entries(some).map(([name, value]) => [name, Array(n).fill(value)]))
        }
        const note = (event) => found.push(`${event.reason}`)
        addEventListener("unhandledrejection", note)
        show(100)
        await turns()
        glyph.y = {value: 0.123}
        show(40)
        await turns()
        removeEventListener("unhandledrejection", note)
        found.push(steps.glyph.left.length, steps.glyph.y[0])
        glyph.y = y
        source.data = before
        await turns()
        return found
    }""") == [40, 0.123]


# [the middle of the widest step in view, as a share of the range]; [] until the page has drawn a step.
STEP = """(t) => {
    const {plot} = t, {start, end} = plot.x_range, view = plot.document.views_manager.find_one(plot)
    const steps = view?.computed_renderer_views.find(({model: m}) => m.glyph?.type === "HBar" && m.data_source.data.text)
    const {left, right} = steps?.model.data_source.data ?? {left: [], right: []}
    const bars = [...left].map((from, i) => [Math.max(from, start), Math.min(right[i], end)]).filter(([from, to]) => to > from)
    const [first] = bars.sort((a, b) => b[1] - b[0] - (a[1] - a[0]))
    return first ? [((first[0] + first[1]) / 2 - start) / (end - start)] : []
}"""


def test_a_step_that_the_pointer_left_is_not_lit(page):
    """Not even where it was on nothing that has a tooltip, as in the row of steps above the lanes."""
    generate(page)
    tokens(page).nth(5).wait_for()
    stop(page)
    page.keyboard.press("Escape")
    tokens(page).nth(3).click()  # leads to its step: all of them may be too many to be drawn
    lit = page.locator(".turn.assistant span.lit")
    page.mouse.move(1, 1)
    lit.first.wait_for(state="detached")
    look = f"""() => {{
        const t = Object.values(window.mkviz)[0]
        return [t.box(), t.share_of_lanes(), ({STEP})(t)]
    }}"""
    while not lit.count():  # frames that are still on their way move the steps; the test's limit ends it
        box, share, middle = page.evaluate(look)
        if box and middle:  # of a step: between two there is nothing to light
            page.mouse.move(box["x"] + middle[0] * box["width"], box["y"] + 0.5 * (1 - share) * box["height"])
        page.wait_for_timeout(500)
    assert not page.locator(".mkviz-tip").first.is_visible()
    page.mouse.move(box["x"] + box["width"] + 200, box["y"])
    lit.first.wait_for(state="detached", timeout=PATIENCE * 1000)


@pytest.fixture
def served(monkeypatch, request, caplog):
    """(url, sessions): of a server in this process that forgets a session without a page after ``request.param`` ms; weak
    references to its sessions."""
    caplog.set_level(logging.WARNING, "panel")  # kept records of events keep the pages that they came from
    sessions = []

    class Kept(Session):
        def __init__(self, *args):
            super().__init__(*args)
            self.document = pn.state.curdoc
            sessions.append(weakref.ref(self))

    monkeypatch.setattr(page_module, "Session", Kept)
    hub = Hub({"replay": lambda model: ReplayGenerator(layers=2, pace=0.01)})
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    server = pn.serve(
        {"/": lambda: page_module.page(hub)}, port=port, show=False, threaded=True, verbose=False,
        websocket_origin=f"localhost:{port}", check_unused_sessions_milliseconds=100,
        unused_session_lifetime_milliseconds=request.param,
    )  # fmt: skip
    deadline = time.monotonic() + PATIENCE
    while True:  # its thread listens when it gets to it
        try:
            socket.create_connection(("localhost", port)).close()
            break
        except ConnectionRefusedError:
            assert time.monotonic() < deadline
            time.sleep(0.1)
    yield f"http://localhost:{port}/", sessions
    server.stop()


@pytest.mark.parametrize("served", [120_000], indirect=True)  # ms: longer than a page takes to open
def test_each_page_ticks_once_in_a_document_of_its_own(served, open_page):
    url, sessions = served
    for _ in range(2):
        open_page(url)
    first, second = (reference() for reference in sessions)
    assert first.document is not second.document
    for session in (first, second):
        ticking = [c for c in session.document.session_callbacks if isinstance(c, PeriodicCallback)]
        assert len(ticking) == 1
        figures = [session.panels.timeline, session.panels.minimap, *session.panels.strips]
        assert {figure.root.document for figure in figures} == {session.document}


@pytest.mark.parametrize("served", [100], indirect=True)
def test_a_page_that_came_late_asks_for_nothing_outside(served, open_page):
    """Its session was forgotten before it connected, so it got one that no request for the page had prepared."""
    url, sessions = served
    page = open_page(url)
    assert len(sessions) > 1
    generate(page)
    tokens(page).nth(5).wait_for()
    wait(page, "t.state.frames > 1 && t.box()")
    stop(page)


@pytest.mark.parametrize("served", [15_000], indirect=True)
def test_a_closed_page_is_let_go(served, open_page):
    url, sessions = served
    for _ in range(4):
        page = open_page(url)
        generate(page)
        tokens(page).nth(8).wait_for()
        wait(page, "t.state.frames > 1 && t.box()")
        stop(page)
        box = page.evaluate("Object.values(window.mkviz)[0].box()")
        page.mouse.move(box["x"] + 300, box["y"] + 100)
        page.mouse.click(box["x"] + 310, box["y"] + 100)
        page.locator(".mkviz-legend button[data-op=qkv]").click()
        page.locator(".mkviz-legend button.off").wait_for()
        page.close()
    deadline = time.monotonic() + PATIENCE
    while sum(reference() is not None for reference in sessions) > 1 and time.monotonic() < deadline:
        time.sleep(0.5)
        gc.collect()
    alive = [reference for reference in sessions if reference() is not None]
    assert len(alive) <= 1  # panel's own state may hold one until the next page comes
