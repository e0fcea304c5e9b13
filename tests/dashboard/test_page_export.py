"""Files from the page: their kind and size in words, saved by the browser; and the HTML one opened in it."""

import io
import re

import numpy as np
import pytest
from PIL import Image
from replay_generator import ReplayGenerator
from test_page_live import generate, stop, tokens, wait

from mkviz import lod, palette
from mkviz.exports import excerpt_of, render

pytestmark = [pytest.mark.browser, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def page(shared_page):
    """Shows one whole step, and does not follow."""
    generate(shared_page)
    tokens(shared_page).nth(5).wait_for()
    stop(shared_page)
    shared_page.keyboard.press("[")
    wait(shared_page, "!t.state.follow && t.state.frames > 2")
    return shared_page


def save(page, form):
    """What the menu says of a file of this kind, its name and its bytes."""
    page.click(".mkviz-export .open")
    page.click(f"[data-form={form}]")
    page.locator(".mkviz-export .note", has_text=f".{form} · ").wait_for()  # not what it said of another kind before
    page.locator(".mkviz-export .save:visible").wait_for()
    note = page.inner_text(".mkviz-export .note")
    with page.expect_download() as download:
        page.click(".mkviz-export .save")
    with open(download.value.path(), "rb") as file:
        data = file.read()
    assert page.locator(".mkviz-export .menu").is_hidden()
    return note, download.value.suggested_filename, data


def size(note):
    number, unit = re.search(r"([\d.]+) (B|KiB|MiB)$", note).groups()
    return float(number) * {"B": 1, "KiB": 1024, "MiB": 1 << 20}[unit]


@pytest.mark.parametrize("form", ["html", "png", "svg", "csv"])
def test_each_kind_says_its_size_and_is_saved_whole(page, form):
    note, name, data = save(page, form)
    assert re.fullmatch(rf"mkviz-step-\d+(-to-\d+)?\.{form}", name) and note.startswith(name)
    assert len(data) == pytest.approx(size(note), rel=0.05)  # told in two or three digits
    if form == "png":
        assert Image.open(io.BytesIO(data)).size == (2100, 1290)
    else:
        begin, end = {"html": ("<!doctype html>", "</html>"), "svg": ("<?xml", "</svg>"), "csv": ("op,tasks,", "")}[form]
        assert data.decode().startswith(begin) and data.decode().rstrip().endswith(end)


def test_the_menu_says_what_it_would_write_and_escape_closes_it(page):
    page.click(".mkviz-export .open")
    assert re.match(r"The view: step \d+.* · no record lost$", page.inner_text(".mkviz-export .what"))
    assert "table of ops" in page.inner_text("[data-form=csv]")
    page.keyboard.press("Escape")
    assert page.locator(".mkviz-export .menu").is_hidden()


def test_what_cannot_be_exported_is_told(page):
    page.evaluate("""() => {
        const view = Bokeh.documents[0]._all_models.values().find((m) => m.type === "Figure" && m.y_range.end > 10)
        view.x_range.setv({start: -5e6, end: -4e6})
    }""")
    wait(page, "t.range()[1] < 0")
    page.wait_for_timeout(500)
    page.click(".mkviz-export .open")
    page.click("[data-form=png]")
    page.locator(".mkviz-export .note.error", has_text="no step lies in the view").wait_for()
    page.keyboard.press("Escape")
    page.keyboard.press("]")
    wait(page, "t.range()[1] > 0")


# the HTML file


@pytest.fixture(scope="module")
def steps():
    """A store of three steps of the replay on 16 SMs."""
    generator = ReplayGenerator(pace=0)
    for _ in range(3):
        generator._advance()
    return generator.source


@pytest.fixture(scope="module")
def file(context, steps, tmp_path_factory):
    """The file of these steps in a page that must ask for nothing."""
    path = tmp_path_factory.mktemp("export") / "steps.html"
    path.write_bytes(render(excerpt_of(steps), "html"))
    page, asked, errors = context.new_page(), [], []
    page.on("request", lambda request: asked.append(request.url))
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(path.as_uri())
    page.wait_for_selector("body[data-mkviz=ready]")
    yield page
    page.close()
    assert asked == [path.as_uri()] and not errors


@pytest.mark.parametrize("share", [(0, 1), (0.2, 0.5), (0.3, 0.31)])
def test_it_counts_as_the_page_does(file, steps, share):
    """Its level of detail beside ours, of the same range on the same columns."""
    snapshot, cols = steps.snapshot(), 300
    lo, hi = snapshot.extent
    x0, x1 = lo + share[0] * (hi - lo), lo + share[1] * (hi - lo)
    tables = lod.GraphTables(snapshot)
    ours = lod.image_frame(snapshot, tables, x0, x1, cols, tables.op, np.ones(len(snapshot.ops)))
    theirs = file.evaluate(
        """([x0, x1, cols]) => {
            const f = window.mkviz.frame(x0, x1, cols)
            return Object.fromEntries(["grid", "busy", "wait", "tail", "rate"].map((k) => [k, [...f[k]]]))
        }""",
        [x0, x1, cols],
    )
    shape = ours.grid.shape
    np.testing.assert_allclose(np.reshape(theirs["busy"], shape), ours.busy, atol=1e-4)
    np.testing.assert_allclose(np.reshape(theirs["wait"], shape), ours.wait, atol=1e-4)
    np.testing.assert_allclose(theirs["tail"], ours.tail_lanes, atol=1e-6)
    np.testing.assert_allclose(theirs["rate"], ours.rate, rtol=1e-6, atol=1e-9)
    assert (np.reshape(theirs["grid"], shape) == ours.grid).mean() > 0.999  # but for ties
    assert ours.busy.sum() > 0


def test_wheel_drag_keys_and_double_click(file):
    def span():
        a, b = file.evaluate("window.mkviz.range()")
        return b - a

    whole = span()
    file.mouse.move(700, 300)
    file.mouse.wheel(0, -500)
    file.wait_for_function(f"mkviz.range()[1] - mkviz.range()[0] < {0.7 * whole}")
    before = file.evaluate("window.mkviz.range()")
    file.mouse.down()
    file.mouse.move(600, 300)
    file.mouse.up()
    after = file.evaluate("window.mkviz.range()")
    moved = (before[1] - before[0]) * 100 / file.evaluate("window.mkviz.box().width")
    assert after[0] - before[0] == pytest.approx(moved, rel=0.01) and after[1] - before[1] == pytest.approx(moved, rel=0.01)
    file.keyboard.press("w")
    assert span() == pytest.approx((after[1] - after[0]) / 1.4)
    file.dblclick("canvas", position={"x": 700, "y": 200})
    assert span() == pytest.approx(whole)


def test_hover_tells_the_task(file, steps):
    snapshot = steps.snapshot()
    row = int(snapshot.lane_ptr[1, 4]) + 3  # of SM 4 in the middle step
    begin, end = (int(c[row]) - snapshot.origin for c in (snapshot.begin, snapshot.end))
    file.evaluate(f"window.mkviz.show({begin - 20_000}, {end + 20_000})")
    box = file.evaluate("(() => { const {left, top, width, height} = mkviz.box(), c = document.querySelector('canvas')"
                        ".getBoundingClientRect(); return [c.left + left, c.top + top, width, height] })()")  # fmt: skip
    a, b = file.evaluate("window.mkviz.range()")
    file.mouse.move(box[0] + ((begin + end) / 2 - a) / (b - a) * box[2], box[1] + 4.5 / 16 * box[3])
    tip = file.locator(".tip")
    tip.wait_for()
    graph = snapshot.graph_of(1)
    assert tip.locator("b").inner_text() == graph.label(int(snapshot.task[row]))
    assert f"4 · step {snapshot.steps['step'][1]}" in tip.inner_text()
    file.keyboard.press("f")


def shown(file):
    """Fraction of the canvas in the colour of attention, opaque."""
    colour = palette.op_colours(("attention",))[0]
    picture = np.asarray(Image.open(io.BytesIO(file.locator("canvas").screenshot())).convert("RGB")).astype(int)
    return float((np.abs(picture - [int(colour[i : i + 2], 16) for i in (1, 3, 5)]).max(2) < 6).mean())


def test_the_legend_hides_and_isolates(file):
    before, button = shown(file), file.locator(".legend [data-op=attention]")
    assert before > 0.001
    button.click()
    file.wait_for_timeout(200)
    assert shown(file) == 0 and button.get_attribute("aria-pressed") == "false"
    button.click()
    button.click(modifiers=["Alt"])
    pressed = file.locator(".legend [aria-pressed=true]:not(:disabled)")
    assert pressed.count() == 1 and pressed.get_attribute("data-op") == "attention"
    button.click(modifiers=["Alt"])
    assert pressed.count() > 1


def test_the_legend_is_of_the_whole_file_at_any_zoom(file):
    shares = "[...document.querySelectorAll('.legend b')].map((b) => b.textContent)"
    before, attention = file.evaluate(shares), file.locator(".legend [data-op=attention]")
    file.evaluate("(() => { const [a] = mkviz.range(); mkviz.show(a, a + 5000) })()")
    attention.click()
    attention.click()
    assert file.evaluate(shares) == before and any(share != "0.0 %" for share in before)
    file.keyboard.press("f")


def test_a_part_of_a_step_says_nothing_of_the_rest(context, steps, tmp_path):
    """A file of the middle third of a step: what lies outside is neither hovered nor drawn as tail."""
    snapshot = steps.snapshot()
    begin, end = (int(snapshot.steps[k][1]) - snapshot.origin for k in ("begin", "end"))
    third = (end - begin) / 3
    (tmp_path / "part.html").write_bytes(render(excerpt_of(steps, span=(begin + third, end - third)), "html"))
    page = context.new_page()
    page.goto((tmp_path / "part.html").as_uri())
    page.wait_for_selector("body[data-mkviz=ready]")
    told, tail = page.evaluate(
        """() => {
            const [a, b] = mkviz.range(), base = JSON.parse(document.getElementById("about").textContent).base
            const from = a - base, to = b - base, long = to - from
            const lanes = [...Array(16).keys()]
            return [[from - long / 2, to + long / 2, (from + to) / 2].map((t) => lanes.map((l) => mkviz.at(t, l)?.[0] ?? null)),
                    [...mkviz.frame(to, to + 2 * long, 50).tail]]
        }"""
    )
    page.close()
    assert told[0] == told[1] == [None] * 16 and all(told[2]) and "no task left" not in told[2]
    assert tail == [0] * 50


def test_it_keeps_the_theme_and_changes_it(file, steps, context, tmp_path):
    background = "getComputedStyle(document.body).backgroundColor"
    assert file.evaluate(background) == "rgb(255, 255, 255)"
    file.click(".theme")
    assert file.evaluate(background) == "rgb(20, 24, 31)"
    file.click(".theme")
    from mkviz import export

    export(steps, tmp_path / "dark.html", dark=True)
    other = context.new_page()
    other.goto((tmp_path / "dark.html").as_uri())
    other.wait_for_selector("body[data-mkviz=ready]")
    assert other.evaluate(background) == "rgb(20, 24, 31)"
    other.close()


def test_the_label_says_what_it_is(file):
    assert file.inner_text("h1").startswith("simulated (test replay) · tiny-moe · 16 SMs")
    assert "no record lost" in file.inner_text("header p")
