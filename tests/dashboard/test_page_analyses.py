"""The page of analyses in a browser, on the smaller recording of an H200, and the report, which is one file."""

import re
from urllib.parse import quote, unquote_plus

import pytest
from test_page_live import put_in_theme

from mkviz.dashboard.recordings import recordings
from mkviz.findings import ANALYSES
from mkviz.findings.path import of_path
from mkviz.reading import Reading
from mkviz.report import Report
from mkviz.step_records import steps_of
from mkviz.trace import Trace

pytestmark = [pytest.mark.browser, pytest.mark.timeout(900)]

DEMO = "recorded on H200: demo model"
FIGURES = "[...Bokeh.documents[0]._all_models.values()].filter((m) => m.type === 'Figure')"


def panel(page, name):
    """The card of an analysis."""
    return page.locator(".analysis", has=page.locator("h2", has_text=re.compile(f"^{re.escape(ANALYSES[name].title)}"))).first


def answered(page, *names):
    """Until these have their answers (all, by default)."""
    for name in names or ANALYSES:
        panel(page, name).locator(".answer").wait_for()
        panel(page, name).locator(".busy", has_text=re.compile("^$")).wait_for(state="attached")


def test_from_words_to_a_task_on_the_timeline_and_back_to_all_analyses(open_page, server):
    page = open_page(server.url + f"analyses?source={quote(DEMO)}&panel=blame&steps=99")
    panel(page, "blame").locator(".state", has_text="there is no step 99; one from 17 to 18").wait_for()
    assert page.locator(".analysis h2").count() == 1
    page.fill("input[aria-label=steps]", "worst")
    page.keyboard.press("Enter")
    page.locator(".mkviz-bar output", has_text="step 17, the slowest").wait_for()
    answered(page, "blame")
    page.wait_for_function("location.search.includes('steps=worst')")
    put_in_theme(page, "dark")
    page.wait_for_function(f"{FIGURES}.length && {FIGURES}.every((m) => m.background_fill_color === '#14181f')")

    page.reload()
    page.wait_for_selector("body[data-mkviz=ready]", state="attached")
    answered(page, "blame")
    assert page.input_value("input[aria-label=steps]") == "worst" and page.locator(".analysis h2").count() == 1
    said = panel(page, "blame").locator(".answer").inner_text().replace("\xa0", " ")
    assert re.match(r"Step 17 takes 179 µs; \d+\.\d % of it is overhead \(idle although ready\)", said)

    panel(page, "blame").locator("td a").first.click()  # leads to the timeline, the task pinned
    page.locator(".card h3", has_text="qkv").wait_for()
    page.wait_for_function("location.search.includes('pin=17.')")
    back = page.locator("a", has_text="Analyses")
    assert unquote_plus(back.get_attribute("href")) == f"analyses?source={DEMO}&steps=17"
    back.click()
    page.locator(".mkviz-bar output", has_text="step 17 ·").wait_for()
    answered(page, *(name for name in ANALYSES if name != "diff"))
    panel(page, "diff").locator(".state", has_text="step 17 is the slowest one itself").wait_for()
    titles = page.evaluate(f"{FIGURES}.map((m) => m.title.text)")
    assert len(titles) == 9  # one each, and occupancy has two
    assert sum("simulated from: recorded on NVIDIA H200" in title for title in titles) == 1
    assert sum(title.endswith("· recorded on NVIDIA H200") for title in titles) == 8


def test_the_parts_of_a_step_add_up_to_it(open_page, server):
    page = open_page(server.url + f"analyses?source={quote(DEMO)}&panel=waterfall&steps=17")
    answered(page, "waterfall")
    assert panel(page, "waterfall").locator(".answer").inner_text().startswith("Step 17 takes 179")
    page.wait_for_function(f"{FIGURES}.length === 1")
    title, names, left, right = page.evaluate(
        f"{FIGURES}.map((f) => [f.title.text, ...['name', 'left', 'right'].map((k) => "
        "[...f.renderers[0].data_source.get_column(k)])])[0]"
    )
    assert title == "parts of step 17 · recorded on NVIDIA H200"
    assert names[0] == "its bytes" and names[-1] == "step" and {"compute", "hop", "overhead"} < set(names)
    assert left[0] == left[-1] == 0 and left[1:-1] == pytest.approx(right[:-2])  # each begins where the one before it ends
    (step,) = steps_of(Trace.open(recordings()[DEMO]), 17)
    assert right[-2:] == pytest.approx([step.makespan / 1e3] * 2)  # µs
    shares = panel(page, "waterfall").locator("tbody td:nth-child(3)").all_inner_texts()
    *parts, whole = (float(text.replace("\xa0", " ").removesuffix(" %")) for text in shares)
    assert len(parts) == len(names) - 1 and whole == 100 and sum(parts) == pytest.approx(100, abs=0.05 * len(parts))


@pytest.fixture
def file(tmp_path):
    """A report of the blame path; what else was refused is in it in words."""
    trace = Trace.open(recordings()[DEMO])
    reading = Reading.of_source(trace)
    report = Report(trace, reading, {"blame": of_path(reading)}, {name: "left out" for name in ANALYSES if name != "blame"})
    path = tmp_path / "report.html"
    path.write_text(report.to_html(dark=True), encoding="utf-8")
    return path


def test_the_report_draws_and_asks_for_nothing(context, file):
    page, asked, errors = context.new_page(), [], []
    page.on("request", lambda request: asked.append(request.url))
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    page.goto(file.as_uri())
    page.wait_for_function(f"window.Bokeh && Bokeh.documents.length && {FIGURES}.length === 1")
    page.locator("section#blame canvas").first.wait_for()
    assert page.locator("section#tails .refused").inner_text() == "This cannot be told: left out."
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(20, 24, 31)"
    page.close()
    assert asked == [file.as_uri()] and not errors
