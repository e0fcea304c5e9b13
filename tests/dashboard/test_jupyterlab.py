"""All views of a notebook in JupyterLab in Chromium, light and dark: drawn, moving together, following a generator, offline.

Set MKVIZ_SCREENSHOTS to a folder to look at them.
"""

import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat")
pytest.importorskip("jupyterlab")

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(1800)]

HERE, ROOT = Path(__file__).parent, Path(__file__).parents[2]
CELLS = [
    f"import sys\nsys.path += [{str(ROOT)!r}, {str(HERE)!r}]\nimport mkviz\nfrom replay_generator import ReplayGenerator",
    "from mkviz.dashboard.recordings import recordings\n"
    "trace = next(path for name, path in recordings().items() if 'demo' in name)\n"
    "view = mkviz.timeline(trace)\nview",
    "view.occupancy",
    "view.waits",
    "view.tails",
    "view.bandwidth",
    "mkviz.timeline(trace)",  # a second one, which stays where it is
    "mkviz.live(ReplayGenerator(pace=1), 'Write a function')",
]
VIEWS = len(CELLS) - 1
SETTINGS = {
    "apputils-extension/themes": {"theme": "JupyterLab Light"},
    "apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False},
    "notebook-extension/tracker": {"windowingMode": "none"},
}


@pytest.fixture(scope="module", params=["Light", "Dark"])
def lab(request, tmp_path_factory):
    """(address of the notebook, theme) in a JupyterLab of its own."""
    folder = tmp_path_factory.mktemp("lab")
    for name, values in SETTINGS.items():
        values = {"theme": f"JupyterLab {request.param}"} if "themes" in name else values
        path = folder / "settings" / "@jupyterlab" / f"{name}.jupyterlab-settings"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(values))
    (folder / "work").mkdir()
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    cells = [nbformat.v4.new_code_cell(c) for c in CELLS]
    notebook = nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": kernel})
    nbformat.write(notebook, folder / "work" / "views.ipynb")
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", f"--port={port}", "--ServerApp.token=", "--allow-root",
               "--LabApp.expose_app_in_browser=True", f"--ServerApp.root_dir={folder / 'work'}"]  # fmt: skip
    env = {**os.environ, "JUPYTERLAB_SETTINGS_DIR": str(folder / "settings"), "JUPYTER_CONFIG_DIR": str(folder / "config")}
    with open(folder / "log", "w") as log:
        server = subprocess.Popen(command, env=env, stdout=log, stderr=subprocess.STDOUT)
    deadline = time.monotonic() + 120
    while True:
        try:
            urllib.request.urlopen(f"http://localhost:{port}/lab", timeout=30)
            break
        except (urllib.error.URLError, ConnectionError):
            assert server.poll() is None and time.monotonic() < deadline, (folder / "log").read_text()
            time.sleep(0.5)
    yield f"http://localhost:{port}/lab/tree/views.ipynb?reset", request.param
    server.terminate()
    server.wait()


def run_all(page):
    """Once the kernel has answered: cells that are run before stay unrun."""
    page.locator(".jp-StatusBar-Widget", has_text="Python 3 (ipykernel) | Idle").wait_for()
    page.evaluate("window.jupyterapp.commands.execute('notebook:run-all-cells')")
    page.wait_for_function(
        "[...document.querySelectorAll('.jp-Notebook .jp-CodeCell .jp-InputPrompt')].every((el) => /\\d/.test(el.innerText))"
    )


def run_again(page, cell):
    page.evaluate(
        """(cell) => {
            window.jupyterapp.shell.currentWidget.content.activeCellIndex = cell
            window.jupyterapp.commands.execute('notebook:run-cell')
        }""",
        cell,
    )


def all_answered(page):
    """Every view has drawn what the kernel made of its first words."""
    page.wait_for_function(
        f"Object.values(window.mkviz ?? {{}}).filter((t) => t.box() && t.state.frames > 1).length >= {VIEWS}"
    )


def zoom(page, box):
    """At a twentieth of a view's width."""
    page.mouse.move(box["x"] + 0.05 * box["width"], box["y"] + box["height"] / 2)
    page.mouse.wheel(0, -600)


def narrower(page, than, count):
    """At least so many views show less than a range."""
    page.wait_for_function(
        f"""() => Object.values(window.mkviz).filter((t) => t.box() &&
            t.range()[1] - t.range()[0] < {0.8 * (than[1] - than[0])}).length >= {count}"""
    )


def views(page):
    """Of each view: range (µs) and place on the page; in the order of the cells."""
    found = page.evaluate("Object.values(window.mkviz).filter((t) => t.box()).map((t) => ({range: t.range(), box: t.box()}))")
    return sorted(found, key=lambda view: view["box"]["y"])


@pytest.fixture
def page(lab, chromium):
    """The notebook in Chromium, which asks for nothing outside and where Bokeh has nothing to complain of."""
    address, _ = lab
    page = chromium.new_page(viewport={"width": 1440, "height": 3000})
    page.set_default_timeout(240_000)
    outside, complaints = [], []
    page.on("request", lambda r: None if r.url.startswith(("http://localhost", "data:", "blob:")) else outside.append(r.url))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on(
        "console",
        lambda m: complaints.append(m.text) if "bokeh" in m.text.lower() and m.type in ("error", "warning") else None,
    )
    page.goto(address)
    page.locator(".jp-Notebook .jp-CodeCell").nth(VIEWS).wait_for()
    yield page
    page.close()
    assert not outside and not complaints


def test_all_views(lab, page):
    _, theme = lab
    run_all(page)
    all_answered(page)
    first, *strips, second, _ = views(page)
    assert len(strips) == 4 and all(v["range"] == first["range"] for v in strips)

    box = first["box"]
    zoom(page, box)
    narrower(page, first["range"], 5)  # the strips follow the timeline, the second timeline does not
    page.wait_for_timeout(1000)
    now = views(page)
    assert all(v["range"] == pytest.approx(now[0]["range"]) for v in now[1:5])
    assert now[5]["range"] == second["range"]

    page.mouse.move(box["x"] + 0.06 * box["width"], box["y"] + box["height"] / 2 + 3)
    page.locator(".mkviz-tip:visible", has_text="SM").first.wait_for()
    page.locator(".turn.assistant span[data-step]").nth(5).wait_for()
    assert page.locator(".turn.user").inner_text() == "Write a function"
    before = views(page)[-1]["range"]
    page.wait_for_function(f"Object.values(window.mkviz).some((t) => t.range()[1] > {before[1]})")

    page.mouse.move(box["x"] + 0.06 * box["width"], box["y"] + box["height"] / 2)
    dark = page.evaluate("getComputedStyle(document.querySelector('.jp-Notebook')).backgroundColor")
    colours = page.evaluate("Bokeh.documents.flatMap((d) => d.roots()).flatMap((r) => [...r.references()])"
                            ".filter((m) => m.type === 'Figure').map((m) => m.background_fill_color)")  # fmt: skip
    folder = os.environ.get("MKVIZ_SCREENSHOTS")
    if folder:
        page.screenshot(path=str(Path(folder) / f"jupyterlab-{theme.lower()}.png"))
    assert set(colours) == {"#14181f" if theme == "Dark" else "#ffffff"}, dark


def test_cells_run_again_in_a_page_opened_anew(lab, page):
    """The kernel is the same, and so are views: those that a cell shows again, and those that it makes anew."""
    run_all(page)
    all_answered(page)
    first = views(page)[0]
    run_again(page, 2)  # view.occupancy
    page.wait_for_function(f"Object.values(window.mkviz).filter((t) => t.box()).length == {VIEWS}")
    page.wait_for_timeout(2000)
    zoom(page, views(page)[1]["box"])
    narrower(page, first["range"], 5)
    run_again(page, 1)  # view = mkviz.timeline(trace), whose output holds the scripts that draw
    whole = f"(t) => t.box() && t.state.frames > 1 && t.range()[1] == {first['range'][1]}"
    page.wait_for_function(f"Object.values(window.mkviz).filter({whole}).length == 2")  # with the second timeline
    assert views(page)[0]["range"] == first["range"]
