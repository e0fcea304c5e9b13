"""What the page costs: time, memory, in Chromium on this machine, which server and browser share.

    python benchmarks/dashboard.py wheel       a wheel notch to its new frame, at 1 and 5 million tasks
    python benchmarks/dashboard.py live        ten steps a second for ten minutes: frames, the server's memory, the page's heap
    python benchmarks/dashboard.py sessions    40 pages opened and closed: the server's memory
    python benchmarks/dashboard.py frozen      a browser that is stopped while steps come: the server's memory, and its return

Each writes tests/evidence/dashboard_WHAT.json.  Memory is the resident set in MB (10⁶ bytes); the heap is JavaScript's after a
collection.  The load average stands beside each figure: above the number of cores, times say little.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import psutil
from evidence import write
from playwright.sync_api import sync_playwright

HERE = Path(__file__).parent
STEP_TASKS = 20_000
NOTCHES = 12  # in, and as many out again
TIMELINE = "Object.values(window.mkviz)[0]"


def load() -> float:
    return round(os.getloadavg()[0], 2)


class Server:
    def __init__(self, *words: object):
        with socket.socket() as free:
            free.bind(("localhost", 0))
            port = free.getsockname()[1]
        self.url = f"http://localhost:{port}/"
        command = [sys.executable, str(HERE / "dashboard_server.py"), str(port), *map(str, words)]
        environment = {**os.environ, "PYTHONPATH": str(HERE.parent)}
        self.process = psutil.Popen(command, env=environment, stdout=subprocess.DEVNULL)
        while True:
            try:
                urllib.request.urlopen(self.url, timeout=60).read()
                return
            except (urllib.error.URLError, ConnectionError):
                assert self.process.poll() is None, "the server has ended"
                time.sleep(0.3)

    def rss(self) -> float:
        return round(self.process.memory_info().rss / 1e6, 1)

    def processor_seconds(self) -> float:
        return sum(self.process.cpu_times()[:2])


@contextlib.contextmanager
def serving(*words: object):
    server = Server(*words)
    try:
        yield server
    finally:
        server.process.kill()
        server.process.wait()


@contextlib.contextmanager
def chromium():
    with sync_playwright() as playwright:
        path = os.environ.get("MKVIZ_CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


def open_page(browser, url: str):
    """A page that shows its first frame."""
    page = browser.new_page(viewport={"width": 1440, "height": 900})
    page.set_default_timeout(300_000)
    page.goto(url)
    page.wait_for_selector("body[data-mkviz=ready]", state="attached")
    page.wait_for_function("Object.values(window.mkviz ?? {}).some((t) => t.state.frames > 0 && t.box())")
    return page


def frames(page) -> int:
    return page.evaluate(f"{TIMELINE}.state.frames")


def heap(page) -> float:
    """MB of JavaScript's heap in use, after a collection."""
    session = page.context.new_cdp_session(page)
    session.send("HeapProfiler.collectGarbage")
    used = session.send("Runtime.getHeapUsage")["usedSize"]
    session.detach()
    return round(used / 1e6, 1)


# wheel

WATCH = f"""() => {{
    const t = {TIMELINE}, apply = t.apply
    addEventListener("wheel", () => {{ t.at = performance.now() }}, {{capture: true}})
    t.apply = () => {{
        apply()
        const came = performance.now() - t.at
        requestAnimationFrame(() => requestAnimationFrame(() => {{ t.times = [came, performance.now() - t.at] }}))
    }}
}}"""


def wheel() -> dict:
    figures = {}
    with chromium() as browser:
        for tasks in (1_000_000, 5_000_000):
            with serving(tasks // STEP_TASKS, STEP_TASKS) as server:
                figures[f"{tasks // 1_000_000} M tasks"] = notches(browser, server)
    return figures


def notches(browser, server: Server) -> dict:
    page = open_page(browser, server.url)
    page.keyboard.press("f")
    time.sleep(3)
    before = load()
    page.evaluate(WATCH)
    box = page.evaluate(f"{TIMELINE}.box()")
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    time.sleep(1)
    times = []
    for notch in range(2 * NOTCHES):
        page.evaluate(f"{TIMELINE}.times = null")
        page.mouse.wheel(0, -100 if notch < NOTCHES else 100)
        page.wait_for_function(f"{TIMELINE}.times")
        times.append(page.evaluate(f"{TIMELINE}.times"))
        time.sleep(0.7)
    page.close()
    came, drawn = zip(*times, strict=True)
    return {
        "ms to new data, median": round(statistics.median(came), 1), "ms to new data, worst": round(max(came), 1),
        "ms to drawn, median": round(statistics.median(drawn), 1), "ms to drawn, worst": round(max(drawn), 1),
        "notches": len(times), "server MB": server.rss(), "load": [before, load()],
    }  # fmt: skip


# memory


def live(minutes: float) -> dict:
    rows = []
    with serving("live", STEP_TASKS) as server, chromium() as browser:
        page = open_page(browser, server.url)
        start, count, used = time.monotonic(), frames(page), server.processor_seconds()
        for k in range(int(minutes * 2) + 1):
            time.sleep(max(0, start + 30 * k - time.monotonic()))
            row = {"server MB": server.rss(), "heap MB": heap(page), "frames": frames(page) - count, "load": load()}
            rows.append({"minute": k / 2, **row})
            print(rows[-1], flush=True)
        seconds = time.monotonic() - start
        figures = {
            "minutes": round(seconds / 60, 1), "frames per second": round((frames(page) - count) / seconds, 1),
            "server's share of a core": round((server.processor_seconds() - used) / seconds, 2),
            "still following": page.evaluate(f"{TIMELINE}.state.follow"), "every 30 s": rows,
        }  # fmt: skip
    return figures


def sessions(count: int) -> dict:
    rss = []
    with serving(10, STEP_TASKS) as server, chromium() as browser:
        for k in range(count + 3):
            if k == 3:  # what the first pages load stays for all
                time.sleep(40)
                rss.append(server.rss())
            open_page(browser, server.url).close()
            if k > 3 and (k - 2) % 10 == 0:
                rss.append(server.rss())
        time.sleep(40)  # Bokeh lets go of a closed page within 32 s
        after = server.rss()
    return {
        "pages": count, "server MB before": rss[0], "server MB at every tenth": rss[1:], "server MB after": after,
        "load": load(),
    }  # fmt: skip


def frozen(seconds: float) -> dict:
    with serving("live", STEP_TASKS) as server, chromium() as browser:
        page = open_page(browser, server.url)
        time.sleep(60)  # the store is full by then
        before, count = server.rss(), frames(page)
        stopped = [p for p in psutil.Process().children(recursive=True) if "chrom" in p.name()]
        for process in stopped:
            process.send_signal(signal.SIGSTOP)
        during = []
        for _ in range(int(seconds / 10)):
            time.sleep(10)
            during.append(server.rss())
        for process in stopped:
            process.send_signal(signal.SIGCONT)
        resumed = time.monotonic()
        page.wait_for_function(f"{TIMELINE}.state.frames > {count + 5}")
        back = time.monotonic() - resumed
        time.sleep(10)
        return {
            "seconds": seconds, "server MB before": before, "server MB at every tenth second": during,
            "server MB ten seconds after": server.rss(), "seconds to six new frames": round(back, 2), "load": load(),
        }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=("wheel", "live", "sessions", "frozen"))
    parser.add_argument("--minutes", type=float, default=10, help="of live (default 10)")
    parser.add_argument("--pages", type=int, default=40, help="of sessions (default 40)")
    args = parser.parse_args()
    run = {"live": lambda: live(args.minutes), "sessions": lambda: sessions(args.pages), "frozen": lambda: frozen(60)}
    write(f"dashboard_{args.what}", run.get(args.what, wheel)())


if __name__ == "__main__":
    main()
