"""Sub-lanes per role, SMs in view, the ring's fill, slack: on a recording of an H200."""

import re

import pytest
from test_page_live import generate, put_in_theme, stop, timeline, tokens, wait
from test_page_look import at
from test_recordings import NORTH

pytestmark = [pytest.mark.browser, pytest.mark.timeout(900)]

MODELS = "[...Bokeh.documents[0]._all_models.values()]"


def saying(page, kind, pattern, visible=True):
    """Until a model of ``kind`` says it."""
    page.wait_for_function(
        f"{MODELS}.some((m) => m.type === '{kind}' && m.visible === {str(visible).lower()} && /{pattern}/.test(m.text))"
    )


def image_rows(page, rows):
    page.wait_for_function(
        f"{MODELS}.some((m) => m.type === 'ColumnDataSource' && m.data.image?.length && m.data.image[0].shape[0] === {rows})"
    )


@pytest.fixture
def page(shared_page):
    """The recording, whole, one lane an SM, nothing pinned, in the dark theme."""
    page = shared_page
    page.locator("select[aria-label=source]").select_option(NORTH)
    page.mouse.move(5, 5)
    page.keyboard.press("Escape")
    page.locator(".card h3").first.wait_for(state="hidden")
    if page.locator("[data-do=roles][aria-pressed=true]").count():
        page.click("[data-do=roles]")
    page.locator("[data-do=roles][aria-pressed=false]").wait_for()
    put_in_theme(page, "dark")
    page.locator("button[data-mode=op]").focus()
    page.keyboard.press("f")
    wait(page, "!t.state.follow && Math.abs(t.range()[0] - t.state.lo) < 1 && Math.abs(t.range()[1] - t.state.hi) < 1")
    image_rows(page, 132)
    return page


def test_roles_on_demand_and_other_sms(page):
    page.click("[data-do=roles]")
    saying(page, "Title", "^SM 0 – .*loader.*level 1.*storer")  # on the figure: which SMs, and how much the records tell
    page.locator("[data-do=roles][aria-pressed=true]").wait_for()
    shown = page.locator(".mkviz-transport output", has_text=re.compile(r"^SM 0 – \d+$"))
    shown.wait_for()
    count = int(shown.inner_text().split()[-1]) + 1
    assert 3 <= count <= 30
    page.keyboard.press("ArrowDown")
    page.locator(".mkviz-transport output", has_text=f"SM {count} – {2 * count - 1}").wait_for()
    page.click("button[aria-label='SMs before']")
    page.locator(".mkviz-transport output", has_text=f"SM 0 – {count - 1}").wait_for()
    page.wait_for_function(f"location.search.includes('lanes=roles') && location.search.includes('sms=0-{count - 1}')")
    for _ in range(6):
        page.keyboard.press("-")
    saying(page, "Title", "^all 132 SMs from top: loader")
    image_rows(page, 132 * 4)
    page.keyboard.press("r")
    saying(page, "Title", "^$", visible=False)
    image_rows(page, 132)
    page.wait_for_function("!location.search.includes('lanes=')")


def test_each_role_says_what_it_did(page):
    page.keyboard.press("r")
    saying(page, "Title", "^SM 0 – .*level 1")
    for _ in range(4):
        page.keyboard.press("+")  # down to one SM, in the middle of those before
    page.locator(".mkviz-transport output", has_text=re.compile(r"^SM \d+$")).wait_for()
    lane = page.evaluate("Object.values(window.mkviz)[0].share_of_lanes()")
    assert 0.8 < lane < 1
    page.mouse.move(*at(page, 0.4, 0, lanes=4))  # lm_head, its bytes asked for ahead
    page.locator(".mkviz-tip", has_text="loader: lm_head").wait_for()
    assert re.search(r"taken up\s+[\d.]+ [nµ]s before begin · last bytes not told", page.inner_text(".mkviz-tip"))
    page.mouse.click(*at(page, 0.4, 0, lanes=4))
    page.locator(".card h3", has_text="lm_head").wait_for()


def test_the_ring_is_told_or_said_to_be_untold(page):
    saying(page, "Label", "^landed and not consumed at .*mean of all 132 SMs$")
    heights = f"{MODELS}.filter((m) => m.type === 'Figure').map((m) => m.height)"
    assert 24 not in page.evaluate(heights)
    page.locator("select[aria-label=source]").select_option("live: demo")
    saying(page, "Label", "^no ring fill in these records")
    page.wait_for_function(f"{heights}.includes(24)")


def test_slack_and_exposed_waits_apart(page):
    page.click("[role=tab][data-tab=waits]")
    row = page.locator("[role=tabpanel] button").first
    row.wait_for()
    assert page.locator("[role=tabpanel] th").all_inner_texts()[-2:] == ["exposed", "slack before"]
    row.click()
    card = page.locator(".card", has_text="exposed wait")
    card.wait_for()
    assert re.search(r"exposed wait\s+[\d.]+ µs on ", card.inner_text())
    listed = page.locator("table.producers td").all_inner_texts()
    assert listed[:2] == ["slack", "exposed"]
    page.click("[role=tab][data-tab=text]")


@pytest.fixture(scope="module", autouse=True)
def lived(shared_page):
    """The server has a few live steps too."""
    generate(shared_page)
    tokens(shared_page).nth(3).wait_for()
    stop(shared_page)
    assert timeline(shared_page)
