"""``mkviz view``: the address it prints answers, Ctrl-C or its window ends it, and bad input is one line."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from mkviz.dashboard import window

ROOT = Path(__file__).parents[2]
VIEW = [sys.executable, "-m", "mkviz", "view", "--no-window"]


def test_the_printed_address_answers_and_ctrl_c_ends_it():
    server = subprocess.Popen(VIEW, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        line = server.stdout.readline()
        assert line.startswith("mkviz is at http://localhost:"), server.stderr.read()
        with urllib.request.urlopen(line.split()[3], timeout=60) as answer:
            assert answer.status == 200 and b"<title>mkviz</title>" in answer.read()
        server.send_signal(signal.SIGINT)
        _, errors = server.communicate(timeout=60)
        assert server.returncode == 0 and "Traceback" not in errors
    finally:
        server.kill()
        server.wait()


@pytest.mark.parametrize("port", ["70000", "-1"])
def test_a_port_that_does_not_exist(port):
    done = subprocess.run([*VIEW, f"--port={port}"], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"error: port {port} does not exist; one from 1024 to 65535, or none for any free one\n"


def test_a_port_in_use():
    with socket.socket() as taken:
        taken.bind(("localhost", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = subprocess.run([*VIEW, "--port", str(port)], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"error: port {port} is in use; another one with --port, or none for any free one\n"


def test_a_trace_that_is_not_there(tmp_path):
    done = subprocess.run([*VIEW, str(tmp_path / "no.mkt")], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr.startswith("error: ") and done.stderr.count("\n") == 1
    assert "no.mkt" in done.stderr


BROWSER = """#!/bin/sh
echo "$1" > {told}
while [ ! -e {closed} ]; do sleep 0.1; done
exit {code}
"""


@pytest.fixture
def browser(tmp_path):
    """A ``chromium`` first on the PATH: writes what it was told to ``told``, stays until ``closed`` is there."""

    def make(code=0):
        told, closed = tmp_path / "told", tmp_path / "closed"
        program = tmp_path / "chromium"
        program.write_text(BROWSER.format(told=told, closed=closed, code=code))
        program.chmod(0o755)
        path = os.pathsep.join([str(tmp_path), os.environ["PATH"]])
        return {**os.environ, "PATH": path, "DISPLAY": ":99"}, told, closed

    return make


def viewing(env, *options):
    """A ``mkviz view`` process that has printed its address, and the address."""
    command = [sys.executable, "-m", "mkviz", "view", *options]
    server = subprocess.Popen(command, cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    return server, server.stdout.readline().split()[3]


def wait_for(path):
    deadline = time.monotonic() + 60
    while not path.exists() or not path.read_text():
        assert time.monotonic() < deadline, f"{path} is not there"
        time.sleep(0.05)
    return path.read_text().strip()


def test_it_opens_a_window_of_its_own_and_ends_with_it(browser):
    env, told, closed = browser()
    server, address = viewing(env)
    try:
        assert wait_for(told) == f"--app={address}"
        assert server.poll() is None
        closed.write_text("by the user")
        assert server.wait(timeout=60) == 0
    finally:
        server.kill()
        server.wait()


def test_a_window_that_does_not_open_leaves_the_server(browser):
    env, _, closed = browser(code=1)
    closed.write_text("at once")
    server, address = viewing(env)
    try:
        with pytest.raises(subprocess.TimeoutExpired):
            server.wait(timeout=3)
        assert urllib.request.urlopen(address, timeout=60).status == 200
    finally:
        server.kill()
        server.wait()


def test_two_views_at_once_take_ports_of_their_own_and_no_window_opens_none(browser):
    env, told, _ = browser()
    (first, one), (second, other) = viewing(env, "--no-window"), viewing(env, "--no-window")
    try:
        assert one != other
        assert all(urllib.request.urlopen(address, timeout=60).status == 200 for address in (one, other))
        assert not told.exists()
    finally:
        for server in (first, second):
            server.kill()
            server.wait()


def test_where_no_chromium_is_pywebview_shows_it_and_else_the_browser(monkeypatch):
    monkeypatch.setattr(window, "chromium", lambda: None)
    monkeypatch.setattr(window.importlib.util, "find_spec", lambda name: name == "webview" or None)
    command = window.command_for("http://localhost:1/", "profile")
    assert command[0] == sys.executable and command[-1] == "http://localhost:1/" and "webview.start()" in command[2]
    monkeypatch.setattr(window.importlib.util, "find_spec", lambda name: None)
    assert window.command_for("http://localhost:1/", "profile") is None
    opened = []
    monkeypatch.setattr(window.webbrowser, "open", opened.append)
    shown = window.Window("http://localhost:1/")
    assert opened == ["http://localhost:1/"] and not shown.over
    shown.close()


@pytest.fixture
def screen():
    """The name of a display of its own."""
    if shutil.which("Xvfb") is None or window.chromium() is None:
        pytest.skip("a window needs a Chromium and, as tests have no screen, Xvfb")
    reader, writer = os.pipe()
    server = subprocess.Popen(["Xvfb", "-displayfd", str(writer), "-screen", "0", "1600x1000x24"], pass_fds=[writer],
                              stderr=subprocess.DEVNULL)  # fmt: skip
    os.close(writer)
    with os.fdopen(reader) as told:
        yield f":{told.readline().strip()}"
    server.terminate()
    server.wait()


REAL_BROWSER = """#!/bin/sh
echo "$@" > {told}
exec {chromium} --no-sandbox --remote-debugging-port=0 "$@"
"""


@pytest.mark.browser
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_real_window_shows_the_page_and_ends_the_server(screen, tmp_path):
    told, program = tmp_path / "told", tmp_path / "chromium"
    program.write_text(REAL_BROWSER.format(told=told, chromium=window.chromium()))
    program.chmod(0o755)
    server, address = viewing({**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}", "DISPLAY": screen})
    try:
        profile = next(word.partition("=")[2] for word in wait_for(told).split() if word.startswith("--user-data-dir="))
        port = wait_for(Path(profile) / "DevToolsActivePort").split()[0]

        def ask(path):
            with urllib.request.urlopen(f"http://localhost:{port}/json/{path}", timeout=60) as answer:
                return answer.read()

        deadline, pages = time.monotonic() + 120, []
        while not any(page["title"] == "mkviz" for page in pages):
            assert time.monotonic() < deadline, pages
            time.sleep(0.2)
            pages = [page for page in json.loads(ask("list")) if page["type"] == "page"]
        assert [page["url"].startswith(address) for page in pages] == [True]  # one window, without tabs of its own
        assert server.poll() is None
        ask(f"close/{pages[0]['id']}")
        assert server.wait(timeout=60) == 0
        assert not Path(profile).exists()
    finally:
        server.kill()
        server.wait()
