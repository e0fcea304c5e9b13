"""Chat templates: messages to the one prompt text that a model was trained on."""

from __future__ import annotations

import json
from datetime import datetime
from functools import lru_cache
from typing import TYPE_CHECKING

import jinja2
import jinja2.ext
from jinja2 import nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment

from mkviz.errors import MkvizError

if TYPE_CHECKING:
    from engine.tokenizer import Tokenizer


def render_chat(
    tokenizer: Tokenizer,
    messages: list[dict],
    tools: list[dict] | None = None,
    add_generation_prompt: bool = True,
    variables: dict | None = None,
) -> str:
    """The prompt for ``messages`` (dicts with "role" and usually "content"), to be encoded with ``special=False``.

    ``tools`` are JSON-schema objects as in the usual chat APIs; a model with a template of its own for tools uses that.
    ``add_generation_prompt`` opens the assistant's turn.  ``variables``: what else the template may look at, such as a switch
    for reasoning; they take nothing's place.  Keys whose value is None count as absent.
    Raises :class:`MkvizError` when the model has no template, or when its template refuses the messages.
    """
    if not isinstance(messages, list) or not messages:
        raise MkvizError(f"messages {messages!r}", "a list with at least one message")
    for i, message in enumerate(messages):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise MkvizError(f"messages[{i}] {message!r}", 'an object with "role" and "content"')
    templates = tokenizer.chat_templates
    name = "tool_use" if tools and "tool_use" in templates else "default"
    if name not in templates:
        raise MkvizError("this model has no chat template", "a plain prompt, or a chat_template.jinja beside the weights")
    try:
        return _compile(templates[name]).render(
            (variables or {})
            | tokenizer.special
            | {
                "messages": [{k: v for k, v in message.items() if v is not None} for message in messages],
                "tools": tools or None,
                "documents": None,
                "add_generation_prompt": add_generation_prompt,
            }
        )
    except Exception as e:  # a template is a foreign program: whatever it raises is about these messages and itself
        raise MkvizError(f"the model's chat template refused the messages: {e}", "messages in the form it expects") from None


class _Generation(jinja2.ext.Extension):
    """``{% generation %}`` marks what the assistant wrote, for training; here its body is simply rendered."""

    tags = {"generation"}  # noqa: RUF012  (Jinja's own protocol)

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return nodes.Scope(body, lineno=line)


def _raise(message: str):
    raise jinja2.TemplateError(message)


def _json(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False) -> str:
    """Jinja's own filter escapes for HTML, and prompts are not HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


@lru_cache(maxsize=16)
def _compile(source: str) -> jinja2.Template:
    # Templates come with downloaded weights: they run in the sandbox.
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _json
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment.from_string(source)
