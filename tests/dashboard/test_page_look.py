"""The page as a tool: zoom, pan, hover, pin, measure, search, legend, colours, keys, the address, the theme."""

import itertools
import re

import pytest
from test_page_live import generate, stop, timeline, tokens, wait

pytestmark = [pytest.mark.browser, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def recorded(shared_page):
    """The server holds a dozen steps before these tests look at them."""
    generate(shared_page)
    tokens(shared_page).nth(11).wait_for()
    stop(shared_page)
    return shared_page


@pytest.fixture
def page(recorded):
    """Nothing pinned, measured, searched or hidden, colours by op, and a view of one step that follows."""
    page = recorded
    page.mouse.move(5, 5)
    page.keyboard.press("Escape")  # leaves a text field, and clears
    page.locator(".card h3").first.wait_for(state="hidden")
    page.click("button[data-mode=op]")
    page.keyboard.press("[")
    wait(page, "!t.state.follow")
    page.keyboard.press("l")
    wait(page, "t.state.follow && t.box()")
    page.locator(".mkviz-stats > div", has_text="tasks in view").wait_for()
    return page


def box(page):
    return page.evaluate("Object.values(window.mkviz)[0].box()")


def span(page):
    low, high = timeline(page)["range"]
    return high - low


def at(page, x_share, lane, lanes=16):
    """Window coordinates of a share of the width and the middle of a lane."""
    b = box(page)
    top = page.evaluate("Object.values(window.mkviz)[0].share_of_lanes()")  # the part below the step markers
    return b["x"] + x_share * b["width"], b["y"] + b["height"] * (1 - top + top * (lane + 0.5) / lanes)


def busy_point(page):
    """Somewhere on the plot where the hover tells of a running task."""
    for share in (0.31, 0.42, 0.53, 0.64, 0.75):
        for lane in (3, 8, 12):
            page.mouse.move(5, 5)
            page.locator(".mkviz-tip").wait_for(state="hidden")
            page.mouse.move(*at(page, share, lane))
            page.locator(".mkviz-tip", has_text="SM").wait_for()
            if not re.match("waiting|about|no task", page.inner_text(".mkviz-tip")):
                return at(page, share, lane)
    raise AssertionError("no task under any of the points")


def test_wheel_zooms_at_the_pointer_and_lets_go_of_live(page):
    wait(page, "t.state.follow")
    before = timeline(page)["range"]
    page.mouse.move(*at(page, 0.25, 5))
    page.mouse.wheel(0, -300)
    wait(page, f"t.range()[1] - t.range()[0] < {0.9 * (before[1] - before[0])} && !t.state.follow")
    after = timeline(page)["range"]
    fixed = before[0] + 0.25 * (before[1] - before[0])
    assert after[0] + 0.25 * (after[1] - after[0]) == pytest.approx(fixed, abs=0.01 * (before[1] - before[0]))
    page.locator("button.live", has_text="Follow live").click()
    wait(page, "t.state.follow")
    page.locator("button.live", has_text="Following").wait_for()


def test_keys_zoom_and_pan(page):
    start = timeline(page)["range"]
    page.mouse.move(*at(page, 0.5, 5))
    page.keyboard.press("w")
    wait(page, f"t.range()[1] - t.range()[0] < {0.8 * (start[1] - start[0])}")
    middle = timeline(page)["range"]
    page.keyboard.press("a")
    wait(page, f"t.range()[0] < {middle[0]}")
    assert span(page) == pytest.approx(middle[1] - middle[0])
    page.fill("textarea", "")
    page.locator("textarea").press_sequentially("wasd")  # typing is not zooming
    assert span(page) == pytest.approx(middle[1] - middle[0])
    assert page.input_value("textarea") == "wasd"
    page.keyboard.press("Escape")
    page.keyboard.press("f")  # everything
    wait(page, "Math.abs(t.range()[0] - t.state.lo) < 1 && Math.abs(t.range()[1] - t.state.hi) < 1")


def test_drag_pans_by_the_distance(page):
    before = timeline(page)["range"]
    x, y = at(page, 0.3, 6)
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x + 100, y, steps=5)
    page.mouse.up()
    wait(page, "!t.state.follow")
    moved = before[0] - timeline(page)["range"][0]
    assert moved == pytest.approx(100 / box(page)["width"] * (before[1] - before[0]), rel=0.1)


def test_hover_tells_and_lights_its_token(page):
    busy_point(page)
    text = page.inner_text(".mkviz-tip")
    assert re.search(r"(qkv|attention|o_proj|expert_up|expert_down|lm_head|router)", text)
    assert re.search(r"SM\s+\d+ · step \d+", text) and re.search(r"took\s+[\d.]+ µs", text)
    assert re.search(r"exposed wait\s+(none|[\d.]+ [nµm]s on .+)", text)
    page.mouse.move(5, 5)
    page.locator(".mkviz-tip").wait_for(state="hidden")


def test_hover_tells_of_what_came_under_the_resting_pointer(page):
    busy_point(page)
    before = re.search(r"step \d+", page.inner_text(".mkviz-tip")).group()
    page.keyboard.press("[")
    page.locator(".mkviz-tip", has_text=re.compile(rf"(?!{before}\b)step \d+")).wait_for()
    page.wait_for_timeout(500)
    asked = page.evaluate(  # a browser moves the pointer by itself when a page is laid out anew; here nothing is
        """async () => {
            const t = Object.values(window.mkviz)[0], before = t.state.number
            t.apply()
            await new Promise((done) => setTimeout(done, 300))
            return t.state.number - before
        }"""
    )
    assert asked == 1
    page.mouse.move(5, 5)
    page.locator(".mkviz-tip").wait_for(state="hidden")


def test_click_pins_with_arrows_and_escape_clears(page):
    page.mouse.click(*busy_point(page))
    page.locator(".card h3").first.wait_for()
    first = page.locator(".card").first.text_content()
    page.keyboard.press(".")  # the next task of the lane
    page.locator(".card", has_not_text=first).first.wait_for()
    page.keyboard.press("f")
    wait(page, f"t.range()[1] - t.range()[0] < {0.5 * span(page)}")
    page.keyboard.press("Escape")
    page.locator(".card").first.wait_for(state="hidden")


def test_shift_drag_measures(page):
    x, y = at(page, 0.3, 4)
    page.keyboard.down("Shift")
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x + 200, y, steps=4)
    page.mouse.up()
    page.keyboard.up("Shift")
    title = page.locator(".card h3", has_text="Range")
    title.wait_for()
    number, unit = re.match(r"Range ([\d.]+) (µs|ms)", title.inner_text()).groups()
    expected = 200 / box(page)["width"] * span(page)
    assert float(number) * {"µs": 1, "ms": 1000}[unit] == pytest.approx(expected, rel=0.02)
    assert timeline(page)["follow"]  # measuring is not panning
    assert page.locator("table.grid tr").count() > 3


def test_legend_hides_and_isolates(page):
    button = page.locator(".mkviz-legend button[data-op=qkv]")
    button.click()
    page.locator(".mkviz-legend button.off[data-op=qkv]").wait_for()
    page.wait_for_function("location.search.includes('hide=qkv')")
    button.click()
    page.locator(".mkviz-legend button.off").wait_for(state="detached")
    button.click(modifiers=["Alt"])
    page.locator(".mkviz-legend button.off[data-op=attention]").wait_for()
    assert page.locator(".mkviz-legend button.off").count() == 7
    shares = [float(t.split()[0]) for t in page.locator(".mkviz-legend b").all_inner_texts()]
    assert sum(shares) == pytest.approx(100, abs=0.6)  # what tasks take, and what SMs do while they run none
    blank = page.locator(".mkviz-legend button:has(i.blank)").all_inner_texts()
    assert [text.split("\n")[0] for text in blank] == ["ready, not begun", "tail: no task left"]
    button.click(modifiers=["Alt"])
    page.locator(".mkviz-legend button.off").first.wait_for(state="detached")


def test_search_colours_and_state_survive_a_reload(page):
    page.keyboard.press("/")
    page.keyboard.type("expert_up L3")
    page.wait_for_function("location.search.includes('find=expert_up')")
    page.locator(".mkviz-bar output", has_text="32 a step").wait_for()
    page.keyboard.press("Enter")
    page.locator(".card h3", has_text="expert_up · layer 3").wait_for()
    page.click("button[data-mode=layer]")
    page.locator(".mkviz-legend .scale", has_text="layer 5").wait_for()
    page.mouse.move(*at(page, 0.25, 5))
    shown = timeline(page)["range"]
    page.mouse.wheel(0, -300)
    wait(page, f"Math.abs(t.range()[0] - {shown[0]}) > 0.01")  # else the address may still name what was shown before
    wait(page, "Math.abs((location.search.match(/range=([\\d.]+)/)?.[1] ?? 0) - t.range()[0]) < 0.002")
    before = timeline(page)["range"]
    page.reload()
    page.wait_for_selector("body[data-mkviz=ready]", state="attached")
    wait(page, f"Math.abs(t.range()[0] - {before[0]}) < 1 && Math.abs(t.range()[1] - {before[1]}) < 1")
    assert page.input_value("input[type=search]") == "expert_up L3"
    assert page.get_attribute("button[data-mode=layer]", "aria-checked") == "true"


def test_pause_freezes_the_view_while_recording_goes_on(page):
    page.locator("button.pause").click()
    page.locator("button.pause", has_text="Resume").wait_for()
    before = timeline(page)["range"]
    generate(page)
    tokens(page).nth(8).wait_for()
    assert timeline(page)["range"] == before
    page.locator("button.pause").click()
    wait(page, f"t.range()[1] > {before[1]}")
    stop(page)


def test_a_token_leads_to_its_step(page):
    generate(page)
    tokens(page).nth(6).wait_for()
    stop(page)
    token = tokens(page).nth(4)
    step = token.get_attribute("data-step")
    token.click()
    page.locator(".mkviz-stats > div", has_text=re.compile(rf"^step\s*{step}$")).wait_for()
    wait(page, "!t.state.follow")


def test_dark_and_help(page):
    page.click("[aria-label='Toggle theme']")
    page.wait_for_selector("body.mkviz-dark", state="attached")
    background = page.evaluate("getComputedStyle(document.body).getPropertyValue('--mkviz-page').trim()")
    assert background == "#14181f"
    page.wait_for_function("[...Bokeh.documents[0]._all_models.values()].some((m) => m.border_fill_color === '#14181f')")
    page.keyboard.press("?")
    page.locator("dialog.mkviz-help", has_text="zoom time at the pointer").wait_for()
    page.keyboard.press("Escape")
    page.locator("dialog.mkviz-help").wait_for(state="hidden")
    page.click("[aria-label='Toggle theme']")
    page.wait_for_selector("body:not(.mkviz-dark)", state="attached")


BAR = ("select[aria-label=source]", "select[aria-label='compare with']", "button.live", "button.pause", "button[data-mode=op]",
       "input[type=search]", ".mkviz-bar output", "button.help", "button.open", "[aria-label='Toggle theme']")  # fmt: skip


@pytest.mark.parametrize(("width", "height"), [(1280, 720), (1920, 1080)])
def test_nothing_is_cut_off(page, width, height):
    page.set_viewport_size({"width": width, "height": height})
    wait(page, f"t.box().width > {0.55 * width} && t.box().height > {0.3 * height}")
    page.fill("input[type=search]", "expert_up")
    page.locator(".mkviz-bar output", has_text="192 a step").wait_for()
    boxes = [page.locator(selector).bounding_box() for selector in BAR]
    for left, right in itertools.pairwise(boxes):
        assert left["x"] + left["width"] <= right["x"] and left["width"] > 20
    page.keyboard.press("Escape")
    for selector in ("button.go", ".mkviz-legend button[data-op=tail]", *BAR[:6], *BAR[7:]):
        part = page.locator(selector).bounding_box()
        assert part["x"] >= 0 and part["x"] + part["width"] <= width
        assert part["y"] >= 0 and part["y"] + part["height"] <= height
    page.set_viewport_size({"width": 1440, "height": 900})
