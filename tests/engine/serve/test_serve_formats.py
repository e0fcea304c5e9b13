"""Formats: parts out of text in pieces of any size, and grammars that allow what the parsers read and nothing else."""

import json

import pytest
from cohere_melody import render_cmd3, render_cmd4

from engine.config import load_config
from engine.models import DEMO
from engine.serve.command_format import CMD3, CMD4
from engine.serve.errors import ApiError
from engine.serve.formats import Wanted, choose_format
from engine.serve.hermes_format import HermesFormat
from engine.serve.llama_format import LlamaFormat
from engine.serve.plain_format import PlainFormat
from engine.serve.structure import Grammars
from engine.tokenizer import Tokenizer
from mkviz.errors import MkvizError

CALLS = [("get_weather", '{"city": "P}a\\"ris", "days": [1, {"x": 2}]}'), ("now", "{}")]
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "n": {"type": "integer"}},
    "required": ["city", "n"],
    "additionalProperties": False,
}
TOOLS = (("get_weather", SCHEMA), ("now", {"type": "object", "additionalProperties": False}))
BODY = '{"city": "Paris", "n": 3}'


def command_calls(calls):
    items = [f'    {{"tool_call_id": "{i}", "tool_name": "{n}", "parameters": {a}}}' for i, (n, a) in enumerate(calls)]
    return "<|START_ACTION|>[\n" + ",\n".join(items) + "\n]<|END_ACTION|>"


def hermes_calls(calls):
    return "\n".join(f'<tool_call>\n{{"name": "{name}", "arguments": {a}}}\n</tool_call>' for name, a in calls)


def llama_calls(calls):
    return "; ".join(f'{{"name": "{name}", "parameters": {a}}}' for name, a in calls)


def parse(form, text, size, opening=""):
    """(content, reasoning, calls) of a text that comes in pieces of ``size`` characters."""
    parser = form.parser(opening)
    deltas = [parser.push(text[i : i + size]) for i in range(0, len(text), size)] + [parser.flush()]
    calls: list[list[str]] = []
    for delta in deltas:
        for call in delta.calls:
            assert (call.id is None) == (call.name is None) == (call.index < len(calls))
            if call.id is not None:
                calls.append([call.name, ""])
            calls[call.index][1] += call.arguments
    return "".join(d.content for d in deltas), "".join(d.reasoning for d in deltas), [tuple(call) for call in calls]


HERMES, LLAMA, PLAIN = HermesFormat(thinks=True), LlamaFormat(), PlainFormat()
CASES = [
    (CMD4, "", "<|START_TEXT|>a\n<b> c<|END_TEXT|>", ("a\n<b> c", "", [])),
    (CMD4, "", "no marker at all", ("no marker at all", "", [])),
    (CMD4, "", "<|START_THINKING|>hm<|END_THINKING|><|START_TEXT|>yes<|END_TEXT|>", ("yes", "hm", [])),
    (CMD4, "<|CHATBOT_TOKEN|><|START_THINKING|>", "hm<|END_THINKING|><|START_TEXT|>yes", ("yes", "hm", [])),
    (CMD4, "", "<|START_THINKING|>hm<|END_THINKING|>" + command_calls(CALLS), ("", "hm", CALLS)),
    (CMD4, "", '<|START_ACTION|>[{"tool_name": "now", "parameters": {}}]<|END_ACTION|>', ("", "", [("now", "{}")])),
    (CMD4, "", "<|START_ACTION|>no calls<|END_ACTION|>", ("no calls", "", [])),
    (CMD3, "", "<|START_RESPONSE|>yes<|END_RESPONSE|>", ("yes", "", [])),
    (CMD3, "", command_calls(CALLS), ("", "", CALLS)),
    (HERMES, "", "a <b> c < d", ("a <b> c < d", "", [])),
    (HERMES, "", "<think>\nhm <tool_call> hm\n</think>\n\nyes", ("yes", "hm <tool_call> hm\n", [])),
    (HERMES, "<|im_start|>assistant\n<think>\n", "hm</think>\nyes", ("yes", "hm", [])),
    (HERMES, "<think>\n\n</think>\n\n", "yes", ("yes", "", [])),
    (HERMES, "", "wait\n" + hermes_calls(CALLS), ("wait\n", "", CALLS)),
    (HERMES, "", '<tool_call>{"arguments": {"a": 1}, "name": "f"}</tool_call>', ("", "", [("f", '{"a": 1}')])),
    (HERMES, "", "<tool_call>no call</tool_call> and on", ("<tool_call>no call</tool_call> and on", "", [])),
    (HERMES, "", '<tool_call>\n{"name": "f", "arguments": {"a": ', ("", "", [("f", '{"a": ')])),
    (LLAMA, "", llama_calls(CALLS), ("", "", [(name, json.dumps(json.loads(a))) for name, a in CALLS])),
    (LLAMA, "", '<|python_tag|>{"name": "f", "parameters": {}}', ("", "", [("f", "{}")])),
    (LLAMA, "", "words {", ("words {", "", [])),
    (LLAMA, "", '{"no": "call"}', ('{"no": "call"}', "", [])),
    (PLAIN, "", "<think>all of it", ("<think>all of it", "", [])),
]


@pytest.mark.parametrize("size", [1, 3, 1000])
@pytest.mark.parametrize(("form", "opening", "text", "parts"), CASES)
def test_parts_are_the_same_however_the_text_comes(form, opening, text, parts, size):
    assert parse(form, text, size, opening) == parts


@pytest.fixture(scope="module")
def grammars():
    config = load_config(DEMO)
    return Grammars(Tokenizer.open(DEMO, config.vocab), config.vocab, config.eos)


def allowed(grammars, grammar, text):
    """How many characters of ``text`` the grammar allows, and whether the answer may end, or has ended, there."""
    constraint = grammars.constraint(grammar, "tools")
    eos, tokens = grammars.eos, grammars.tokenizer.encode(text, special=False)
    for i, token in enumerate(tokens):
        if not constraint.mask([])[token]:
            return len(grammars.tokenizer.decode(tokens[:i], skip_special=False)), False
        if constraint.accept(token):
            return len(grammars.tokenizer.decode(tokens[: i + 1], skip_special=False)), True
    return len(text), bool(constraint.mask([])[list(eos)].all())


WRITTEN = {CMD4: command_calls, HERMES: hermes_calls, LLAMA: llama_calls}
TEXTS = {CMD4: "<|START_TEXT|>{}<|END_TEXT|>", HERMES: "{}", LLAMA: "{}", PLAIN: "{}"}


@pytest.mark.parametrize("form", WRITTEN, ids=lambda form: form.name)
def test_calls_are_forced_with_their_schemas(grammars, form):
    one, two = ([("get_weather", BODY)], [("get_weather", BODY), ("now", "{}")])
    write = WRITTEN[form]
    grammar = form.grammar(Wanted(tools=TOOLS, text=False, calls=True), "", grammars.mark)
    for calls in (one, two):
        assert allowed(grammars, grammar, write(calls)) == (len(write(calls)), True)
        assert parse(form, write(calls), 2)[2] == calls
    assert allowed(grammars, grammar, TEXTS[form].format("hello"))[0] == 0
    for wrong in ('{"city": "Paris", "n": "3"}', '{"city": "Paris", "n": 3, "x": 1}', "{}"):
        length, complete = allowed(grammars, grammar, write([("get_weather", wrong)]))
        assert not complete and length < len(write([("get_weather", wrong)]))
    single = form.grammar(Wanted(tools=TOOLS, text=False, calls=True, parallel=False), "", grammars.mark)
    length, complete = allowed(grammars, single, write(two))
    assert length < len(write(two)) and allowed(grammars, single, write(one)) == (len(write(one)), True)


@pytest.mark.parametrize(("form", "render"), [(CMD3, render_cmd3), (CMD4, render_cmd4)], ids=["cmd3", "cmd4"])
def test_forced_calls_are_written_as_cohere_writes_them(grammars, form, render):
    calls = [
        {"id": str(i), "name": name, "parameters": a} for i, (name, a) in enumerate([("get_weather", BODY), ("now", "{}")])
    ]
    thinking = [{"type": "thinking", "thinking": "hm"}]
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "x"}]},
        {"role": "chatbot", "content": thinking, "tool_calls": calls},
    ]
    turn = render({"messages": messages}).rpartition("<|START_THINKING|>")[2].partition("<|END_OF_TURN_TOKEN|>")[0]
    grammar = form.grammar(Wanted(tools=TOOLS, text=False, calls=True), "<|START_THINKING|>", grammars.mark)
    assert turn.startswith("hm<|END_THINKING|>") and allowed(grammars, grammar, turn) == (len(turn), True)
    assert parse(form, turn, 5, "<|START_THINKING|>") == ("", "hm", [(call["name"], call["parameters"]) for call in calls])


@pytest.mark.parametrize("form", TEXTS, ids=lambda form: form.name)
def test_a_text_of_a_schema_is_complete_when_it_ends(grammars, form):
    text = TEXTS[form].format(BODY)
    grammar = form.grammar(Wanted(SCHEMA), "", grammars.mark)
    assert allowed(grammars, grammar, text) == (len(text), True)
    assert allowed(grammars, grammar, TEXTS[form].format(json.dumps(json.loads(BODY), indent=2)))[1]
    assert not allowed(grammars, grammar, TEXTS[form].format("hello"))[1]
    assert not allowed(grammars, grammar, TEXTS[form].format(BODY[:-3] + "x}"))[1]
    assert not allowed(grammars, grammar, TEXTS[form].format("{" + " " * 60 + BODY[1:]))[1]  # no spaces without end


@pytest.mark.parametrize("form", WRITTEN, ids=lambda form: form.name)
def test_a_text_without_calls_and_a_text_or_calls(grammars, form):
    text, call = TEXTS[form].format("hello\n<x>"), WRITTEN[form]([("get_weather", BODY)])
    none = form.grammar(Wanted(), "", grammars.mark)
    assert allowed(grammars, none, text) == (len(text), True)
    assert not allowed(grammars, none, call)[1]
    either = form.grammar(Wanted(tools=TOOLS, calls=True), "", grammars.mark)
    for right in (text, call):
        assert allowed(grammars, either, right) == (len(right), True)


@pytest.mark.parametrize(
    ("form", "opening", "text"),
    [
        (CMD4, "", "<|START_THINKING|>hm\nhm<|END_THINKING|>"),
        (CMD4, "<|START_THINKING|>", "hm\nhm<|END_THINKING|>"),
        (HERMES, "", "<think>\nhm <\n</think>\n\n"),
        (HERMES, "<think>\n", "hm <\n</think>\n\n"),
    ],
)
def test_reasoning_may_come_before_or_must_end_where_it_was_begun(grammars, form, opening, text):
    grammar = form.grammar(Wanted(SCHEMA), opening, grammars.mark)
    whole = text + TEXTS[form].format(BODY)
    assert allowed(grammars, grammar, whole) == (len(whole), True)
    assert allowed(grammars, grammar, TEXTS[form].format(BODY))[1] != bool(opening)


def test_a_grammar_that_cannot_be_is_an_error_of_its_field(grammars):
    with pytest.raises(ApiError, match=r"^tools: Invalid type: nothing") as told:
        grammars.constraint(PLAIN.grammar(Wanted({"type": "nothing"}), "", grammars.mark), "tools")
    assert told.value.status == 400


def test_a_constraint_of_its_own_for_each_choice(grammars):
    grammar = PLAIN.grammar(Wanted({"const": "ab"}), "", grammars.mark)
    first, second = (grammars.constraint(grammar, "response_format") for _ in range(2))
    (token,) = grammars.tokenizer.encode('"', special=False)
    before = first.mask([])
    first.accept(token)
    assert (second.mask([]) == before).all() and (first.mask([]) != before).any()


class Templates:
    """A tokenizer with this chat template."""

    def __init__(self, template, tokens=()):
        self.chat_templates, self.backend = {"default": template}, self
        self.token_to_id = {token: i for i, token in enumerate(tokens)}.get


@pytest.mark.parametrize(
    ("template", "name"),
    [
        ("<|START_TEXT|>{{ m }}<|START_ACTION|>", "cmd4"),
        ("<|START_RESPONSE|>", "cmd3"),
        ("{% if tools %}<tool_call>{% endif %}", "hermes"),
        ('{% if tools %}{"name": f, "parameters": {{ p }}}{% endif %}', "llama"),
        ("<|im_start|>{{ m }}", "plain"),
        ("", "plain"),
    ],
)
def test_the_template_says_which_format(template, name):
    assert choose_format("auto", Templates(template, [*CMD3.markers, *CMD4.markers])).name == name


def test_a_format_without_its_markers_is_refused():
    with pytest.raises(MkvizError, match="START_THINKING"):
        choose_format("cmd4", Templates("<|START_TEXT|>"))
