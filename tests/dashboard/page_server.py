"""A server process with the replay generator, for the page's tests."""

import os
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

HERE, ROOT = Path(__file__).parent, Path(__file__).parents[2]


class Server:
    """``serve_replay.py``, or another command of Python's that is given the port last, as a process of its own; ``stop`` kills
    it, ``start`` brings it back on the same port."""

    def __init__(self, *size: object, command: tuple[str, ...] = (str(HERE / "serve_replay.py"),)):
        with socket.socket() as free:
            free.bind(("localhost", 0))
            self.port = free.getsockname()[1]
        self.url, self.command = f"http://localhost:{self.port}/", [*command, str(self.port), *map(str, size)]
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen([sys.executable, *self.command], env={**os.environ, "PYTHONPATH": str(ROOT)}, cwd=HERE)
        deadline = time.monotonic() + 120
        while True:
            try:
                urllib.request.urlopen(self.url, timeout=30).read()
                return
            except OSError:  # not there yet, or too busy to answer
                assert self.process.poll() is None and time.monotonic() < deadline, "the server does not answer"
                time.sleep(0.2)

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()
