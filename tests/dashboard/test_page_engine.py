"""The page of ``mkviz view`` with the CPU engine behind it: a prompt, its answer, the steps that made it."""

import re

import pytest
from page_server import Server
from test_page_live import generate, note, timeline, tokens, wait

pytestmark = [pytest.mark.browser, pytest.mark.timeout(900)]

COMPILING = 600_000  # ms; the interpreter may have to be compiled first
PROMPT = "Write a function that reverses a list"


@pytest.fixture
def page(open_page):
    server = Server(command=("-m", "mkviz", "view", "--no-window", "--port"))
    yield open_page(server.url)
    server.stop()


def answer(page):
    """A whole answer, and the view that follows its last step."""
    generate(page, PROMPT)
    tokens(page).first.wait_for(state="attached", timeout=COMPILING)  # until then the line may be of the answer before
    page.locator(".note", has_text=re.compile("^done")).wait_for(timeout=COMPILING)
    wait(page, "t.state.follow && Math.abs(t.range()[1] - t.state.hi) < 1")
    return page.locator(".turn.assistant").last.text_content()


def test_prompt_text_timeline_pause_pan_token(page):
    text = answer(page)
    assert page.locator(".turn.assistant pre").inner_text().startswith("python\ndef ")
    page.wait_for_function(
        "[...Bokeh.documents[0]._all_models.values()].some((m) => m.type === 'Title' && m.text.startsWith('measured (cpu)'))"
    )
    seen = timeline(page)["range"]
    assert answer(page) == text  # greedy
    wait(page, f"t.state.lo <= {seen[0]} && t.range()[0] > {seen[1]}")

    page.click("button.pause")
    page.locator("button.pause", has_text="Resume").wait_for()
    seen = timeline(page)["range"]
    generate(page, PROMPT)
    tokens(page).first.wait_for(state="attached")
    note(page, "^done")
    assert timeline(page)["range"] == seen
    page.click("button.pause")
    wait(page, f"t.range()[0] > {seen[1]}")

    seen = timeline(page)["range"]
    box = page.evaluate("Object.values(window.mkviz)[0].box()")
    x, y = box["x"] + 0.4 * box["width"], box["y"] + 0.5 * box["height"]
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x + 100, y, steps=4)
    page.mouse.up()
    wait(page, f"!t.state.follow && t.range()[1] < {seen[1]}")

    token = tokens(page).and_(page.locator(".code")).nth(4)
    step = token.get_attribute("data-step")
    token.click()
    page.locator(".mkviz-stats > div", has_text=re.compile(rf"^step\s*{step}$")).wait_for()
    page.mouse.move(x, y)  # and back: the step lights what it made
    page.locator(".turn.assistant span.lit").first.wait_for()
    assert [span.get_attribute("data-step") for span in page.locator(".turn.assistant span.lit").all()] == [step]
