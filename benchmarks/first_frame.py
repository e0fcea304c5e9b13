"""From a clean clone to the first live frame: what somebody waits for who tries mkviz on a machine that has never had it.

    python benchmarks/first_frame.py [--python python3.12]

Clones this repository's HEAD into an empty folder, makes the venv as ``make demo`` does, without pip's cache, serves the page,
opens it in Chromium, presses Generate as soon as there is a button, and stops at the first frame that shows a task.  On a busy
machine the processor time says more than the clock.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import psutil
from evidence import write
from playwright.sync_api import sync_playwright

ROOT = Path(__file__).parents[1]
PATIENCE = 300_000  # ms


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--python", help="the Python to make the venv with (default: the one make picks)")
    args = parser.parse_args()
    marks, processor, start = {}, {}, time.monotonic()

    def mark(name: str) -> None:
        marks[name] = round(time.monotonic() - start, 1)

    with tempfile.TemporaryDirectory() as folder:
        clone = Path(folder) / "mkviz"
        environment = {**os.environ, "PIP_NO_CACHE_DIR": "1"}
        environment.pop("PYTHONPATH", None)
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
        mark("cloned")
        python = [f"PYTHON={args.python}"] if args.python else []
        subprocess.run(["make", *python, ".venv/base"], cwd=clone, env=environment, check=True)
        mark("installed")
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        processor["install"] = round(used.ru_utime + used.ru_stime, 1)
        view = [clone / ".venv/bin/mkviz", "view", "--no-window"]
        server = subprocess.Popen(view, cwd=clone, env=environment, stdout=subprocess.PIPE, text=True)
        try:
            address = next(word for word in server.stdout.readline().split() if word.startswith("http"))
            mark("address printed")
            first_frame(address, mark)
            used = psutil.Process(server.pid).cpu_times()
            processor["server"] = round(used.user + used.system, 1)
        finally:
            server.terminate()
            server.wait()
    write("first_frame", {"seconds_since_start": marks, "processor_seconds": processor, "load_before": load})


def first_frame(address: str, mark) -> None:
    with sync_playwright() as playwright:
        path = os.environ.get("MKVIZ_CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport={"width": 1440, "height": 900})
        page.set_default_timeout(PATIENCE)
        page.goto(address)
        page.wait_for_selector("body[data-mkviz=ready]", state="attached")
        mark("page ready")
        page.locator("textarea").first.fill("Write a Python function that reverses a string.")
        page.get_by_role("button", name="Generate").click()
        page.wait_for_function("Object.values(window.mkviz ?? {}).some((page) => page.state.frames > 0)")
        mark("first live frame")
        browser.close()


if __name__ == "__main__":
    load = round(os.getloadavg()[0], 1)
    main()
