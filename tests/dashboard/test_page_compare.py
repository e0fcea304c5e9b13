"""The page with a simulated H200 beside what is live, and with two sources on one time axis."""

import re

import pytest
from test_page_live import generate, put_in_theme, stop, timeline, tokens, wait

pytestmark = [pytest.mark.browser, pytest.mark.timeout(900)]

MEGAKERNEL, PER_OP = "simulated on H200: demo", "simulated on H200, a kernel per op: demo"
FIGURE = "[...Bokeh.documents[0]._all_models.values()].find((m) => m.type === 'Figure' && m.visible && {})"
ABOVE = FIGURE.format(r"/^simulated \(H200\) /.test(m.title?.text)")
BELOW = FIGURE.format("/kernel per op/.test(m.title?.text)")
BELOW_BOX = f"""(() => {{
  const figure = {BELOW}, view = figure && figure.document.views_manager.find_one(figure)
  const outer = view?.canvas_view?.el?.getBoundingClientRect(), inner = view?.frame.bbox
  return outer?.width ? {{x: outer.x + inner.left, y: outer.y + inner.top, width: inner.width, height: inner.height}} : null
}})()"""


def select(page, label, name):
    page.locator(f"select[aria-label='{label}']").select_option(name)


def title(page, pattern):
    """The label on a figure, once one matches."""
    found = f"[...Bokeh.documents[0]._all_models.values()].find((m) => m.type === 'Title' && /{pattern}/.test(m.text))"
    page.wait_for_function(found)
    return page.evaluate(f"{found}.text")


def told(page, box, words=r"^(?!.*no task left)"):
    """A place of the figure whose tip matches: one of some, as there may be nothing at one, and looked at again, as what comes
    late of a zoom takes a tip away."""
    for _ in range(40):
        for share in (0.3, 0.4, 0.5, 0.6, 0.7):
            place = box["x"] + share * box["width"], box["y"] + 0.5 * box["height"]
            page.mouse.move(place[0] - 1, place[1])
            page.mouse.move(*place)
            page.wait_for_timeout(300)
            tips = page.locator(".mkviz-tip:visible").all_inner_texts()
            if tips and re.search(words, tips[0], re.DOTALL):
                return place
    raise AssertionError(f"no tip with {words!r}")


@pytest.fixture(scope="module")
def lived(shared_page):
    generate(shared_page)
    tokens(shared_page).nth(11).wait_for()
    stop(shared_page)
    return shared_page


@pytest.fixture(params=["light"])  # both where a test looks at colours
def page(request, lived):
    """The simulated megakernel shown, compared with nothing, in a theme."""
    put_in_theme(lived, request.param)
    select(lived, "source", MEGAKERNEL)
    select(lived, "compare with", "")
    lived.wait_for_function(f"!{BELOW}")
    wait(lived, "t.state.frames > 0 && t.box()")
    return lived


def compared(page):
    select(page, "compare with", PER_OP)
    title(page, r"kernel per op.*takes")
    page.wait_for_function(f"{BELOW_BOX}?.height > 60")
    return page.evaluate(BELOW_BOX)


def test_the_live_text_on_a_simulated_h200(page):
    title(page, r"^simulated \(H200\) · tiny-moe · 132 SMs")
    step = int(tokens(page).nth(4).get_attribute("data-step"))
    tokens(page).nth(4).click()  # shows its step, with the edges of those before and after
    page.locator(".mkviz-stats > div", has_text=re.compile(rf"^step\s*{step - 1} – {step + 1}$")).wait_for()
    tokens(page).nth(5).hover()
    page.wait_for_function("[...Bokeh.documents[0]._all_models.values()].some((m) => m.type === 'BoxAnnotation' && m.visible)")
    page.keyboard.press("l")
    generate(page, "go on")
    tokens(page).nth(3).wait_for()
    before = timeline(page)["range"]
    wait(page, f"t.state.follow && t.range()[1] > {before[1]}")
    assert page.locator("select[aria-label=source]").input_value() == MEGAKERNEL
    stop(page)


@pytest.mark.parametrize("page", ["light", "dark"], indirect=True)
def test_two_sources_on_one_time_axis(page):
    page.keyboard.press("l")  # the newest steps, whose begins are furthest apart
    box = compared(page)
    said = r"step (\d+) takes ([\d.]+) µs, above ([\d.]+) µs \((?:the same|([\d.]+) ×.*)\) · moved"
    begins = f"""[{ABOVE}, {BELOW}].map((f) => {{
      const steps = f.renderers.map((r) => r.data_source.data).find((d) => d.text && d.alpha)
      const step = {BELOW}.title.text.match(/step \\d+/)?.[0]
      return steps?.left[[...steps.text].findIndex((t) => t.startsWith(step))] ?? 0
    }})"""
    page.wait_for_function(f"{begins}.every((b) => b > 0)")  # both figures are of the step that the title names
    begins = page.evaluate(begins)
    assert begins[0] == pytest.approx(begins[1], abs=0.001)
    _, long, upper, ratio = re.search(said, title(page, "takes.*moved")).groups()
    long, upper = float(long), float(upper)
    assert max(long, upper) / min(long, upper) == pytest.approx(float(ratio or 1), abs=0.02)
    assert page.evaluate(f"{BELOW}.x_range === {ABOVE}.x_range")
    above = page.evaluate("Object.values(mkviz)[0].box()")
    assert (above["x"], above["width"]) == pytest.approx((box["x"], box["width"]), abs=1)
    theme = page.evaluate("getComputedStyle(document.body).getPropertyValue('--mkviz-page').trim()")
    assert page.evaluate(f"{BELOW}.border_fill_color") == theme

    page.mouse.move(box["x"] + 0.5 * box["width"], box["y"] + 0.5 * box["height"])
    page.mouse.wheel(0, -300)
    wait(page, "!t.state.follow")
    shown = timeline(page)["range"]
    page.keyboard.press("[")  # a whole step above, and at least as much of one below: between steps there is nothing to tell
    wait(page, f"Math.abs(t.range()[0] - {shown[0]}) > 0.01")
    told(page, box, "step")
    page.mouse.move(5, 5)
    page.locator(".mkviz-tip:visible").wait_for(state="hidden")
    page.mouse.click(*told(page, box))
    page.locator(".card", has_text=f"below: {PER_OP}").wait_for()
    page.keyboard.press("Escape")
    page.locator(".card").first.wait_for(state="hidden")
    select(page, "compare with", "")
    page.wait_for_function(f"!{BELOW}")
    wait(page, f"t.box().height > {above['height'] + 50}")


def test_a_range_measured_below_is_measured_of_both(page):
    box = compared(page)
    page.keyboard.press("f")  # everything
    wait(page, "!t.state.follow && Math.abs(t.range()[0] - t.state.lo) < 1 && Math.abs(t.range()[1] - t.state.hi) < 1")
    low, high = timeline(page)["range"]
    x, y = box["x"] + 0.2 * box["width"], box["y"] + 0.6 * box["height"]
    page.keyboard.down("Shift")
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x + 200, y, steps=4)
    page.mouse.up()
    page.keyboard.up("Shift")
    below = page.locator(".card", has_text="Range").filter(has_text=f"below: {PER_OP}")
    below.wait_for()
    above = page.locator(".card", has_text="Range").filter(has_not_text="below:")
    assert above.count() == 1 and above.inner_text() != below.inner_text()
    for card in (above, below):
        number, unit = re.search(r"Range ([\d.]+) (ns|µs|ms)", card.inner_text()).groups()
        expected = 200 / box["width"] * (high - low)
        assert float(number) * {"ns": 1e-3, "µs": 1, "ms": 1000}[unit] == pytest.approx(expected, rel=0.02)
    assert timeline(page)["range"] == [low, high]  # measuring is not panning
    bands = (
        f"[{ABOVE}, {BELOW}].map((f) => f.center.find((r) => r.type === 'BoxAnnotation' && r.visible && r.level === 'overlay'))"
    )
    edges = page.evaluate(f"{bands}.map((b) => [b.left, b.right])")
    assert edges[0] == edges[1] == pytest.approx([low + 0.2 * (high - low), low + 0.2 * (high - low) + expected], rel=0.01)
    page.keyboard.press("Escape")
    page.locator(".card").first.wait_for(state="hidden")
    page.wait_for_function(f"{bands}.every((b) => !b)")


def test_it_follows_below_too(page):
    compared(page)
    page.keyboard.press("l")
    generate(page, "more")
    step = int(tokens(page).nth(8).get_attribute("data-step"))
    page.wait_for_function(f"Number({BELOW}.title.text.match(/step (\\d+) takes/)?.[1]) >= {step}")
    stop(page)


def test_comparison_and_tab_survive_a_reload(page):
    compared(page)
    page.locator("[role=tab][data-tab=steps]").click()
    shown = timeline(page)["range"]
    page.keyboard.press("[")
    # the address may name the range from before the key, which may still be shown: wait until it is not
    wait(page, f"!t.state.follow && Math.abs(t.range()[0] - {shown[0]}) > 1")
    before = timeline(page)["range"]
    page.wait_for_function("/below=simulated/.test(location.search) && /tab=steps/.test(location.search)")
    page.wait_for_function(f"Math.abs(parseFloat(new URLSearchParams(location.search).get('range')) - {before[0]}) < 1")
    page.reload()
    page.wait_for_selector("body[data-mkviz=ready]", state="attached")
    title(page, r"kernel per op.*takes")
    wait(page, f"Math.abs(t.range()[0] - {before[0]}) < 1")
    assert page.locator("select[aria-label='compare with']").input_value() == PER_OP
    assert page.get_attribute("[role=tab][data-tab=steps]", "aria-selected") == "true"
    page.locator("[role=tabpanel] tr", has_text="tasks").wait_for()
    page.locator("[role=tab][data-tab=text]").click()


def test_the_address_forgets_what_is_gone(page):
    page.keyboard.press("[")
    page.wait_for_function("/range=/.test(location.search)")
    page.keyboard.press("l")
    page.wait_for_function("!/range/.test(location.search) && /source=simulated/.test(location.search)")
