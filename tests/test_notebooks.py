"""The notebooks: run from beginning to end where no network is, and what their cells show."""

import os
from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))

# What a kernel imports before all else: Python's own connections may only go to this machine.
NO_NETWORK = """
import socket
connect = socket.socket.connect
def local_only(self, address):
    if self.family != socket.AF_UNIX and address[0] not in ("127.0.0.1", "::1", "localhost"):
        raise OSError(f"no network in this test: {address}")
    return connect(self, address)
socket.socket.connect = local_only
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """run(name) -> the executed notebook's code cells."""

    def run_(name: str):
        folder = tmp_path_factory.mktemp("notebook")
        (folder / "sitecustomize.py").write_text(NO_NETWORK)
        notebook = nbformat.read(ROOT / "notebooks" / name, 4)
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)])}
        client = nbclient.NotebookClient(notebook, timeout=280, resources={"metadata": {"path": str(folder)}})
        client.execute(env=environment)
        return [cell for cell in notebook.cells if cell.cell_type == "code"]

    return run_


def text_of(cell) -> str:
    """What a cell printed, and its value as text."""
    shown = [o.get("text") or o.get("data", {}).get("text/plain", "") for o in cell.outputs if o.get("name") != "stderr"]
    return "".join(shown)


def html_of(cell) -> str:
    html = "".join(o.get("data", {}).get("text/html", "") for o in cell.outputs)
    return html.replace("\\u00b7", "·")  # documents are JSON of ASCII letters


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_git_holds_no_outputs(path):
    for cell in nbformat.read(path, 4).cells:
        assert cell.cell_type != "code" or (not cell.outputs and cell.execution_count is None)


def test_quickstart(run):
    generate, steps, graph, figure, one_sm, summary = run("00-quickstart.ipynb")
    assert "def reverse_string" in text_of(generate)
    assert "records  lost" in text_of(steps)
    assert "on 16 SMs" in text_of(graph) and "has been raised" in text_of(graph)
    assert "recorded (cpu)" in html_of(figure) and '"name":"Figure"' in html_of(figure)
    assert not any(word in html_of(figure) for word in ("https://cdn", "http://cdn", "unpkg.com"))
    scripts = [o["data"]["application/javascript"] for o in figure.outputs if "application/javascript" in o.get("data", {})]
    assert any("Bokeh" in script and len(script) > 1e6 for script in scripts)  # the library itself, not its address
    assert "qkv · layer 0" in text_of(one_sm)
    assert "0 records and 0 steps lost" in text_of(summary)


def test_views(run):
    timeline, *strips, export, live, _ = run("01-views.ipynb")
    titles = ("busy SMs", "SMs waiting", "SMs in the tail", "reads from device memory")
    for cell, title in zip([timeline, *strips], ("", *titles), strict=True):
        assert "recorded on NVIDIA H200 · " + title in html_of(cell) and '"name":"Figure"' in html_of(cell)
        assert not any(word in html_of(cell) for word in ("https://cdn", "http://cdn", "unpkg.com"))
    assert "step.html" in text_of(export) and "op,tasks,time (ns)" in text_of(export)
    assert "measured (cpu)" in html_of(live)
