"""The page while a generator runs: text and timeline, Stop, errors, two sessions, the server gone and back."""

import re

import pytest

pytestmark = [pytest.mark.browser, pytest.mark.timeout(900)]


def timeline(page):
    """What the browser's half of the timeline knows: range (µs), follow, frames."""
    return page.evaluate("Object.values(window.mkviz ?? {}).map((t) => ({range: t.range(), ...t.state}))[0] ?? null")


def wait(page, condition):
    """Until ``condition`` (JavaScript over t, the timeline) holds."""
    page.wait_for_function(f"Object.values(window.mkviz ?? {{}}).some((t) => {condition})")


def put_in_theme(page, theme):
    """Light or dark, whichever the page is in."""
    wanted = "body.mkviz-dark" if theme == "dark" else "body:not(.mkviz-dark)"
    if not page.locator(wanted).count():
        page.click("[aria-label='Toggle theme']")
    page.wait_for_selector(wanted, state="attached")


def generate(page, prompt="Write a function", most=1500):
    """Ask, and wait until the page has taken it up: what ``tokens`` counts is then the new answer."""
    turns = page.locator(".turn.user").count()
    submit(page, prompt, most)
    page.locator(".turn.user").nth(turns).wait_for()


def submit(page, prompt, most=1500):
    """The replay takes 50 ms a token, so ``most`` are more than a minute: time to press Stop on a busy machine."""
    page.fill("textarea", prompt)
    page.fill("input[type=number]", str(most))
    page.click("button.go")


def note(page, pattern):
    """The line under the text, once it matches."""
    line = page.locator(".note", has_text=re.compile(pattern)).first
    line.wait_for()
    return line.inner_text()


def tokens(page):
    """Of the newest answer."""
    return page.locator(".turn.assistant:last-child span[data-step]")


def stop(page):
    page.click("button.stop")
    return note(page, "^stopped")


@pytest.fixture
def page(shared_page):
    if shared_page.locator("button.stop").is_enabled():  # a test that failed left it so
        stop(shared_page)
    shared_page.fill("input[aria-label=model]", "demo")
    return shared_page


def test_text_and_timeline_move_and_stop_stops(page):
    assert "answer appears here" in page.inner_text(".log")
    generate(page)
    tokens(page).nth(5).wait_for()
    wait(page, "t.state.frames > 2 && t.state.follow")
    early, text = timeline(page), page.inner_text(".turn.assistant")
    wait(page, f"t.range()[1] > {early['range'][1]}")
    tokens(page).nth(12).wait_for()
    assert page.inner_text(".turn.user") == "Write a function"
    assert text.startswith("def reverse(items):") and len(page.inner_text(".turn.assistant")) > len(text)
    note(page, r"generating · \d+ tokens · [\d.]+ tok/s")
    stopped = stop(page)
    assert int(re.search(r"(\d+) tokens", stopped)[1]) == tokens(page).count()
    assert page.locator("button.go").is_enabled() and page.locator("button.stop").is_disabled()
    assert page.locator(".mkviz-stats > div", has_text="tok/s").locator("b").inner_text() != "–"


def test_the_label_is_on_the_figure(page):
    generate(page)
    tokens(page).nth(3).wait_for()
    page.wait_for_function(
        "[...Bokeh.documents[0]._all_models.values()]"
        ".some((m) => m.type === 'Title' && m.text.startsWith('simulated (test replay)'))"
    )
    stop(page)


def test_an_error_is_one_line_in_the_page(page):
    for prompt, model, line in (
        ("", "demo", "the prompt is empty; write what the model should answer"),
        ("refuse", "demo", "prompt: 9999 tokens; at most 2048 fit the context"),
        ("hello", "broken", "model broken: no such directory; give a directory with config.json"),
        ("crash", "demo", "the generator failed: RuntimeError: the replay was told to crash"),
    ):
        page.fill("input[aria-label=model]", model)
        submit(page, prompt)
        page.locator(".note.error", has_text=line).wait_for()
        page.locator("button.go:enabled").wait_for()
    generate(page, "and on")  # the page lives
    tokens(page).nth(12).wait_for()
    stop(page)


def test_two_sessions_queue_and_both_get_their_text(page, open_page, server):
    second = open_page(server.url)
    generate(page, "hold")  # runs until it is stopped, so the second request comes while it runs
    tokens(page).nth(2).wait_for()
    generate(second, "me too")
    note(second, "^queued$")
    assert tokens(second).count() == 0
    wait(second, "t.state.frames > 0")  # it watches what runs meanwhile
    stop(page)
    tokens(second).nth(4).wait_for()
    count = tokens(page).count()
    tokens(second).nth(9).wait_for()
    assert tokens(page).count() == count  # texts do not mix
    stop(second)


def test_the_server_is_killed_and_comes_back(page, server):
    generate(page, "hold")
    tokens(page).nth(3).wait_for()
    page.wait_for_function("location.search.includes('boot=')")
    server.stop()
    page.locator(".mkviz-banner", has_text="Disconnected").wait_for()
    server.start()
    page.locator(".note", has_text="the server was restarted").wait_for()
    assert page.locator(".mkviz-banner").count() == 0
    assert page.locator(".turn.user").first.inner_text() == "Write a function"  # the conversation is still there
    generate(page, "again")
    tokens(page).nth(3).wait_for()
    wait(page, "t.state.frames > 1 && t.state.follow")
    stop(page)
