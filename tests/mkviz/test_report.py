"""mkviz report: one file, the figures of --json, and nothing from outside.  Of the smaller recording in the package."""

import json
import re
from pathlib import Path

import pytest

from mkviz.accounting import account
from mkviz.blame import blame
from mkviz.cli import main
from mkviz.findings import ANALYSES
from mkviz.hops import hops
from mkviz.machine import H200
from mkviz.report import Report
from mkviz.table import UNITS

TRACE = Path(__file__).parents[2] / "mkviz" / "recordings" / "h200-demo-model.mkt.zip"


@pytest.fixture(scope="module")
def report():
    return Report.of(TRACE)


@pytest.fixture(scope="module")
def html(report):
    import mkviz.dashboard.panels  # noqa: F401  Panel adds scripts of its components to what Bokeh renders

    return report.to_html()


@pytest.fixture(scope="module")
def figures(report):
    return json.loads(json.dumps(report.to_json()))


def section(html, name):
    return re.search(rf'<section id="{name}">.*?</section>', html, re.S)[0].replace("&nbsp;", " ")


def test_the_file_holds_the_figures_of_json(html, figures):
    inside = re.search(r'<script type="application/json" id="figures">(.*?)</script>', html, re.S)[1]
    assert json.loads(inside) == figures


def test_every_table_shows_the_figures_of_json(html, figures):
    rows = 0
    for name, found in figures["analyses"].items():
        text = section(html, name)
        for table in found["tables"].values():
            for row in table["rows"]:
                cells = ["–" if v is None else UNITS[u](v) for v, u in zip(row, table["columns"].values(), strict=True)]
                pattern = "".join(rf"<td[^>]*>{re.escape(c) if c else '.none.'}</td>" for c in cells)
                assert re.search(pattern, text), (name, cells)
                rows += 1
    assert rows > 60


def test_the_figures_are_those_of_the_analyses(figures):
    """As had from Python, without a reading."""
    of = figures["analyses"]
    assert of["accounting"]["figures"]["kinds"] == account(str(TRACE)).totals
    path = blame(str(TRACE), 18, H200)
    assert {k: of["blame"]["figures"][k] for k in ("step", "makespan", "critical", "floor")} == {
        "step": 18, "makespan": path.makespan, "critical": path.critical, "floor": path.floor,
    }  # fmt: skip
    assert [tuple(row[:3]) for row in of["blame"]["tables"]["what held the step"]["rows"]] == [
        (cause, op, ns) for cause, op, _, ns in path.largest()[:12]
    ]
    assert of["waits"]["figures"]["ns"] == int(hops(str(TRACE)).columns["exposed"].sum())
    assert of["diff"]["figures"]["change"] == blame(str(TRACE), 17).makespan - path.makespan


def test_the_head_and_the_answer(html, figures):
    head = figures["head"]
    assert head["label"] == "recorded on NVIDIA H200" and head["device"] == "NVIDIA H200" and head["clock_error_ns"] == 32
    for words in ("recorded on NVIDIA H200", "record_traces.py /tmp/rec", "32 ns", "0 records, 0 steps", "mkviz 0.1.0"):
        assert words in html
    assert figures["answer"].startswith(
        "Step 18 takes 179 µs; 34.4 % of it is overhead (idle although ready), above all before qkv"
    )
    assert html.count("Definition: docs/analyses.md") == len(figures["analyses"]) == 9


def test_nothing_is_asked_for(html):
    """Neither the page's own elements nor a style name an address; scripts may not ask, by the page's policy."""
    assert "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:" in html
    outside = re.sub(r"<script.*?</script>", "", html, flags=re.S)
    assert not re.findall(r"""(?:src|href)=|url\(|@import""", outside)
    assert not re.findall(r"<script[^>]*src=", html)
    assert len(html) < 3 << 20


def test_no_name_can_end_a_script_or_begin_one(report):
    bad = "</script><script>alert(1)</script> @SECTIONS@"
    refused = Report(report.trace, report.reading, {}, dict.fromkeys(ANALYSES, bad))
    refused.head["command"] = bad
    text = refused.to_html()
    assert "<script>alert" not in text and "\\u003cscript>alert" in text
    assert text.count("&lt;script&gt;alert(1)") == 2 + len(ANALYSES)  # command, answer, and each analysis
    assert text.count('<section id="blame">') == 1


def test_the_command(report, figures, capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(Report, "of", classmethod(lambda cls, trace, steps: report))
    monkeypatch.setattr(Report, "to_html", lambda self, dark: f"<p>{'dark' if dark else 'light'}")
    monkeypatch.chdir(tmp_path)
    assert main(["report", str(TRACE)]) == 0
    assert capsys.readouterr().out.splitlines()[1:] == [report.answer, "wrote h200-demo-model-report.html: 8 B"]
    assert Path("h200-demo-model-report.html").read_text() == "<p>light"
    assert main(["report", str(TRACE)]) == 2 and "exists" in capsys.readouterr().err
    assert main(["report", str(TRACE), "--overwrite", "--dark"]) == 0
    assert Path("h200-demo-model-report.html").read_text() == "<p>dark"
    capsys.readouterr()
    assert main(["report", str(TRACE), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == figures
    assert sorted(path.name for path in tmp_path.iterdir()) == ["h200-demo-model-report.html"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nothing.mkt"], "nothing.mkt"),
        ([str(TRACE), "--steps", "99", "-o", "a.html"], "there is no step 99; one from 17 to 18"),
        ([str(TRACE), "-o", "a.png"], "a report is HTML"),
        ([str(TRACE), "-o", "no/where.html"], "there is no folder"),
    ],
)
def test_bad_input_is_one_line_and_code_2(arguments, said, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["report", *arguments]) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1 and not list(tmp_path.iterdir())
