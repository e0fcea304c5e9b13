"""Chat templates rendered as transformers renders them, and what they may not do."""

import json
import shutil
from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerFast

import engine
from engine.chat import render_chat
from engine.tokenizer import Tokenizer
from mkviz.errors import MkvizError

DEMO = Path(engine.__file__).parent / "demo_model"
TOOL = {
    "type": "function",
    "function": {
        "name": "search",
        "description": "Finds <things> & more — überall",
        "parameters": {"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"]},
    },
}
CALL = {"id": "0", "type": "function", "function": {"name": "search", "arguments": {"q": "漢字 <b>"}}}
CHATS = {
    "one turn": [{"role": "user", "content": "Write <b>HTML</b> & “quotes”"}],
    "system and turns": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "hello"},
        {"role": "user", "content": "again"},
    ],
    "tools": [
        {"role": "user", "content": "find it"},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "content": '{"hits": 3}'},
    ],
}
TEMPLATES = {
    "blocks are trimmed": (
        "{% for m in messages %}\n    {% if true %}\n{{ m.role }}: {{ m.content }}\n    {% endif %}\n{% endfor %}\n"
    ),
    "special tokens": "{{ bos_token }}{% for m in messages %}{{ m.content }}{{ eos_token }}{% endfor %}{{ nothing }}",
    "json": "{{ messages | tojson }}|{{ tools | tojson(indent=2) }}|{{ messages | tojson(ensure_ascii=true, sort_keys=true) }}",
    "keys that are None": "{% for m in messages %}{{ 'content' in m }}{{ m.content is defined }} {% endfor %}",
    "training marks": "{% for m in messages %}{% generation %}{{ m.content }}{% set x = 1 %}{% endgeneration %}{% endfor %}",
    "loop controls": "{% for m in messages %}{% if loop.index > 1 %}{% break %}{% endif %}{{ m.content }}{% endfor %}",
    "namespace and macro": (
        "{% set ns = namespace(n=0) %}{% macro f(x) %}[{{ x }}]{% endmacro %}"
        "{% for m in messages %}{% set ns.n = ns.n + 1 %}{{ f(m.role) }}{% endfor %}{{ ns.n }}"
    ),
    "date": "{{ strftime_now('%d %B %Y') }}{% if add_generation_prompt %}>{% endif %}",
}


@pytest.fixture
def model(tmp_path):
    """The demo model's tokenizer with another chat template."""

    def write(template=None, jinja=None):
        shutil.copy(DEMO / "tokenizer.json", tmp_path)
        config = json.loads((DEMO / "tokenizer_config.json").read_text())
        config.pop("chat_template")
        if template is not None:
            config["chat_template"] = template
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
        if jinja is not None:
            (tmp_path / "chat_template.jinja").write_text(jinja, encoding="utf-8")
        return tmp_path

    return write


def agree(directory, messages, tools, prompt):
    mine = render_chat(Tokenizer.open(directory), messages, tools=tools, add_generation_prompt=prompt)
    theirs = PreTrainedTokenizerFast.from_pretrained(directory).apply_chat_template(
        messages, tools=tools, add_generation_prompt=prompt, tokenize=False
    )
    assert mine == theirs
    return mine


@pytest.mark.parametrize("chat", CHATS)
@pytest.mark.parametrize("prompt", [True, False])
def test_demo_model(chat, prompt):
    text = agree(DEMO, CHATS[chat], [TOOL] if chat == "tools" else None, prompt)
    tokenizer = Tokenizer.open(DEMO)
    assert tokenizer.decode(tokenizer.encode(text, special=False), skip_special=False) == text


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("chat", CHATS)
def test_template_features(model, name, chat):
    agree(model(TEMPLATES[name]), CHATS[chat], [TOOL], True)


def test_template_in_a_file_of_its_own_goes_first(model):
    directory = model("from the config", jinja="from the file: {{ messages[0].content }} — ü")
    assert agree(directory, CHATS["one turn"], None, True).startswith("from the file: Write <b>")


def test_named_templates(model):
    directory = model([{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "tools {{ tools[0].type }}"}])
    assert agree(directory, CHATS["one turn"], None, True) == "plain"
    assert agree(directory, CHATS["one turn"], [TOOL], True) == "tools function"


def refused(directory, messages, *words):
    with pytest.raises(MkvizError) as caught:
        render_chat(Tokenizer.open(directory), messages)
    message = str(caught.value)
    assert "\n" not in message
    for word in words:
        assert word in message, message


def test_refuses_a_model_without_a_template(model):
    refused(model(), CHATS["one turn"], "no chat template", "plain prompt")


@pytest.mark.parametrize(
    ("messages", "word"),
    [([], "messages []"), ("hi", "messages 'hi'"), ([{"content": "x"}], "messages[0]"), (["x"], "messages[0] 'x'")],
)
def test_refuses_messages_of_another_shape(messages, word):
    refused(DEMO, messages, word)


def test_tells_what_the_template_says(model):
    directory = model("{{ raise_exception('roles must alternate') }}")
    refused(directory, CHATS["one turn"], "roles must alternate")


@pytest.mark.parametrize("template", ["{% for m in messages %}", "{{ messages[5].content.x }}", "{{ 1 + 'a' }}", "{{ 1 / 0 }}"])
def test_a_broken_template_is_no_traceback(model, template):
    refused(model(template), CHATS["one turn"], "chat template")


@pytest.mark.parametrize(
    "template",
    [
        "{{ messages.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ ''.__class__.__base__.__subclasses__() }}",
        "{{ raise_exception.__globals__['json'] }}",
        "{{ strftime_now.__globals__['json'] }}",
    ],
)
def test_templates_run_in_a_sandbox(model, template):
    """Templates come with downloaded weights: no way to Python's internals, no change of the messages."""
    messages = [{"role": "user", "content": "x"}]
    refused(model(template), messages, "chat template")
    assert messages == [{"role": "user", "content": "x"}]
