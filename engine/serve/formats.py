"""Formats: how model families write reasoning, text and tool calls; which of them a model's chat template speaks."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from engine.tokenizer import Tokenizer
from mkviz.errors import MkvizError


@dataclass
class CallDelta:
    """More of the tool call ``index``; ``id`` and ``name`` come once, with its first delta."""

    index: int
    arguments: str = ""
    id: str | None = None
    name: str | None = None


@dataclass
class Delta:
    content: str = ""
    reasoning: str = ""
    calls: list[CallDelta] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.content or self.reasoning or self.calls)


class Parser(Protocol):
    """Takes a stream of text with its marker tokens spelled out, and tells its parts as soon as they are certain."""

    def push(self, text: str) -> Delta: ...
    def flush(self) -> Delta: ...


@dataclass(frozen=True)
class Wanted:
    """What an answer must be.  ``schema``: of its text (None: any text); ``tools``: (name, schema of the arguments) of those
    that it may call; ``text``, ``calls``: may it be a text, may it be calls?  ``parallel``: more than one call?"""

    schema: dict | None = None
    tools: tuple[tuple[str, dict], ...] = ()
    text: bool = True
    calls: bool = False
    parallel: bool = True


Mark = Callable[[str], str]  # the text of a marker -> the Lark expression for it


class Format(Protocol):
    """``markers``: text -> the region that follows it: reasoning, content, call, or "" between them.

    ``opening`` is what the chat template has put after the last message: some begin the reasoning, or the text, themselves.
    """

    name: str
    markers: dict[str, str]
    has_tools: bool

    def parser(self, opening: str) -> Parser: ...
    def grammar(self, wanted: Wanted, opening: str, mark: Mark) -> str: ...


def region_after(form: Format, opening: str, before: str) -> str:
    """The region that ``opening`` leaves open, ``before`` being the one it began in."""
    found = {opening.rfind(marker): region for marker, region in form.markers.items() if marker in opening}
    return found[max(found)] if found else before


def call_id() -> str:
    return f"call_{secrets.token_hex(12)}"


def json_rule(name: str, schema: dict, spacing: dict) -> str:
    """A Lark rule of the JSON that fits ``schema``, spaced as ``spacing`` says."""
    return f"{name}: %json {json.dumps(schema | {'x-guidance': spacing})}"


# As templates write arguments; and as models like to write JSON, but never spaces without end.
TIGHT = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
LOOSE = {"whitespace_pattern": r"\n? {0,16}"}


def choose_format(name: str, tokenizer: Tokenizer) -> Format:
    """The format called ``name``; ``auto`` goes by the markers that the model's chat template mentions."""
    from engine.serve.command_format import CMD3, CMD4
    from engine.serve.hermes_format import HermesFormat
    from engine.serve.llama_format import LlamaFormat
    from engine.serve.plain_format import PlainFormat

    template = "\n".join(tokenizer.chat_templates.values())
    if name == "auto":
        name = (
            "cmd4" if "<|START_TEXT|>" in template
            else "cmd3" if "<|START_RESPONSE|>" in template
            else "hermes" if "<tool_call>" in template or "<think>" in template
            else "llama" if "<|python_tag|>" in template or ("tools" in template and '"parameters": ' in template)
            else "plain"
        )  # fmt: skip
    if name in ("cmd3", "cmd4"):
        form = {"cmd3": CMD3, "cmd4": CMD4}[name]
        missing = [marker for marker in form.markers if tokenizer.backend.token_to_id(marker) is None]
        if missing:
            raise MkvizError(f"format: {name}, but the tokenizer has no {missing[0]}", "auto")
        return form
    if name == "hermes":
        return HermesFormat(thinks="<think>" in template)
    return LlamaFormat() if name == "llama" else PlainFormat()
