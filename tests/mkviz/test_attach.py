"""Attach: what a viewer's store shows is what the server's sink was told, less what is counted lost; over real sockets."""

import contextlib
import io
import os
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from attach_steps import graph_of, step_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mkviz.attach import places, wire
from mkviz.attach.client import AttachedSource
from mkviz.attach.places import running, socket_of
from mkviz.attach.server import AttachServer
from mkviz.errors import MkvizError
from mkviz.protocols import RequestInfo, Sink, Source, TokenInfo
from mkviz.record import EVENT
from mkviz.store import COLUMNS, LiveStore

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def home(monkeypatch):
    """A short one: the path of a socket may not be long."""
    with tempfile.TemporaryDirectory(prefix="mkv") as folder:
        monkeypatch.setenv("MKVIZ_HOME", folder)
        monkeypatch.setattr("mkviz.attach.client.RETRY_S", 0.01)
        yield Path(folder)


def until(condition, seconds=30.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come to pass"
        time.sleep(0.005)


def same(one, other):
    """Two snapshots hold the same: records, steps with their rows, tokens, requests, lost."""
    for name in COLUMNS:
        columns = (getattr(s, name)[s.lane_ptr[0, 0] : s.lane_ptr[-1, -1]] for s in (one, other))
        np.testing.assert_array_equal(*columns, err_msg=name)
    for name in ("step", "begin", "end", "lost"):
        np.testing.assert_array_equal(one.steps[name], other.steps[name])
    assert [replace(i, graph=0) for i in one.infos] == [replace(i, graph=0) for i in other.infos]
    assert (one.tokens, one.changes, one.requests) == (other.tokens, other.changes, other.requests)
    assert (one.lost_records, one.lost_steps, one.ops) == (other.lost_records, other.lost_steps, other.ops)
    assert [g.hash for g, _ in one.graphs.values()] == [g.hash for g, _ in other.graphs.values()]


def tell(sink, first, last, tasks=20):
    for number in range(first, last):
        sink.request(RequestInfo(number % 3, ("prefill", "decode")[number % 2], number, 5, number, label=f"client <{number}>"))
        sink.step(*step_of(number, tasks))
        sink.token(TokenInfo(number % 3, number, 7, "é\n", number, number * 10_000))
    sink.lost(11, 2)


def test_is_a_sink_and_a_source():
    server = AttachServer("measured (cpu)", name="one")
    source = AttachedSource(server.path)
    assert isinstance(source, Source)
    assert all(callable(getattr(server, name)) for name in Sink.__dict__ if not name.startswith("_"))
    until(lambda: "no steps yet" in source.words)
    assert (source.label, source.kind, source.run) == ("measured (cpu)", "measured", 1)
    source.close()
    server.close()


def test_shows_what_a_store_beside_the_server_shows():
    server, beside = AttachServer("measured (cpu)"), LiveStore()
    source = AttachedSource(server.path)
    until(lambda: server.viewers == 1)
    for sink in (server, beside):
        sink.graph(0, *graph_of(20))
        sink.graph(3, *graph_of(31, "other"))
        tell(sink, 0, 40)
        sink.step(*step_of(40, 31, graph=3))
    until(lambda: len(source.snapshot().steps) == 41)
    same(source.snapshot(), beside.snapshot())
    assert source.words == ""
    server.close(complete=False)
    until(lambda: "has ended" in source.words)
    assert source.snapshot().closed and not source.snapshot().complete
    assert not server.path.exists() and server.failure is None
    source.close()


def test_one_that_comes_late_gets_graphs_requests_and_the_newest_steps():
    server = AttachServer("measured (cpu)", most_bytes=3 * 20 * EVENT.itemsize)
    server.graph(0, *graph_of(20))
    for number in range(50):
        server.request(RequestInfo(number // 10, f"state {number % 10}", number))
        server.step(*step_of(number, 20))
    source = AttachedSource(server.path)
    until(lambda: len(source.snapshot().steps) and source.snapshot().steps["step"][-1] == 49)
    snapshot = source.snapshot()
    assert len(snapshot.steps) < 4 and (np.diff(snapshot.steps["step"]) == 1).all()
    assert snapshot.lost_records == snapshot.lost_steps == 0  # it has missed nothing since it came
    assert {n: [c.time for c in changes] for n, changes in snapshot.changes.items()} == {
        n: list(range(10 * n, 10 * n + 10)) for n in range(5)
    }
    source.close()
    server.close()


def test_one_that_does_not_read_holds_nobody_up_and_is_told_what_it_missed():
    server = AttachServer("measured (cpu)", most_bytes=1 << 16)
    server.graph(0, *graph_of(500))
    frozen = places.connect(server.path)
    frozen.sendall(wire.pack({"kind": "hello", "protocol": wire.PROTOCOL, "run": "", "next": 0}))
    until(lambda: server.viewers == 1)
    for number in range(300):  # 9 MB: more than the socket and the log hold
        server.step(*step_of(number, 500))
    frozen.settimeout(30)
    known, got, missed = None, [], wire.Told()
    while not got or got[-1] < 299:
        header, tables = wire.receive(frozen)
        if header["kind"] == "hello":
            known = wire.told_of(header["told"])
        elif header["kind"] == "step":
            gap = wire.told_of(header["before"]).since(known)
            missed = missed.plus(records=gap.records, steps=gap.steps)
            info, events = wire.step_of(header, tables)
            np.testing.assert_array_equal(events, step_of(info.step, 500)[1])
            got.append(info.step)
            known = wire.told_of(header["before"]).plus(records=len(events), steps=1)
    assert missed.steps == 300 - len(got) > 0 and missed.records == 500 * missed.steps
    assert got == sorted(set(got))
    frozen.close()
    server.close()


told = st.lists(
    st.one_of(
        st.tuples(st.just("step"), st.integers(1, 40)),
        st.tuples(st.just("token"), st.integers(0, 3)),
        st.tuples(st.just("request"), st.integers(0, 3)),
        st.tuples(st.just("lost"), st.integers(0, 9)),
        st.tuples(st.just("break"), st.just(0)),
        st.tuples(st.just("breathe"), st.just(0)),
    ),
    min_size=1, max_size=60,
)  # fmt: skip


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(told=told, most_bytes=st.sampled_from([1, 3000, 1 << 20]))
def test_what_is_shown_is_what_was_told_less_what_is_lost(told, most_bytes):
    server = AttachServer("measured (cpu)", most_bytes=most_bytes)
    server.graph(0, *graph_of(40))
    source = AttachedSource(server.path)
    until(lambda: server.viewers == 1)
    steps, tokens, requests, records, lost = [], [], {}, 0, 0
    for what, value in told:
        if what == "step":
            server.step(*step_of(len(steps), value))
            steps.append(value)
            records += value
        elif what == "token":
            tokens.append(TokenInfo(value, len(tokens), 1, "t", 0, 0))
            server.token(tokens[-1])
        elif what == "request":
            requests.setdefault(value, []).append(RequestInfo(value, "decode", len(requests.get(value, ()))))
            server.request(requests[value][-1])
        elif what == "lost":
            server.lost(value, 1)
            lost += 1
            records += value
        elif what == "break":
            before = source._sock
            before.shutdown(socket.SHUT_RDWR)
            until(lambda before=before: source._sock not in (None, before) and not source._trouble)
        else:
            time.sleep(0.002)
    server.close()
    until(lambda: "has ended" in source.words)
    shown = source.snapshot()
    assert len(shown) + shown.lost_records == records
    assert len(shown.steps) + shown.lost_steps == len(steps) + lost
    assert [len(step_of(n, steps[n])[1]) for n in shown.steps["step"].tolist()] == np.diff(
        [*shown.lane_ptr[:, 0], *shown.lane_ptr[-1:, -1]]
    ).tolist()
    assert len(shown.tokens) + source.lost_tokens == len(tokens) and all(token in tokens for token in shown.tokens)
    assert {n: list(c) for n, c in shown.changes.items()} == requests
    assert source.run == 1 and server.failure is None
    if most_bytes == 1 << 20:
        assert len(shown.steps) == len(steps)
    source.close()


def serve(tasks):
    command = [sys.executable, str(Path(__file__).with_name("attach_steps.py")), str(tasks)]
    return subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(ROOT)})


def test_a_server_that_is_killed_and_started_again(home):
    path = home / "servers" / "killed.sock"
    process = serve(20)
    source = AttachedSource(path)
    assert "Looking for" in source.words
    until(lambda: len(source.snapshot().steps) > 2)
    first = source.snapshot()
    process.send_signal(signal.SIGKILL)
    process.wait()
    until(lambda: "is gone since" in source.words)
    assert path.exists() and len(source.snapshot().steps) >= len(first.steps) and not source.snapshot().closed
    process = serve(26)
    try:
        until(lambda: source.run == 2 and len(source.snapshot().steps))
        second = source.snapshot()
        assert source.words == "" and set(second.graphs).isdisjoint(first.graphs)
        assert [len(graph) for graph, _ in second.graphs.values()] == [26]
        assert running() == {"killed": path} and socket_of() == path == socket_of("killed") == socket_of(str(path))
    finally:
        process.kill()
        process.wait()
    source.close()
    assert running() == {} and not path.exists()  # left over, and removed


class Liar:
    """A server that says what it is told to, to each viewer in turn."""

    def __init__(self, home, *answers):
        self.path = home / "liar.sock"
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(self.path))
        self.listener.listen()
        self.answers = list(answers)

    def answer_one(self):
        viewer, _ = self.listener.accept()
        wire.receive(viewer)
        viewer.sendall(self.answers.pop(0))
        viewer.close()


HELLO = {"kind": "hello", "protocol": 1, "mkviz": "0", "run": "r", "label": "measured (cpu)", "source": "measured", "name": "x",
         "pid": 1, "next": 0, "told": [0] * 5}  # fmt: skip


def test_messages_that_are_cut_short_or_are_none(home):
    whole = wire.step_message(*step_of(0, 20), 0, wire.Told())
    body = 12 + wire.LENGTHS.unpack(whole[:12])[0]
    damaged = whole[12:body] + bytes(100) + whole[body + 100 :]
    unknown = wire.step_message(*step_of(0, 20, graph=9), 0, wire.Told())
    hello, graph = wire.pack(HELLO), wire.graph_message(0, *graph_of(20))
    liar = Liar(
        home,
        hello + graph + whole[:-3],
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        wire.LENGTHS.pack(10, 1 << 40) + b"{}",
        hello + wire.pack({"kind": "step", "n": 0, "before": [0] * 5, "info": ["0", 0, 0, 0, [], [], 0]}),
        hello + unknown,
        wire.pack({"kind": "refused", "why": "liar speaks protocol 7"}),
        hello + whole,
    )
    source = AttachedSource(liar.path)
    for words in ("is gone", "not understood", "not understood", "not understood", "not understood (step: MkvizError: step 0"):
        liar.answer_one()
        until(lambda words=words: words in source.words)
        source._trouble = "-"  # so that the next one is seen
        assert not len(source.snapshot().steps)
    liar.answer_one()
    until(lambda: source.words == "Refused: liar speaks protocol 7; use the same mkviz on both sides")
    liar.answer_one()
    until(lambda: len(source.snapshot().steps) == 1)
    assert source.run == 1
    source.close()
    with pytest.raises(wire.Garbled):
        wire.unpack(*wire.LENGTHS.unpack(whole[:12]), io.BytesIO(damaged).read)


def test_viewers_that_talk_nonsense_are_let_go():
    server = AttachServer("measured (cpu)")
    refused = places.connect(server.path)
    refused.sendall(wire.pack({"kind": "hello", "protocol": 99, "run": "", "next": 0}))
    header, _ = wire.receive(refused)
    assert header["kind"] == "refused" and "protocol 1" in header["why"] and "99" in header["why"]
    for said in (b"\0" * 12, wire.pack({"kind": "hello"}), b"x" * 5000, wire.LENGTHS.pack(1 << 31, 0)):
        with places.connect(server.path) as nonsense:
            nonsense.sendall(said)
            nonsense.settimeout(30)
            with contextlib.suppress(ConnectionError):
                while nonsense.recv(1 << 16):
                    pass
    assert server.failure is None and server.viewers == 0
    refused.close()
    server.close()


def test_a_recording_that_breaks_is_told_to_those_who_look_on_and_to_those_who_come_later():
    server = AttachServer("measured (cpu)")
    source = AttachedSource(server.path)
    server.graph(0, *graph_of(20))
    server.step(*step_of(0, 20))
    server.failed("OSError: the device is gone")
    late = AttachedSource(server.path)
    for seen in (source, late):
        until(lambda seen=seen: "can be read no more (OSError: the device is gone)" in seen.words)
        assert len(seen.snapshot().steps) == 1 and not seen.snapshot().closed
    server.close()
    until(lambda: "has ended" in source.words)
    source.close()
    late.close()


def test_only_the_user_may_attach(home):
    server = AttachServer("measured (cpu)", name="demo at 127.0.0.1:8000/é")
    assert server.name == "demo-at-127.0.0.1-8000-é"
    assert stat.S_IMODE(server.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(server.path.parent.stat().st_mode) == 0o700
    assert [p.name for p in server.path.parent.iterdir()] == [server.path.name]
    server.path.parent.chmod(0o777)
    with pytest.raises(MkvizError, match="others could put a socket there"):
        AttachServer("measured (cpu)")
    assert running() == {}
    server.path.parent.chmod(0o700)
    server.close()


def test_names():
    one, two = AttachServer("measured (cpu)", name="demo"), AttachServer("measured (cpu)", name="demo")
    assert (one.name, two.name) == ("demo", "demo-2") and list(running()) == ["demo", "demo-2"]
    with pytest.raises(MkvizError, match="2 servers run here; one of demo, demo-2"):
        socket_of()
    with pytest.raises(MkvizError, match="no server is named 'x'; one of demo, demo-2"):
        socket_of("x")
    one.close()
    assert socket_of() == two.path
    two.close()
    with pytest.raises(MkvizError, match="no servers run here; start one: mkviz serve"):
        socket_of()
    with pytest.raises(MkvizError, match=r"there is no /nowhere/x\.sock"):
        socket_of("/nowhere/x.sock")


def test_a_place_that_cannot_be(tmp_path, monkeypatch):
    monkeypatch.setenv("MKVIZ_HOME", str(tmp_path / ("x" * 120)))
    with pytest.raises(MkvizError, match="too long for the path of a socket"):
        AttachServer("measured (cpu)")
    with tempfile.NamedTemporaryFile() as file:  # pytest's own path may be long
        monkeypatch.setenv("MKVIZ_HOME", file.name)
        with pytest.raises(MkvizError, match="a folder that can be written"):
            AttachServer("measured (cpu)")
