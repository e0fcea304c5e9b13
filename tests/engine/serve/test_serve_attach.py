"""A viewer attached to a server: what it shows of the requests is what the API answered."""

import logging
import tempfile
import time

import pytest

from engine.serve.attach import open_attach
from engine.serve.settings import Settings
from mkviz.attach.client import AttachedSource
from mkviz.attach.places import running
from mkviz.request_times import request_times, steps_of


@pytest.fixture
def home(monkeypatch):
    with tempfile.TemporaryDirectory(prefix="mkv") as folder:
        monkeypatch.setenv("MKVIZ_HOME", folder)
        yield folder


def until(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "it did not come to pass"
        time.sleep(0.01)


def test_requests_of_the_api_are_seen(home, demo, http):
    viewers = open_attach(demo, Settings(), 8000)
    source = AttachedSource(running()[f"{demo.model}-8000"])
    try:
        until(lambda: viewers.viewers == 1)
        answer = http.post(
            "/v1/completions", headers={"x-request-id": "agent-7"},
            json={"model": demo.model, "prompt": "def f():", "max_tokens": 5, "temperature": 0, "ignore_eos": True},
        )  # fmt: skip
        usage = answer.json()["usage"]
        until(lambda: any(r.label == "agent-7" and r.state == "done" for r in source.snapshot().requests.values()))
        mine = next(t for t in request_times(source.snapshot()) if t.now.label == "agent-7")
        assert [change.state for change in mine.changes] == ["queued", "prefill", "decode", "done"]
        assert (mine.now.prompt_tokens, mine.generated) == (usage["prompt_tokens"], 5)
        until(lambda: len(request_times(source.snapshot())[-1].index) == 5)
        until(lambda: len(steps_of(source.snapshot().infos).get(mine.request, ())) >= 5)
        rows = [row for info in source.snapshot().infos for row in info.rows if row.request == mine.request]
        assert sum(row.kind == "decode" for row in rows) == 4 and {row.position for row in rows} == set(range(len(rows)))
        assert (source.label, source.kind) == ("measured (cpu)", "measured")
        assert source.snapshot().lost_records == 0
    finally:
        demo.remove_sink(viewers)
        viewers.close()
        source.close()


def test_serving_goes_on_without(home, demo, caplog, monkeypatch):
    assert open_attach(demo, Settings(attach=False), 1) is None and open_attach(demo, Settings(trace=False), 1) is None
    monkeypatch.setenv("MKVIZ_HOME", "/proc/nowhere")
    with caplog.at_level(logging.WARNING, "mkviz.serve"):
        logging.getLogger("mkviz.serve").propagate = True
        assert open_attach(demo, Settings(), 1) is None
    assert "no dashboard can attach: /proc/nowhere" in caplog.text
