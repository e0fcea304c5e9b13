"""Fixtures of the page's tests: a server process with the replay generator, and a Chromium that watches what the page does."""

import os
import shutil

import pytest
from page_server import Server

MAX_MESSAGE = 1 << 20
PATIENCE = 120_000  # ms: machines that run tests may be busy


@pytest.fixture(scope="module")
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


@pytest.fixture
def open_page(chromium):
    """open_page(url) -> a page whose session runs.  At the end no page may have asked for anything outside, had an error, or
    got a message of 1 MB."""
    contexts, complaints, sizes = [], [], [0]

    def watch_socket(socket):
        socket.on("framereceived", lambda data: sizes.append(len(data)))

    def watch_request(request):
        if not request.url.startswith(("http://localhost:", "data:", "blob:")):
            complaints.append(f"asked for {request.url}")

    def open_(url, width=1440, height=900):
        context = chromium.new_context(viewport={"width": width, "height": height})
        contexts.append(context)
        context.set_default_timeout(PATIENCE)
        page = context.new_page()
        page.on("websocket", watch_socket)
        page.on("request", watch_request)
        page.on("pageerror", lambda error: complaints.append(f"error in the page: {error}"))
        page.goto(url)
        page.wait_for_selector("body[data-mkviz=ready]", state="attached")
        return page

    yield open_
    for context in contexts:
        context.close()
    assert not complaints
    assert max(sizes) < MAX_MESSAGE
