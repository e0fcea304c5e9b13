"""Analyses that keep something of every record refuse all steps of a trace that is too large for it, and take some of them."""

from pathlib import Path

import pytest

import mkviz
from mkviz import step_records
from mkviz.busy import occupancy
from mkviz.errors import MkvizError
from mkviz.hops import hops
from mkviz.trace import Trace

RECORDING = Path(mkviz.__file__).parent / "recordings" / "h200-demo-model.mkt.zip"


@pytest.mark.parametrize("ask", [hops, occupancy])
def test_all_steps_of_too_many_records_are_refused(ask, monkeypatch):
    trace = Trace.open(RECORDING)
    count = trace.meta["rows"]["records"]
    monkeypatch.setattr(step_records, "MOST_KEPT", count)
    ask(trace)
    monkeypatch.setattr(step_records, "MOST_KEPT", count - 1)
    with pytest.raises(MkvizError, match=f"{count:,} records; some of its steps"):
        ask(RECORDING)
    ask(trace, steps=int(trace.table("steps", ["step"])["step"][0].as_py()))
