"""A past step in slow motion and event by event, and from the page's address."""

import re

import pytest
from test_page_live import put_in_theme, wait
from test_recordings import NORTH

pytestmark = [pytest.mark.browser, pytest.mark.timeout(900)]

PLAYED = ".card.played"


def head(page):
    """Where the playhead is drawn (µs), None while it is not."""
    return page.evaluate("Object.values(window.mkvizPlayhead ?? {}).map((p) => p.time).find((t) => t !== null) ?? null")


def until(page, condition):
    """Until ``condition`` (JavaScript over p, the playhead) holds."""
    page.wait_for_function(f"Object.values(window.mkvizPlayhead ?? {{}}).some((p) => {condition})")


@pytest.fixture(params=["light"])  # both where a test looks at colours
def page(shared_page, request):
    """The recording's first step, in a theme, not played."""
    page = shared_page
    page.locator("select[aria-label=source]").select_option(NORTH)
    page.keyboard.press("Escape")  # leaves a step that a test still played
    page.locator(".mkviz-transport select").wait_for(state="hidden")
    put_in_theme(page, request.param)
    page.locator("button[data-mode=op]").focus()
    page.keyboard.press("f")
    wait(page, "!t.state.follow && Math.abs(t.range()[1] - t.state.hi) < 1")
    page.keyboard.press("[")
    wait(page, "t.range()[1] - t.range()[0] < 700")  # one of two steps of 600 µs
    return page


def test_play_pause_and_leave(page, request):
    page.click(".mkviz-transport button[data-do=play]")
    page.locator(PLAYED, has_text="Step 24").wait_for()
    until(page, "p.time > 5")
    ended = lambda: int(re.search(r"(\d+) of 10498 tasks ended", page.inner_text(PLAYED)).group(1))  # noqa: E731
    until(page, "p.time > 60")
    page.locator(PLAYED, has_not_text=re.compile(r"(^|\D)0 of 10498 tasks ended")).wait_for()
    assert ended() > 0
    page.keyboard.press(" ")
    page.locator(".mkviz-transport button[data-do=play]", has_text="Play").wait_for()
    page.wait_for_function("location.search.includes('play=24') && location.search.includes('at=')")
    rested = head(page)
    page.wait_for_timeout(400)
    assert head(page) == rested
    page.keyboard.press(" ")
    until(page, f"p.time > {rested}")
    page.keyboard.press("Escape")
    page.locator(PLAYED).wait_for(state="hidden")
    assert head(page) is None and page.locator(".mkviz-played:visible").count() == 0
    page.wait_for_function("!location.search.includes('play=')")


@pytest.mark.parametrize("page", ["light", "dark"], indirect=True)
def test_the_line_is_where_the_time_is_and_fades_the_rest(page):
    page.keyboard.press("ArrowRight")  # plays nothing, goes to the first event
    page.locator(PLAYED).wait_for()
    until(page, "p.time !== null")
    page.keyboard.press("p")
    until(page, "p.time > 60")
    page.keyboard.press("p")
    page.locator(".mkviz-transport button[data-do=play]", has_text="Play").wait_for()
    page.wait_for_timeout(300)  # frames in which the line comes to rest
    low, high = page.evaluate("Object.values(window.mkviz)[0].range()")
    plot = page.evaluate("Object.values(window.mkviz)[0].box()")
    covers = [c.bounding_box() for c in page.locator(".mkviz-played:visible").all()]
    assert len(covers) == 5  # timeline and four strips
    for inner in page.locator(".mkviz-played:visible > div").all():
        x = plot["x"] + (head(page) - low) / (high - low) * plot["width"]
        assert inner.bounding_box()["x"] == pytest.approx(x, abs=1.5)
    assert covers[0]["width"] == pytest.approx(plot["width"], abs=1)
    veil = page.locator(".mkviz-played > div").first.evaluate("(el) => getComputedStyle(el).backgroundColor")
    dark = page.evaluate("document.body.classList.contains('mkviz-dark')")
    shade = float(re.search(r"[\d.]+", veil.partition("srgb")[2] or veil).group())
    assert (shade < 0.2 or 1 < shade < 60) if dark else shade == 1 or shade > 200  # of the page's own colour
    assert re.search(r"0\.72\)?$", veil.strip())
    page.click(".mkviz-transport button[data-do=leave]")
    page.locator(PLAYED).wait_for(state="hidden")


def test_event_by_event(page):
    page.keyboard.press("ArrowRight")
    page.locator(f"{PLAYED} .now", has_text=re.compile("begin|end|publish")).wait_for()
    until(page, "p.time !== null")
    first = head(page)
    page.click("button[aria-label='event after']")
    until(page, f"p.time > {first}")
    second, said = head(page), page.inner_text(f"{PLAYED} .now")
    page.keyboard.press("ArrowRight")
    until(page, f"p.time > {second}")
    page.keyboard.press("ArrowLeft")
    until(page, f"p.time === {second}")
    page.locator(f"{PLAYED} .now", has_text=said).wait_for()
    page.keyboard.press("]")
    page.locator(PLAYED, has_text="Step 25").wait_for()
    page.keyboard.press("Escape")
    page.locator(PLAYED).wait_for(state="hidden")


def test_from_the_address_with_counters_filling_up(open_page, server, page):
    query = f"?source={NORTH.replace(' ', '+').replace(':', '%3A')}&play=24&at=100.5&pace=30&sms=4-9"
    fresh = open_page(server.url + query)
    fresh.locator(PLAYED, has_text="Step 24: 100 µs of 604 µs").wait_for()
    until(fresh, "p.time === 100.5")
    assert fresh.input_value(".mkviz-transport select") == "30"
    fresh.locator(".mkviz-transport output", has_text="SM 4 – 9").wait_for()
    counter = fresh.locator(".counter").first
    value, target = map(int, re.match(r"(\d+) of (\d+)", counter.locator("i").inner_text()).groups())
    assert 0 <= value <= target and re.search("last raised by .* on SM \\d+|not raised yet", counter.inner_text())
    fresh.select_option(".mkviz-transport select", "3")
    fresh.keyboard.press("Escape")  # out of the list
    page.keyboard.press("Escape")
