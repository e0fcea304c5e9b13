"""Traces that hold only some SMs, ops or times of their steps: what would take left-out time for idle time refuses them."""

import zipfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import mkviz
from mkviz.accounting import account
from mkviz.blame import blame
from mkviz.busy import occupancy
from mkviz.cli import main
from mkviz.dashboard.tables import TABLES
from mkviz.diff import diff
from mkviz.errors import MkvizError
from mkviz.findings import ANALYSES
from mkviz.hops import hops
from mkviz.reading import Reading
from mkviz.report import Report
from mkviz.rules import check_rules
from mkviz.store import store_of_trace
from mkviz.trace import Trace
from mkviz.wave_tails import tails
from mkviz.whatif import whatif

RECORDING = Path(mkviz.__file__).parent / "recordings" / "h200-demo-model.mkt.zip"


@pytest.fixture(scope="module", params=["time", "sms", "ops"])
def cut(request, tmp_path_factory):
    whole = Trace.open(RECORDING)
    begin = int(whole.events()["begin"].min())
    of = {"time": (begin, begin + 60_000), "sms": range(4), "ops": ["qkv"]}[request.param]
    return whole.slice(tmp_path_factory.mktemp("cut") / "cut.mkt", **{request.param: of})


def test_a_cut_trace_is_refused_where_idle_matters(cut):
    step = int(cut.table("steps", ["step"])["step"][0].as_py())
    reading = Reading.of_source(cut)
    for ask in (
        lambda: blame(cut, step), lambda: blame(cut.path, step), lambda: hops(cut), lambda: tails(cut),
        lambda: diff(cut, RECORDING), lambda: whatif(cut, faster={"qkv": 2}),
        *(lambda n=n: ANALYSES[n].find(reading) for n in ("blame", "waits", "whatif")),
    ):  # fmt: skip
        with pytest.raises(MkvizError, match="holds only some of its records"):
            ask()
    (verdict,) = check_rules(cut, {"max-path-tail": "50%"})
    assert verdict.code == 2 and "holds only some" in verdict.why


def test_occupancy_of_a_cut_trace_says_that_it_is_of_a_part(cut):
    found = occupancy(cut)
    assert "holds only some of its records" in found.notes[0]
    assert not any("only some" in note for note in occupancy(RECORDING).notes)


def test_a_report_of_a_cut_trace_has_what_is_left_and_says_why_the_rest_is_not(cut):
    report = Report.of(cut)
    assert {"occupancy", "steps"} <= set(report.findings) and "holds only some" in report.answer
    assert all("holds only some" in report.refused[name] for name in ("blame", "accounting", "waits", "tails", "whatif"))


def test_a_report_of_damaged_records_is_none(tmp_path):
    with zipfile.ZipFile(RECORDING) as whole:
        whole.extractall(tmp_path / "damaged.mkt")
    (segment,) = (tmp_path / "damaged.mkt").rglob("records-*.parquet")
    data = bytearray(segment.read_bytes())
    data[4000:4200] = bytes(byte ^ 255 for byte in data[4000:4200])
    segment.write_bytes(data)
    out = tmp_path / "out.html"
    assert main(["report", str(segment.parent), "-o", str(out)]) == 2 and not out.exists()


def test_steps_that_are_whole_are_analysed(tmp_path):
    some = Trace.open(RECORDING).slice(tmp_path / "one.mkt", steps=[18])
    assert blame(some, 18).segments.tolist() == blame(RECORDING, 18).segments.tolist()
    assert blame(RECORDING, 18).label == "recorded on NVIDIA H200"
    assert np.array_equal(hops(some).columns["exposed"], hops(RECORDING, 18).columns["exposed"])


def test_a_source_of_a_cut_trace_refuses_as_the_trace_does(cut):
    """A page shows a trace through a store, whose snapshots know what was cut."""
    store = store_of_trace(cut)
    step = int(cut.table("steps", ["step"])["step"][0].as_py())
    reading = Reading.of_source(store)
    for ask in (
        lambda: account(store), lambda: blame(store, step), lambda: account(store.snapshot()), lambda: hops(store),
        *(lambda n=n: ANALYSES[n].find(reading) for n in ("accounting", "blame", "waits", "tails", "whatif")),
    ):  # fmt: skip
        with pytest.raises(MkvizError, match="holds only some of its records"):
            ask()


def test_tables_beside_the_timeline_of_a_cut_trace_say_why_they_are_empty(cut):
    tables = {}
    for name, of in (("cut", cut), ("whole", Trace.open(RECORDING))):
        scene = SimpleNamespace(snapshot=store_of_trace(of).snapshot())
        end = float(scene.snapshot.extent[1])
        tables[name] = {tab: TABLES[tab](scene, 0.0, end) for tab in ("why", "waits", "steps")}
    for tab in ("why", "waits"):
        assert not tables["cut"][tab].values and "holds only some of its records" in tables["cut"][tab].caption
        assert tables["whole"][tab].values and "only some" not in tables["whole"][tab].caption
    assert tables["cut"]["steps"].values and len(tables["whole"]["steps"].values) == 2
