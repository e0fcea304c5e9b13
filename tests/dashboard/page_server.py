"""A server process with the replay generator, for the page's tests."""

import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

HERE, ROOT = Path(__file__).parent, Path(__file__).parents[2]


class Server:
    """``serve_replay.py`` as a process of its own; ``stop`` kills it, ``start`` brings it back on the same port."""

    def __init__(self, *size: object):
        with socket.socket() as free:
            free.bind(("localhost", 0))
            self.port = free.getsockname()[1]
        self.url, self.size = f"http://localhost:{self.port}/", [str(s) for s in size]
        self.start()

    def start(self) -> None:
        command = [sys.executable, str(HERE / "serve_replay.py"), str(self.port), *self.size]
        self.process = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(ROOT)}, cwd=HERE)
        deadline = time.monotonic() + 120
        while True:
            try:
                urllib.request.urlopen(self.url, timeout=30).read()
                return
            except (urllib.error.URLError, ConnectionError):
                assert self.process.poll() is None and time.monotonic() < deadline, "the server does not answer"
                time.sleep(0.2)

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()
