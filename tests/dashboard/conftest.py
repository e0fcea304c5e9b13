"""Fixtures of the page's tests: a server process with the replay generator, and a Chromium that watches what the page does.

To open a page takes seconds, many on a busy machine, so tests share one page per module and begin by putting it right.
"""

import contextlib
import os
import shutil

import pytest
from page_server import Server

MAX_MESSAGE = 1 << 20
PATIENCE = 120_000  # ms: machines that run tests may be busy


@pytest.fixture(scope="session")
def server():
    server = Server()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def chromium():
    sync_api = pytest.importorskip("playwright.sync_api")
    path = os.environ.get("MKVIZ_CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    with sync_api.sync_playwright() as playwright:
        try:
            browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        except sync_api.Error as error:
            pytest.skip(f"no Chromium: {error}")
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def context(chromium):
    """One for all pages, so that only the first one fetches and compiles the page's scripts."""
    context = chromium.new_context(viewport={"width": 1440, "height": 900})
    context.set_default_timeout(PATIENCE)
    yield context
    context.close()


@contextlib.contextmanager
def _opener(context):
    """open_(url) -> a page whose session runs.  At the end no page may have asked for anything outside, had an error, or got a
    message of 1 MB."""
    pages, complaints, sizes = [], [], [0]

    def watch_socket(socket):
        socket.on("framereceived", lambda data: sizes.append(len(data)))

    def watch_request(request):
        if not request.url.startswith(("http://localhost:", "data:", "blob:")):
            complaints.append(f"asked for {request.url}")

    def open_(url):
        page = context.new_page()
        pages.append(page)
        page.on("websocket", watch_socket)
        page.on("request", watch_request)
        page.on("pageerror", lambda error: complaints.append(f"error in the page: {error} {error.stack}"))
        page.goto(url)
        page.wait_for_selector("body[data-mkviz=ready]", state="attached")
        return page

    yield open_
    for page in pages:
        page.close()
    assert not complaints
    assert max(sizes) < MAX_MESSAGE


@pytest.fixture(scope="module")
def shared_page(context, server):
    """A page of the server that all tests of a module use."""
    with _opener(context) as open_:
        yield open_(server.url)


@pytest.fixture
def open_page(context):
    """For tests that need a page of their own."""
    with _opener(context) as open_:
        yield open_
