"""Operations: clients that go away, health and metrics, request ids, logs, and the end of the process."""

import asyncio
import json
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from served import KEY, serving

from engine.engine import Engine
from engine.serve import logs
from engine.serve.server import open_engine
from engine.serve.settings import Settings
from engine.serve.structure import Constraint, StructureError
from mkviz.errors import MkvizError

ROOT = Path(__file__).parents[3]
LONG = {"model": "demo", "prompt": "x", "max_tokens": 1800, "ignore_eos": True, "temperature": 0}


def until(condition, seconds=20):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_goes_away_ends_its_request_within_a_step(demo, server, monkeypatch, stream):
    """Steps are counted from when the request is known to be cancelled; streaming or not, none begins after that."""
    body = json.dumps(LONG | {"stream": stream}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\nauthorization: Bearer {KEY}\r\n"
    until(lambda: demo.stats().running == 0)
    host, real, before, after = httpx.URL(server[0]), demo.backend.step, [], []
    with socket.create_connection((host.host, host.port)) as connection:
        connection.sendall(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        until(lambda: demo.stats().running == 1 and server[1].runs)
        (sequence,) = next(iter(server[1].runs)).sequences

        def step(plan):
            (after if sequence.cancelled else before).append(1)
            return real(plan)

        monkeypatch.setattr(demo.backend, "step", step)
        until(lambda: len(before) > 2)
    until(lambda: demo.stats().running == 0)
    assert sequence.finish_reason == "stopped" and sequence.generated < 1800
    assert not after and not server[1].runs


def test_health_version_and_metrics_need_no_key(server, demo, http):
    before = demo.stats()
    http.post("/v1/completions", json=LONG | {"max_tokens": 5}).raise_for_status()
    assert httpx.get(f"{server[0]}/version").json()["model"] == "demo"
    metrics = {
        (sample.name, sample.labels.get("status", "")): sample.value
        for family in text_string_to_metric_families(httpx.get(f"{server[0]}/metrics").text)
        for sample in family.samples
        if sample.labels.get("route", "/v1/completions") == "/v1/completions" and "le" not in sample.labels
    }
    assert metrics["mkviz_generated_tokens_total", ""] == demo.stats().generated_tokens >= before.generated_tokens + 5
    assert metrics["mkviz_pages_total", ""] == demo.pool.total and metrics["mkviz_running", ""] == 0
    assert metrics["mkviz_http_requests_total", "200"] >= 1
    first, following = metrics["mkviz_time_to_first_token_seconds_count", ""], metrics["mkviz_inter_token_seconds_count", ""]
    assert first >= 1 and following >= 4 and metrics["mkviz_queue_seconds_count", ""] >= 1


def test_records_that_can_be_read_no_more_are_told_by_health_metrics_and_log(monkeypatch, capfd):
    engine = Engine(batch=1, sms=2)
    try:
        logs.configure("json")
        with serving(engine, batch=1) as (url, _):
            assert "mkviz_records_unreadable 0.0" in httpx.get(f"{url}/metrics").text
            monkeypatch.setattr(engine.drain.reader, "read", lambda budget: 1 / 0)
            until(lambda: engine.drain.failure)
            health = httpx.get(f"{url}/health")
            assert "mkviz_records_unreadable 1.0" in httpx.get(f"{url}/metrics").text
            answer = httpx.post(f"{url}/v1/completions", json=LONG | {"max_tokens": 3}, timeout=60)
        assert health.status_code == answer.status_code == 200
        assert health.json() == {"status": "ok", "records": "can be read no more: viewers see nothing new"}
        lines = [json.loads(line) for line in capfd.readouterr().err.splitlines()]
        told = [line for line in lines if "ZeroDivisionError" in line["message"]]
        assert len(told) == 1 and told[0]["level"] == "warning" and "traceback" not in told[0]
    finally:
        engine.close()
        for name in ("mkviz.serve", "mkviz.drain", "uvicorn"):
            logging.getLogger(name).handlers, logging.getLogger(name).propagate = [], True


def test_methods_that_nobody_knows_are_counted_as_one(http):
    for method in ("BREW", "WHEN"):
        assert http.request(method, "/v1/models").status_code == 405
    told = http.get("/metrics").text
    assert 'method="other",route="/v1/models",status="405"' in told and "BREW" not in told and "WHEN" not in told


def test_request_ids_come_back_and_reach_the_engine(http, service, monkeypatch):
    labels = []
    submit = service.engine.submit
    monkeypatch.setattr(service.engine, "submit", lambda *a, **k: (labels.append(k["label"]), submit(*a, **k))[1])
    response = http.post("/v1/completions", json=LONG | {"max_tokens": 1, "n": 2}, headers={"x-request-id": "mine-1"})
    assert response.headers["x-request-id"] == "mine-1" and labels == ["mine-1", "mine-1/1"]
    for bad in ("with space", "x" * 200, '"'):
        given = http.get("/health", headers={"x-request-id": bad}).headers["x-request-id"]
        assert re.fullmatch(r"req-[0-9a-f]{24}", given)


def test_a_fault_of_ours_is_a_500_without_its_traceback(http, service, monkeypatch, caplog):
    def broken(*_, **__):
        raise ZeroDivisionError("secret of ours")

    monkeypatch.setattr(service.engine, "submit", broken)
    response = http.post("/v1/completions", json=LONG)
    assert response.status_code == 500 and "secret" not in response.text and "ZeroDivision" not in response.text
    assert response.json()["error"]["type"] == "server_error" and not service.runs
    monkeypatch.undo()
    assert http.post("/v1/completions", json=LONG | {"max_tokens": 1}).status_code == 200


def test_a_failure_in_the_middle_of_a_stream_is_an_event(http, demo, monkeypatch):
    def broken(*_):
        raise ZeroDivisionError("secret of ours")

    with http.stream("POST", "/v1/completions", json=LONG | {"stream": True}) as response:
        lines = response.iter_lines()
        next(lines)
        monkeypatch.setattr(demo.backend, "step", broken)
        events = [line.removeprefix("data: ") for line in lines if line]
    monkeypatch.undo()
    assert events[-1] == "[DONE]" and json.loads(events[-2])["error"]["type"] == "server_error"


def test_a_schema_that_is_too_large_on_the_way_is_a_400(http, monkeypatch):
    def too_large(*_):
        raise StructureError("response_format: lexer fuel", "a simpler schema")

    monkeypatch.setattr(Constraint, "mask", too_large)
    response = http.post("/v1/completions", json=LONG | {"response_format": {"type": "json_object"}})
    assert (response.status_code, response.json()["error"]["param"]) == (400, "response_format")


def test_a_body_that_does_not_come_is_408(demo):
    with serving(demo, body_deadline=0.2) as (url, _):
        host = httpx.URL(url)
        with socket.create_connection((host.host, host.port)) as connection:
            connection.sendall(
                b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 9\r\n\r\n{"
            )
            assert b" 408 " in connection.recv(1000)


def test_the_end_waits_for_no_body_and_tells_its_sender(demo, monkeypatch, caplog):
    monkeypatch.setattr("engine.serve.server._LAST_WORDS", 0.1)
    with serving(demo, shutdown_deadline=0.1) as (url, service):
        host = httpx.URL(url)
        with socket.create_connection((host.host, host.port)) as connection:
            connection.sendall(
                b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 9\r\n\r\n{"
            )
            time.sleep(0.1)
            service.end()
            answer = b"".join(iter(lambda: connection.recv(1000), b""))
    assert b" 503 " in answer and b'"code": "unavailable"' in answer
    assert not any(logs.worth_telling(record) for record in caplog.records if record.exc_info)


def test_a_response_that_the_end_cuts_short_is_no_traceback():
    def record(error):
        return logging.LogRecord("uvicorn.error", logging.ERROR, "", 0, "", (), (type(error), error, None))

    assert logs.worth_telling(record(ValueError())) and not logs.worth_telling(record(asyncio.CancelledError()))


def test_bytes_that_are_no_http_leave_no_traceback(server, caplog):
    """A refused request whose body is a chunk of no length: by the time it is answered, the connection takes no answer."""
    host = httpx.URL(server[0])
    head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer no\r\ntransfer-encoding: chunked\r\n\r\n"
    with socket.create_connection((host.host, host.port)) as connection:
        connection.sendall(head + b"zz\r\n")
        assert b" 400 " in connection.recv(1000)
        until(lambda: any(record.exc_info for record in caplog.records))  # uvicorn tells of it; our filter does not
    assert not any(logs.worth_telling(record) for record in caplog.records if record.exc_info)


def test_a_path_cannot_write_lines_of_the_log(http, caplog):
    with caplog.at_level("INFO", "mkviz.serve"):
        http.get("/v1/x%0a09:00:00%20ended%1b%5b31m%7f")
        until(lambda: any("/v1/x" in getattr(r, "fields", {}).get("path", "") for r in caplog.records))
    (record,) = [r for r in caplog.records if "/v1/x" in getattr(r, "fields", {}).get("path", "")]
    line = logs.ForPeople().format(record)
    assert r"path=/v1/x\x0a09:00:00 ended\x1b[31m\x7f status=404" in line and line.isprintable()


def test_pages_of_other_origins_only_where_they_are_allowed(demo, server):
    ask = {"origin": "https://page.example", "access-control-request-method": "POST"}
    assert "access-control-allow-origin" not in httpx.options(f"{server[0]}/v1/models", headers=ask).headers
    with serving(demo, allow_origin=("https://page.example",)) as (url, _):
        answer = httpx.options(f"{url}/v1/models", headers=ask)
        assert answer.headers["access-control-allow-origin"] == "https://page.example"


def test_json_lines(caplog, http, capsys):
    formatter = logs.JsonLines()
    with caplog.at_level("INFO", "mkviz.serve"):
        http.post("/v1/completions", json=LONG | {"max_tokens": 2}, headers={"x-request-id": "logged"})
        until(lambda: any(getattr(r, "fields", {}).get("request_id") == "logged" for r in caplog.records))
    (record,) = [r for r in caplog.records if getattr(r, "fields", {}).get("request_id") == "logged"]
    line = json.loads(formatter.format(record))
    assert (line["status"], line["generated_tokens"], line["finish"], line["path"]) == (200, 2, "length", "/v1/completions")
    assert KEY not in json.dumps(line) and line["ttft_ms"] > 0
    assert "request_id=logged" in logs.ForPeople().format(record)


@pytest.fixture
def process(tmp_path):
    """`mkviz serve` as a process; (process, url) once it serves."""
    running = []

    def start(*argv):
        log = (tmp_path / "log").open("w+")
        command = [sys.executable, "-m", "mkviz", "serve", "--port", "0", "--log-format", "json", "--sms", "4", *argv]
        one = subprocess.Popen(command, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}, stderr=log)
        running.append(one)
        until(lambda: '"url"' in (tmp_path / "log").read_text() or one.poll() is not None, 120)
        lines = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
        return one, next(line["url"] for line in lines if "url" in line)

    yield start
    for one in running:
        one.kill()
        one.wait()


def test_sigterm_lets_running_requests_finish_and_ends_with_0(process, tmp_path):
    one, url = process()
    with httpx.stream("POST", f"{url}/v1/completions", json=LONG | {"max_tokens": 60, "stream": True}, timeout=60) as response:
        lines = response.iter_lines()
        next(lines)
        one.send_signal(signal.SIGTERM)
        events = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    assert events[-1]["choices"][0]["finish_reason"] == "length"
    assert one.wait(30) == 0
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{url}/health")
    lines = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    assert [line["message"] for line in lines] == ["loading", "serving demo", "shutting down", "request", "ended"]


def test_requests_past_the_deadline_are_told_so(demo):
    body = LONG | {"stream": True, "n": 8}
    with (
        serving(demo, shutdown_deadline=0.2) as (url, service),
        httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=60) as response,
    ):
        lines = response.iter_lines()
        next(lines)
        service.end()
        events = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    assert events[-1]["error"]["code"] == "unavailable" and not service.runs


def run(*argv, **environ):
    command = [sys.executable, "-m", "mkviz", "serve", *argv]
    return subprocess.run(
        command, capture_output=True, text=True, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)} | environ
    )


def test_a_port_that_is_taken_is_one_line():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = run("--port", str(taken.getsockname()[1]))
    assert done.returncode == 2 and done.stderr.splitlines()[-1].startswith("error: host 127.0.0.1, port")


def test_without_its_packages_one_line_says_what_to_install(tmp_path):
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['fastapi'] = None\nsys.modules['llguidance'] = None\n")
    done = run(PYTHONPATH=f"{tmp_path}:{ROOT}")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == 'error: mkviz serve needs fastapi, llguidance; pip install "mkviz[serve]"\n'


def test_every_setting_of_the_engine_is_the_engines():
    """Names that both have mean the same; a setting that the engine lost would show here."""
    settings = Settings(batch=2, queue=1, context=128, itl_budget_ms=5.0, prefix_cache=False, step_timeout=9.0, sms=4)
    engine = open_engine(settings)
    try:
        assert isinstance(engine, Engine) and (engine.batch, engine.queue, engine.context) == (2, 1, 128)
    finally:
        engine.close()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"rows": 16, "batch": 17}, "batch: 17; 1 to 16 requests, a row each"),
        ({"backend": "cuda", "workers": 2}, "workers and mode; the cpu backend only"),
        ({"backend": "cuda", "rows": 16, "batch": 17}, "batch: 17; 1 to 16 requests, a row each"),
    ],
)
def test_settings_that_do_not_go_together(settings, said):
    with pytest.raises(MkvizError) as error:
        open_engine(Settings(**settings))
    assert str(error.value) == said


def test_what_the_cuda_backend_is_opened_with(monkeypatch):
    """As wide as there is room, drawing for itself, pages for eight contexts of 2048 tokens where they fit; or as told."""
    opened = []

    class Opened(Exception):
        pass

    def backend(config, weights, **options):
        opened.append({name: options[name] for name in ("rows", "sampling", "pages", "fit")})
        raise Opened

    backend.name, backend.max_rows = "cuda", 64
    monkeypatch.setattr("engine.engine.backend_class", lambda name: backend)
    for settings in (Settings(backend="cuda"), Settings(backend="cuda", rows=8, device_sampling=False, pages=5)):
        with pytest.raises(Opened):
            open_engine(settings)
    assert opened == [
        {"rows": None, "sampling": True, "pages": 8 * 2048 // 64, "fit": True},
        {"rows": 8, "sampling": False, "pages": 5, "fit": False},
    ]
