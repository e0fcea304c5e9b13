"""Refusals: each one with its status, the OpenAI shape, and words that name what is wrong; never a 500, never a hang."""

import json
import math
import threading
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from served import KEY, serving

from engine.serve import body as body_module
from engine.serve.requests import ChatRequest, CompletionRequest

COMPLETION = {"model": "demo", "prompt": "x", "max_tokens": 1}
CHAT = {"model": "demo", "messages": [{"role": "user", "content": "x"}], "max_tokens": 1}
ROUTES = {"/v1/completions": COMPLETION, "/v1/chat/completions": CHAT}


def error(response, status):
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json" and response.headers["x-request-id"]
    body = response.json()
    assert set(body) == {"error"} and set(body["error"]) == {"message", "type", "param", "code"}
    told = body["error"]
    assert isinstance(told["message"], str) and told["message"] and "Traceback" not in told["message"]
    assert isinstance(told["type"], str)
    return told


def refused(http, route, status=400, **more):
    return error(http.post(route, json=ROUTES[route] | more), status)


def test_a_prompt_that_is_too_long_is_told_with_both_lengths(http, demo):
    prompt = "word " * 5000
    told = refused(http, "/v1/completions", prompt=prompt)
    assert str(len(demo.tokenizer.encode(prompt))) in told["message"] and str(demo.context) in told["message"]
    assert (told["param"], told["code"]) == ("prompt", "context_length_exceeded")
    told = refused(http, "/v1/chat/completions", messages=[{"role": "user", "content": prompt}])
    assert told["param"] == "messages" and str(demo.context) in told["message"]
    told = refused(http, "/v1/completions", max_tokens=demo.context)
    assert str(demo.context) in told["message"] and told["param"] == "max_tokens"


@pytest.mark.parametrize("route", ROUTES)
def test_an_unknown_model_is_404(http, route):
    told = refused(http, route, 404, model="nobody")
    assert "nobody" in told["message"] and "demo" in told["message"] and told["code"] == "model_not_found"


def test_bad_json_is_told_with_its_place(http):
    head = {"content-type": "application/json"}
    told = error(http.post("/v1/completions", content=b'{"model": "demo",\n  "prompt": }', headers=head), 400)
    assert "line 2 column 13" in told["message"]
    assert error(http.post("/v1/completions", content=b"", headers=head), 400)
    assert error(http.post("/v1/completions", content=b"\xff\xfe{", headers=head), 400)
    assert error(http.post("/v1/completions", content=b"[" * 100_000, headers=head), 400)
    assert error(http.post("/v1/completions", content=b'{"seed": ' + b"9" * 5000 + b"}", headers=head), 400)
    assert "content-type" in error(http.post("/v1/completions", content=b"{}"), 400)["message"]


def test_routes_and_methods_that_are_not_there(http):
    assert error(http.get("/v1/nothing"), 404)["code"] == "not_found"
    response = http.get("/v1/chat/completions")
    assert error(response, 405) and response.headers["allow"] == "POST"
    assert error(http.delete("/v1/models/demo"), 405)


@pytest.mark.parametrize("header", [{}, {"authorization": "Bearer nope"}, {"authorization": KEY}, {"authorization": "Bearer"}])
def test_a_missing_or_wrong_key_is_401(server, header):
    for send in (httpx.get(f"{server[0]}/v1/models", headers=header), httpx.post(f"{server[0]}/v1/x", headers=header)):
        assert error(send, 401)["code"] == "invalid_api_key" and send.headers["www-authenticate"] == "Bearer"
        assert KEY not in send.text
    assert httpx.get(f"{server[0]}/health").json() == {"status": "ok"}


def test_a_body_that_is_too_long_is_413(http, service):
    limit = service.settings.body_limit
    assert str(limit) in refused(http, "/v1/completions", 413, prompt="x" * limit)["message"]
    with httpx.Client(base_url=http.base_url, headers=http.headers) as own:
        chunks = (b"x" * 50_000 for _ in range(limit // 50_000 + 1))
        assert error(own.post("/v1/completions", content=chunks, headers={"content-type": "application/json"}), 413)


FIELDS = [
    ("temperature", -0.1), ("temperature", "1"), ("temperature", True), ("top_p", 0), ("top_p", 1.5), ("top_k", -2),
    ("top_k", 1.5),
    ("min_p", 2), ("seed", 1 << 64), ("n", 0), ("n", 129), ("stop", ""), ("stop", ["a", ""]), ("stop", ["a"] * 17), ("stop", 5),
    ("max_tokens", -1), ("presence_penalty", 3), ("frequency_penalty", -3), ("repetition_penalty", 0), ("logit_bias", {"x": 1}),
    ("logit_bias", {"1": 101}), ("logit_bias", {"99999": 1}), ("logit_bias", {"-1": 1}), ("logit_bias", [1]), ("stream", "yes"),
    ("stop_token_ids", [99999]), ("stream_options", {"include_usage": True}), ("response_format", {"type": "xml"}),
    ("model", None),
    ("response_format", {"type": "json_schema"}), ("user", 5), ("tempature", 1), ("guided_json", {}),
]  # fmt: skip
OF_CHAT = [
    ("messages", []), ("messages", "x"), ("messages", [{"role": "nobody", "content": "x"}]), ("messages", [{"role": "user"}]),
    ("messages", [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]),
    ("messages", [{"role": "tool", "content": "x"}]), ("messages", [{"role": "tool", "content": "x", "tool_call_id": "c"}]),
    ("messages", [{"role": "user", "content": "x", "mood": "good"}]), ("top_logprobs", 5), ("logprobs", 5),
    ("tools", [{"type": "x"}]),
    ("tool_choice", "required"), ("tools", [{"type": "function", "function": {"name": "no spaces"}}]), ("audio", {}),
    ("store", True),
    ("functions", []), ("web_search_options", {}), ("modalities", ["audio"]), ("max_completion_tokens", 7),
    ("reasoning_effort", "low"),
]  # fmt: skip
OF_COMPLETIONS = [
    ("prompt", None), ("prompt", []), ("prompt", [[]]), ("prompt", [99999]), ("prompt", [-1]), ("prompt", ["a", 1]),
    ("prompt", ""),
    ("prompt", {}), ("best_of", 3), ("suffix", "x"), ("logprobs", 21), ("logprobs", True), ("max_tokens", 0), ("echo", "x"),
    ("prompt", ["x"] * 100),
]  # fmt: skip


@pytest.mark.parametrize(
    ("route", "field", "value"),
    [(route, *case) for route in ROUTES for case in FIELDS]
    + [("/v1/chat/completions", *case) for case in OF_CHAT]
    + [("/v1/completions", *case) for case in OF_COMPLETIONS],
)
def test_a_bad_field_is_named(http, route, field, value):
    told = refused(http, route, **{field: value})
    named = {field, told["param"] or ""}
    assert field in told["message"] or any(str(told["param"]).startswith(name) for name in named if name), told


def tool(parameters):
    return {"type": "function", "function": {"name": "f", "parameters": parameters}}


def test_what_a_grammar_cannot_follow_is_named(http):
    for schema in ({"type": "nothing"}, {"$ref": "http://127.0.0.1:1/x"}, {"type": "string", "pattern": "("}, {"not": {}}):
        form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
        told = refused(http, "/v1/chat/completions", response_format=form)
        assert (told["param"], told["code"]) == ("response_format", "invalid_schema")
        told = refused(http, "/v1/chat/completions", tools=[tool({"properties": {"x": schema}})], tool_choice="required")
        assert (told["param"], told["code"]) == ("tools", "invalid_schema")


def test_a_schema_that_leads_nowhere_is_named_by_the_field_it_came_from(http):
    nowhere = {"$ref": "#"}  # compiles, but no text fits it
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": nowhere}}
    for param, asked in (
        ("response_format", {"response_format": form}),
        ("tools", {"tools": [tool(nowhere)], "tool_choice": "required"}),
    ):
        told = refused(http, "/v1/chat/completions", max_tokens=60, **asked)
        assert told["message"] == f"{param}: nothing can follow that fits the schema; a simpler schema"
        assert (told["param"], told["code"]) == (param, "invalid_schema")


@pytest.mark.parametrize("kind", ["array", "string", ["object", "null"], 5])
def test_a_function_that_takes_no_object_is_refused(http, kind):
    """Its arguments would come as an object all the same."""
    told = refused(http, "/v1/chat/completions", tools=[tool({"type": kind})])
    assert told["param"] == "tools[0].function" and repr(kind) in told["message"]


def test_half_a_character_is_refused_wherever_it_is(http):
    schema = b'{"type": "json_schema", "json_schema": {"name": "x", "schema": {"enum": ["\\ud800"]}}}'
    for body in (
        b'{"model": "demo", "prompt": "\\ud800"}',
        b'{"model": "\\udfff", "prompt": "x"}',
        b'{"model": "demo", "prompt": "x", "\\ud800": 1}',
        b'{"model": "demo", "prompt": "x", "response_format": ' + schema + b"}",
    ):
        assert error(http.post("/v1/completions", content=body, headers={"content-type": "application/json"}), 400)


def test_a_full_queue_is_429_with_when_to_come_back(demo):
    """Its own server: four run, four wait, the ninth is told; and a request with too many choices could never run."""
    with serving(demo, batch=4, queue=4) as (url, service), httpx.Client(base_url=url, timeout=60) as http:
        assert "8" in refused(http, "/v1/completions", n=9)["message"]
        body = COMPLETION | {"max_tokens": 1500, "n": 8, "ignore_eos": True, "stream": True}
        with http.stream("POST", "/v1/completions", json=body) as running:
            lines = running.iter_lines()
            next(lines)
            response = http.post("/v1/completions", json=COMPLETION)
            told = error(response, 429)
            assert told["type"] == "rate_limit_error" and int(response.headers["retry-after"]) >= 1
            assert len(service.runs) == 1


NASTY = [
    None, True, False, 0, -1, 1, 2, 5, 0.5, -0.0, 1e308, -1e308, 1 << 31, 1 << 63, 1 << 64, -(1 << 63), 10**400, math.nan,
    math.inf,
    "", "x", "0", "auto", "none", "demo", "\x00", "\ud800", "\U0001f600", "x" * 5000, "{", "<|START_ACTION|>", "../../etc",
    "a\nb",
    [], [[]], [[[]]], [None], [0], [1, 2], [-1], [1 << 40], [True], ["x"], ["x", 1], [{}], ["x"] * 300, [[1, "x"]], [[0]] * 50,
    {}, {"": ""}, {"type": None}, {"type": "text"}, {"type": "json_schema"}, {"type": "json_object"}, {"type": "function"},
    {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": ["string", 5]}}}, {"include_usage": 1}, {"1": 1e99},
    {"type": "json_schema", "json_schema": {"name": "x", "schema": {"$ref": "#"}}}, {"1": 5}, {"9" * 30: 1},
    {"a": {"b": {"c": []}}},
    {"type": "json_schema", "json_schema": {"name": "x", "schema": {"enum": []}}}, {"role": "user"},
    [{"role": "user", "content": []}],
    [{"role": "user", "content": [{"type": "text", "text": 1}]}],
    [{"role": "assistant", "tool_calls": [{"id": "", "function": {}}]}],
    [{"role": "tool", "content": "x", "tool_call_id": ""}],
    [{"type": "function", "function": {"name": "f", "parameters": {"type": 1}}}],
]  # fmt: skip
JSON = st.sampled_from(NASTY)
NAMES = [
    "model", "messages", "prompt", "temperature", "top_p", "top_k", "min_p", "seed", "n", "stop", "max_tokens", "logprobs",
    "tools",
    "top_logprobs", "echo", "presence_penalty", "logit_bias", "response_format", "tool_choice", "stream", "stream_options",
    "parallel_tool_calls", "reasoning_effort", "chat_template_kwargs", "metadata", "best_of", "suffix", "audio", "unheard_of",
]  # fmt: skip


@st.composite
def bodies(draw):
    """Bytes that are no JSON, JSON that is no request, and requests with some of their fields gone wrong."""
    kind = draw(st.sampled_from(["bytes", "json", "cut", "fields", "fields", "fields", "deep"]))
    route = draw(st.sampled_from(list(ROUTES)))
    if kind == "bytes":
        return route, draw(st.binary(max_size=200))
    if kind == "json":
        return route, json.dumps(draw(JSON)).encode()
    body = dict(ROUTES[route])
    whole = json.dumps(body).encode()
    if kind == "cut":
        return route, whole[: draw(st.integers(0, len(whole) - 1))]
    if kind == "deep":
        body["messages"] = [{"role": draw(st.sampled_from(["user", "assistant", "tool", "system"])), "content": draw(JSON)}]
        body["tools"] = [{"type": "function", "function": {"name": draw(st.text(max_size=5)), "parameters": draw(JSON)}}]
        body["response_format"] = {"type": "json_schema", "json_schema": {"name": "x", "schema": draw(JSON)}}
    for name in draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=3)):
        body[name] = draw(JSON)
    return route, json.dumps(body).encode()


@settings(max_examples=500, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck), database=None)
@given(bodies())
def test_500_random_bodies_are_refused_in_the_shape_of_the_api(http, case):
    route, body = case
    response = http.post(route, content=body, headers={"content-type": "application/json"}, timeout=20)
    assert response.status_code < 500, (body, response.text)
    assume(response.status_code != 200)  # by chance it was right: another one in its place
    error(response, response.status_code)
    assert response.status_code in (400, 404)


def test_the_served_document_has_all_routes_and_no_422(http):
    document = http.get("/openapi.json").json()
    assert set(document["paths"]) == {
        "/v1/models", "/v1/models/{model}", "/v1/completions", "/v1/chat/completions", "/health", "/metrics", "/version",
    }  # fmt: skip
    statuses = {status for path in document["paths"].values() for of in path.values() for status in of["responses"]}
    assert "422" not in statuses and {"400", "401", "404", "413", "429"} <= statuses
    assert math.isfinite(len(json.dumps(document)))
    for route in ROUTES:  # a stream is described event by event: each an object with a text under data
        (form,) = document["paths"][route]["post"]["responses"]["200"]["content"]["text/event-stream"].items()
        assert form[0] == "itemSchema" and form[1]["required"] == ["data"] and form[1]["properties"]["data"]["type"] == "string"


WRONG = [None] * 1000
FLOODS = [
    {f"k{i}": 0 for i in range(1000)}, {"prompt": WRONG}, {"prompt": [0] * 1000 + WRONG}, {"prompt": [WRONG]}, {"stop": WRONG},
    {"messages": WRONG}, {"messages": [{}] * 1000}, {"messages": [{f"k{i}": 0 for i in range(1000)}]}, {"tools": [{}] * 1000},
    {"messages": [{"role": "user", "content": [{}] * 1000}]}, {"messages": [{"role": "assistant", "tool_calls": [{}] * 1000}]},
    {"metadata": {f"k{i}": 0 for i in range(1000)}}, {"logit_bias": {f"{i}": "" for i in range(2000)}}, {"modalities": WRONG},
    {"response_format": {f"k{i}": 0 for i in range(1000)}}, {"stream_options": {f"k{i}": 0 for i in range(1000)}},
    {"stop_token_ids": WRONG},
]  # fmt: skip


@pytest.mark.parametrize("model", [ChatRequest, CompletionRequest])
@pytest.mark.parametrize("flood", FLOODS)
def test_a_flood_of_faults_is_not_described_one_by_one(model, flood):
    """Of millions, which a body has room for, that took a minute; the first is told, and no test of fields can tell more."""
    with pytest.raises(ValidationError) as error:
        model.model_validate(flood)
    assert error.value.error_count() <= 12


def test_others_are_answered_while_a_body_is_read(http, monkeypatch):
    answered, parse = threading.Event(), body_module._parse

    def slow(*given):
        assert answered.wait(20)
        return parse(*given)

    monkeypatch.setattr(body_module, "_parse", slow)
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(http.post, "/v1/completions", json=COMPLETION)
        assert httpx.get(f"{http.base_url}/health", timeout=10).status_code == 200 and not reading.done()
        answered.set()
        assert reading.result().status_code == 200


@pytest.mark.parametrize("route", ROUTES)
def test_more_lists_and_objects_than_any_request_needs_are_refused_before_they_are_made(http, monkeypatch, route):
    monkeypatch.setattr(body_module, "MOST", 40)
    told = refused(http, route, prompt=[[0]] * 50)
    assert " lists and objects; at most 40" in told["message"]
    text = '[{"' * 50 + "\\"
    given = {"prompt": text} if route == "/v1/completions" else {"messages": [{"role": "user", "content": text}]}
    assert http.post(route, json=ROUTES[route] | given).status_code == 200  # in a text they are letters
