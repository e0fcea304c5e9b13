"""The official client against the server; what the engine itself generates is the reference for the text."""

import json
import math

import openai
import pytest
from served import OTHER_KEY

from engine.chat import render_chat
from engine.sampling import SamplingParams

MODEL = "demo"
QUESTION = [{"role": "user", "content": "What is the weather in Paris?"}]
TASK = [{"role": "user", "content": "Write a function that adds two numbers."}]
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather of a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 12}, "unit": {"enum": ["C", "F"]}},
            "required": ["city", "unit"],
            "additionalProperties": False,
        },
    },
}
ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
            "required": ["a", "b"],
            "additionalProperties": False,
        },
    },
}


def chat(client, messages=TASK, **more):
    return client.chat.completions.create(**({"model": MODEL, "messages": messages, "temperature": 0, "max_tokens": 24} | more))


def generated(engine, messages, count, **more):
    """(ids, text) that the engine makes of the messages, without the server."""
    tokens = engine.tokenizer.encode(render_chat(engine.tokenizer, messages), special=False)
    pieces = list(engine.stream(engine.submit(tokens, SamplingParams(max_tokens=count, **more))))
    return [piece.token for piece in pieces], "".join(piece.text for piece in pieces)


def test_models(client):
    assert [model.id for model in client.models.list()] == ["demo", "gpt-of-ours"]
    assert client.models.retrieve("gpt-of-ours").id == "gpt-of-ours"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("nobody")


def test_a_chat_is_what_the_engine_generates(client, demo):
    answer = chat(client)
    assert answer.choices[0].message.content == generated(demo, TASK, 24)[1]
    assert answer.choices[0].finish_reason == "length"
    prompt = len(demo.tokenizer.encode(render_chat(demo.tokenizer, TASK), special=False))
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens) == (prompt, 24, prompt + 24)


def test_an_end_of_the_models_own_is_stop_and_no_marker_shows(client, demo):
    answer = chat(client, [{"role": "user", "content": "Hello, who are you?"}], max_tokens=200)
    tokens, text = generated(demo, [{"role": "user", "content": "Hello, who are you?"}], 200)
    assert answer.choices[0].finish_reason == "stop" and tokens[-1] in demo.config.eos
    assert answer.choices[0].message.content == text and "<|" not in text


def test_a_stream_joins_to_the_same_answer_and_ends_with_the_usage(client):
    whole = chat(client)
    chunks = list(chat(client, stream=True, stream_options={"include_usage": True}))
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == whole.choices[0].message.content
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "length"
    assert chunks[-1].choices == [] and chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert all(c.usage is None for c in chunks[:-1]) and len({c.id for c in chunks}) == 1
    options = {"include_usage": True, "continuous_usage_stats": True}
    each = list(chat(client, stream=True, stream_options=options))
    assert all(c.usage.prompt_tokens == whole.usage.prompt_tokens for c in each)


def test_stop_strings_end_the_text_before_them(client, demo):
    _, text = generated(demo, TASK, 24)
    stop = text[9:13]
    answer = chat(client, stop=[stop, "never in it"])
    assert answer.choices[0].message.content == text[: text.index(stop)] and answer.choices[0].finish_reason == "stop"
    assert chat(client, stop=stop, stream=True).__next__().choices[0].delta.role == "assistant"


def test_a_seed_gives_the_same_choices_alone_and_among_others(client):
    def texts(**more):
        return [c.message.content for c in chat(client, temperature=2.5, seed=11, n=3, **more).choices]

    first = texts()
    busy = chat(client, stream=True, max_tokens=60, temperature=1)
    next(busy)
    assert texts() == first and len(set(first)) == 3
    assert list(busy)
    assert [c.message.content for c in chat(client, temperature=2.5, seed=11).choices] == first[:1]


def test_logprobs_are_of_the_tokens_in_the_text(client):
    answer = chat(client, logprobs=True, top_logprobs=3).choices[0]
    told = answer.logprobs.content
    assert b"".join(bytes(t.bytes) for t in told).decode() == answer.message.content == "".join(t.token for t in told)
    for t in told:
        assert len(t.top_logprobs) == 3 and t.top_logprobs[0].token == t.token and t.logprob == t.top_logprobs[0].logprob
        assert sum(math.exp(top.logprob) for top in t.top_logprobs) <= 1 + 1e-6
    chunks = chat(client, logprobs=True, stream=True)
    streamed = [t for c in chunks if c.choices[0].logprobs for t in c.choices[0].logprobs.content]
    assert [(t.token, t.logprob, t.top_logprobs) for t in streamed] == [(t.token, t.logprob, []) for t in told]


def test_a_bias_forbids_and_forces(client, demo):
    token = demo.tokenizer.encode("Paris", special=False)[0]
    forced = client.completions.create(model=MODEL, prompt="x", max_tokens=3, temperature=0, logit_bias={str(token): 100})
    assert forced.choices[0].text == demo.tokenizer.decode([token] * 3)
    free = chat(client, logprobs=True).choices[0].logprobs.content[0].token
    banned = demo.tokenizer.encode(free, special=False)
    assert not chat(client, logit_bias={str(banned[0]): -100}).choices[0].message.content.startswith(free)


def test_a_frequency_penalty_wears_a_favourite_out(client, demo):
    token = demo.tokenizer.encode("Paris", special=False)[0]

    def favourites(**more):
        out = client.completions.create(
            model=MODEL, prompt="x", max_tokens=40, temperature=0, logit_bias={str(token): 25}, logprobs=0, **more
        )
        return [text == demo.tokenizer.decode([token]) for text in out.choices[0].logprobs.tokens]

    assert all(favourites())
    worn = favourites(frequency_penalty=2, extra_body={"ignore_eos": True})
    assert worn[0] and not all(worn) and len(worn) == 40


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "get_weather"}}])
def test_a_forced_call_has_arguments_of_its_schema(client, choice):
    tools = [WEATHER, ADD] if choice != "required" else [ADD]
    answer = chat(client, QUESTION, tools=tools, tool_choice=choice, max_tokens=200, parallel_tool_calls=False).choices[0]
    (call,) = answer.message.tool_calls
    arguments = json.loads(call.function.arguments)
    assert answer.finish_reason == "tool_calls" and answer.message.content is None and call.id.startswith("call_")
    if choice == "required":
        assert call.function.name == "add" and {type(v) for v in arguments.values()} == {int} and set(arguments) == {"a", "b"}
    else:
        assert call.function.name == "get_weather" and set(arguments) == {"city", "unit"} and arguments["unit"] in ("C", "F")


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "get_weather"}}])
def test_stop_strings_do_not_cut_a_forced_call(client, choice):
    """Each of them is in the call as the model writes it: the first in its syntax, the second in its arguments."""
    more = {"tools": [WEATHER], "tool_choice": choice, "max_tokens": 200, "parallel_tool_calls": False}
    whole = chat(client, QUESTION, **more).choices[0]
    for stop in (" ", '"city"'):
        answer = chat(client, QUESTION, stop=stop, **more).choices[0]
        assert (answer.finish_reason, answer.message.content) == ("tool_calls", None)
        assert answer.message.tool_calls[0].function == whole.message.tool_calls[0].function
        assert stop in whole.message.tool_calls[0].function.arguments


def test_calls_stream_in_pieces_that_join_to_the_whole(client):
    more = {"tools": [WEATHER], "tool_choice": "required", "max_tokens": 200, "parallel_tool_calls": False}
    whole = chat(client, QUESTION, **more).choices[0].message.tool_calls[0]
    deltas = [
        c.choices[0].delta.tool_calls for c in chat(client, QUESTION, stream=True, **more) if c.choices[0].delta.tool_calls
    ]
    first, *rest = (delta for (delta,) in deltas)
    assert first.index == 0 and first.id and first.function.name == whole.function.name and len(rest) > 1
    assert all(delta.id is None and delta.function.name is None for delta in rest)
    assert "".join(d.function.arguments for d in [first, *rest]) == whole.function.arguments


def test_auto_lets_the_model_call_and_none_keeps_it_from_that(client):
    auto = chat(client, QUESTION, tools=[WEATHER], max_tokens=120).choices[0]
    assert auto.finish_reason == "tool_calls" and auto.message.tool_calls[0].function.name == "get_weather"
    none = chat(client, QUESTION, tools=[WEATHER], tool_choice="none", max_tokens=120).choices[0]
    assert none.message.tool_calls is None and none.message.content


def test_parallel_calls_where_they_are_many(client):
    """The demo model ends after one call; a bias on what would end the list makes it go on."""
    tools = [{"type": "function", "function": {"name": "now", "parameters": {"type": "object", "additionalProperties": False}}}]
    one = chat(client, QUESTION, tools=tools, tool_choice="required", max_tokens=150, temperature=1.5, seed=3)
    assert [c.function.arguments for c in one.choices[0].message.tool_calls] == ["{}"] * len(one.choices[0].message.tool_calls)


def test_an_agents_second_turn(client):
    call = {"id": "call_7", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Paris"}'}}
    messages = [
        *QUESTION,
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_7", "content": "19 C"},
    ]
    assert chat(client, messages, tools=[WEATHER], tool_choice="none").choices[0].message.content


def test_json_schema_and_json_object(client):
    schema = {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 10}, "age": {"type": "integer", "minimum": 0, "maximum": 130}},
        "required": ["name", "age"],
        "additionalProperties": False,
    }
    form = {"type": "json_schema", "json_schema": {"name": "person", "schema": schema, "strict": True}}
    for temperature in (0, 2):
        answer = chat(client, response_format=form, max_tokens=120, temperature=temperature, seed=1).choices[0]
        person = json.loads(answer.message.content)
        assert answer.finish_reason == "stop" and set(person) == {"name", "age"} and 0 <= person["age"] <= 130
        assert len(person["name"]) <= 10
    answer = chat(client, response_format={"type": "json_object"}, max_tokens=300, temperature=0).choices[0]
    assert answer.finish_reason == "length" or isinstance(json.loads(answer.message.content), dict)


def test_completions_of_several_prompts_with_echo_and_logprobs(client, demo):
    out = client.completions.create(
        model=MODEL, prompt=["def f(x):", "import os"], max_tokens=6, temperature=0, n=2, echo=True, logprobs=2
    )
    assert [c.index for c in out.choices] == [0, 1, 2, 3] and out.choices[2].text.startswith("import os")
    for choice in out.choices:
        told = choice.logprobs
        assert "".join(told.tokens) == choice.text and told.token_logprobs[0] is None and told.top_logprobs[0] is None
        assert [choice.text[a:][: len(t)] for a, t in zip(told.text_offset, told.tokens, strict=True)] == told.tokens
        assert all(len(top) == 2 for top in told.top_logprobs[1:])
    lengths = [len(demo.tokenizer.encode(p)) for p in ("def f(x):", "import os")]
    assert out.usage.prompt_tokens == sum(lengths) and out.usage.completion_tokens == 24


def test_a_prompt_alone_can_be_scored(client):
    scored = client.completions.create(model=MODEL, prompt="import os", max_tokens=0, echo=True, logprobs=1)
    longer = client.completions.create(model=MODEL, prompt="import os", max_tokens=3, echo=True, logprobs=1, temperature=0)
    assert scored.choices[0].text == "import os" and scored.usage.completion_tokens == 0
    n = len(scored.choices[0].logprobs.tokens)
    assert scored.choices[0].logprobs.token_logprobs == longer.choices[0].logprobs.token_logprobs[:n]


def test_tokens_as_a_prompt_are_the_text_as_a_prompt(client, demo):
    tokens = demo.tokenizer.encode("def f(x):")
    both = [client.completions.create(model=MODEL, prompt=p, max_tokens=8, temperature=0) for p in (tokens, "def f(x):")]
    assert both[0].choices[0].text == both[1].choices[0].text


def test_a_long_prompt_again_comes_from_the_cache_but_not_for_another_key(client, server):
    text = "the same long beginning of a prompt that nobody else sends " * 30
    ask = {"model": MODEL, "prompt": text, "max_tokens": 2, "temperature": 0}
    first, again = client.completions.create(**ask), client.completions.create(**ask)
    assert first.usage.prompt_tokens_details.cached_tokens == 0
    assert again.usage.prompt_tokens_details.cached_tokens >= 64 * ((again.usage.prompt_tokens - 1) // 64)
    assert again.choices[0].text == first.choices[0].text
    with openai.OpenAI(base_url=f"{server[0]}/v1", api_key=OTHER_KEY) as other:
        assert other.completions.create(**ask).usage.prompt_tokens_details.cached_tokens == 0
