"""The format of Llama 3 models: an answer that is one JSON object {"name": …, "parameters": {…}} is a call."""

from __future__ import annotations

import json
from typing import ClassVar

from engine.serve.formats import LOOSE, TIGHT, CallDelta, Delta, Mark, Wanted, call_id, json_rule

_TAG = "<|python_tag|>"


class LlamaParser:
    """An answer that begins like a call is held until it ends; calls may follow one another, parted by semicolons."""

    def __init__(self):
        self._held: str | None = ""  # None: it is text

    def push(self, text: str) -> Delta:
        if self._held is None:
            return Delta(content=text)
        self._held += text
        begin = self._held.lstrip()
        if begin.startswith("{") or begin.startswith(_TAG[: len(begin)]):
            return Delta()
        text, self._held = self._held, None
        return Delta(content=text)

    def flush(self) -> Delta:
        text, self._held = self._held or "", None
        calls, rest = [], text.strip().removeprefix(_TAG).lstrip()
        try:
            while rest:
                call, end = json.JSONDecoder().raw_decode(rest)
                arguments = json.dumps(call.get("parameters", call.get("arguments", {})), ensure_ascii=False)
                calls.append(CallDelta(len(calls), arguments, id=call_id(), name=str(call["name"])))
                rest = rest[end:].lstrip("; \n")
        except (ValueError, KeyError, AttributeError, RecursionError):
            return Delta(content=text)
        return Delta(calls=calls)


class LlamaFormat:
    name = "llama"
    markers: ClassVar[dict[str, str]] = {}
    has_tools = True

    def parser(self, opening: str) -> LlamaParser:
        return LlamaParser()

    def grammar(self, wanted: Wanted, opening: str, mark: Mark) -> str:
        rules, answers = [], []
        if wanted.text:
            answers.append("TEXT" if wanted.schema is None else "body")
            rules.append(r"TEXT: /([^{](.|\n)*)?/" if wanted.schema is None else json_rule("body", wanted.schema, LOOSE))
        if wanted.calls:
            answers.append("calls")
            for i, (tool, schema) in enumerate(wanted.tools):
                head = json.dumps(f'{{"name": {json.dumps(tool)}, "parameters": ')
                rules += [f'call_{i}: {head} arguments_{i} "}}"', json_rule(f"arguments_{i}", schema, TIGHT)]
            rules.append(f"call: {' | '.join(f'call_{i}' for i in range(len(wanted.tools)))}")
            rules.append('calls: call ("; " call)*' if wanted.parallel else "calls: call")
        return "\n".join([f"start: {' | '.join(answers)}", *rules])
