"""The page's sources: recordings of a real GPU that come with it."""

import pytest
from test_page_live import wait
from test_recordings import NORTH

pytestmark = [pytest.mark.browser, pytest.mark.timeout(900)]


@pytest.fixture
def page(shared_page):
    return shared_page


def test_a_recording_of_an_h200_is_shown_as_what_it_is(page):
    page.locator("select[aria-label=source]").select_option(NORTH)
    page.wait_for_function(
        "[...Bokeh.documents[0]._all_models.values()]"
        ".some((m) => m.type === 'Title' && /^recorded .*NVIDIA H200.*132 SMs/.test(m.text))"
    )
    wait(page, "t.state.frames > 0 && !t.state.follow")
    rows = page.evaluate(
        "[...Bokeh.documents[0]._all_models.values()]"
        ".filter((m) => m.type === 'ColumnDataSource' && m.data.image?.length).map((m) => m.data.image[0].shape[0])"
    )
    assert rows == [132]
    page.locator(".mkviz-stats > div", has_text="tasks in view").locator("b", has_text="20 996").wait_for()
    assert page.locator("button.live").is_hidden()  # a recording does not go on
    page.wait_for_function("decodeURIComponent(location.search).includes('source=recorded')")


def test_tables_of_the_view_beside_the_timeline(page):
    page.locator("select[aria-label=source]").select_option(NORTH)
    page.locator("[role=tab][data-tab=text]").focus()
    page.keyboard.press("ArrowRight")  # the keyboard alone
    ops = page.locator("[role=tabpanel] tr", has_text="lm_head")
    ops.wait_for()
    page.keyboard.press("ArrowRight")
    button = page.locator("[role=tabpanel] button").first
    button.wait_for()
    label = button.inner_text()
    button.focus()
    page.keyboard.press("Enter")
    page.locator(".card h3", has_text=label.rpartition(" · ")[0]).wait_for()
    page.keyboard.press("Escape")
    page.locator("[role=tab][data-tab=text]").click()
    page.locator("[role=tabpanel]").wait_for(state="hidden")
