"""``mkviz view``: the address it prints answers, Ctrl-C ends it, and bad input is one line."""

import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
VIEW = [sys.executable, "-m", "mkviz", "view", "--no-open"]


def test_the_printed_address_answers_and_ctrl_c_ends_it():
    server = subprocess.Popen([*VIEW, "--port", "0"], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
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
    assert done.stderr == f"error: port {port} does not exist; one from 1024 to 65535, or 0 for any free one\n"


def test_a_port_in_use():
    with socket.socket() as taken:
        taken.bind(("localhost", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = subprocess.run([*VIEW, "--port", str(port)], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"error: port {port} is in use; another one with --port, or --port 0 for any free one\n"


def test_a_trace_that_is_not_there(tmp_path):
    done = subprocess.run([*VIEW, str(tmp_path / "no.mkt")], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr.startswith("error: ") and done.stderr.count("\n") == 1
    assert "no.mkt" in done.stderr
