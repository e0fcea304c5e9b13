"""Times of requests, on traces worked by hand."""

import math
from types import SimpleNamespace

import pytest
from attach_steps import graph_of, step_of

import mkviz
from mkviz.errors import MkvizError
from mkviz.protocols import RequestInfo, Row, TokenInfo
from mkviz.request_times import clock_shift, percentile, request_times, steps_of
from mkviz.store import LiveStore
from mkviz.trace import Trace, TraceWriter

US = 1000
STATES = [  # request, state, µs, generated, finish reason
    (7, "queued", 100, 0, ""),
    (7, "prefill", 130, 0, ""),
    (8, "queued", 150, 0, ""),
    (7, "decode", 400, 1, ""),
    (8, "prefill", 500, 0, ""),
    (8, "decode", 700, 1, ""),
    (8, "preempted", 900, 2, ""),
    (9, "queued", 950, 0, ""),
    (8, "prefill", 1000, 2, ""),
    (7, "done", 1100, 4, "length"),
    (8, "decode", 1200, 3, ""),
]
TOKENS = {7: [390, 500, 600, 1090], 8: [690, 890, 1190]}  # µs


def tell(sink):
    sink.graph(0, *graph_of(6))
    for number, rows in enumerate([[7], [7, 8], [8, 8]]):
        info, events = step_of(number, 6)
        info.rows = [Row(i, request, i, 1, "prefill") for i, request in enumerate(rows)]
        sink.step(info, events)
    for request, state, time, generated, reason in STATES:
        sink.request(RequestInfo(request, state, time * US, 10 * request, generated, "p", reason, f"req-{request}", request))
    for request, times in TOKENS.items():
        for index, time in enumerate(times):
            sink.token(TokenInfo(request, index, 1, "t", min(index, 2), time * US))


@pytest.fixture(params=["live", "trace"])
def source(request, tmp_path):
    if request.param == "live":
        store = LiveStore()
        tell(store)
        return store
    with TraceWriter(tmp_path / "t.mkt", kind="measured") as writer:
        tell(writer)
    return Trace.open(tmp_path / "t.mkt")


def test_figures(source):
    frame = mkviz.requests(source)
    rows = frame.set_index("request").to_dict("index")
    assert list(rows) == [7, 8, 9]
    assert rows[7] == {
        "label": "req-7", "state": "done", "finish_reason": "length", "prompt": 70, "cached": 7, "generated": 4, "arrived": 0,
        "queued": 30 * US, "ttft": 290 * US, "itl_p50": 110 * US, "itl_p99": 490 * US, "preempted": 0, "total": 1000 * US,
        "preemptions": 0, "first_step": 0, "steps": 2,
    }  # fmt: skip
    eight = rows[8]
    assert (eight["arrived"], eight["queued"], eight["ttft"]) == (50 * US, 350 * US, 540 * US)
    assert (eight["itl_p50"], eight["itl_p99"]) == (200 * US, 300 * US)  # the preemption is within: it is what the user felt
    assert (eight["preempted"], eight["preemptions"], eight["generated"]) == (100 * US, 1, 3)
    assert eight["total"] == 1050 * US  # until 1200, the newest that is told of
    assert (eight["first_step"], eight["steps"]) == (1, 2)
    nine = rows[9]
    assert (nine["state"], nine["queued"], nine["steps"]) == ("queued", 250 * US, 0)
    assert all(math.isnan(nine[name]) for name in ("ttft", "itl_p50", "itl_p99", "first_step"))


def test_spans():
    store = LiveStore()
    tell(store)
    of_7, of_8, of_9 = request_times(store.snapshot())
    assert of_7.spans(5000 * US) == [("queued", 100 * US, 130 * US), ("prefill", 130 * US, 400 * US),
                                     ("decode", 400 * US, 1100 * US)]  # fmt: skip
    assert of_8.spans(5000 * US)[-2:] == [("prefill", 1000 * US, 1200 * US), ("decode", 1200 * US, 5000 * US)]
    assert of_9.spans(0) == [("queued", 950 * US, 950 * US)] and of_9.ended is None and of_7.ended == 1100 * US


def test_what_is_not_known_is_not_made_up():
    store = LiveStore()
    for state, time in (("queued", 10), ("prefill", 20), ("decode", 35)):
        store.request(RequestInfo(1, state, time))
    store.request(RequestInfo(2, "decode", 5))  # whose beginning nobody saw
    for index, time in ((4, 50), (5, 57), (7, 90)):
        store.token(TokenInfo(1, index, 0, "", 0, time))
        store.token(TokenInfo(3, index, 0, "", 0, time))
    two, one = request_times(store.snapshot())
    assert (one.ttft, one.itl.tolist(), one.generated) == (25, [7], 8)  # the first decode stands for token 0; 6 is missing
    assert (two.arrived, two.ttft, two.itl.tolist()) == (None, None, [])


def test_percentiles_are_times_that_happened():
    assert [percentile([5, 1, 9], q) for q in (0, 50, 99, 100)] == [1, 5, 9, 9]
    assert percentile([1, 2], 50) == 1 and percentile([], 50) is None


def test_requests_of_traces_of_before(tmp_path):
    """Whose table knows no labels and cached tokens."""
    table = SimpleNamespace(to_pylist=lambda: [
        {"request": 1, "state": "queued", "time": 5, "prompt_tokens": 2, "generated": 0, "prompt": "", "finish_reason": ""}
    ])  # fmt: skip
    old = SimpleNamespace(requests=table, tokens=SimpleNamespace(to_pylist=list), infos=list)
    assert mkviz.requests(old)[["label", "cached"]].values.tolist() == [["", 0]]
    with pytest.raises(MkvizError):
        mkviz.requests(tmp_path / "nothing.mkt")
    assert len(mkviz.requests(LiveStore())) == 0


@pytest.mark.parametrize("ahead", [0, 10**18, -(10**18)])
def test_a_clock_of_its_own(ahead):
    """The step ends at 52 ns and its token is told 300 ns later, another one's 100 ns later."""
    store = LiveStore()
    store.graph(0, *graph_of(6))
    for number in range(2):
        store.step(*step_of(number, 6))
        end = int(store.snapshot().steps["end"][-1])
        store.token(TokenInfo(0, number, 0, "", number, end + (300, 100)[number] + ahead))
    store.token(TokenInfo(0, 2, 0, "", 99, 5))  # of a step that is not kept
    assert clock_shift(store.snapshot()) == (ahead + 100 if ahead else 0)


def test_steps_of_requests():
    store = LiveStore()
    tell(store)
    assert steps_of(store.snapshot().infos) == {7: [0, 1], 8: [1, 2]}
    assert steps_of([]) == {}
