"""The Hermes format (Qwen and many others): <think>…</think>, text, <tool_call>{"name": …, "arguments": {…}}</tool_call>."""

from __future__ import annotations

import json
import re
from typing import ClassVar

from engine.serve.formats import LOOSE, TIGHT, CallDelta, Delta, Mark, Wanted, call_id, json_rule, region_after
from engine.serve.json_scan import JsonScan

_MARKERS = {"<think>": "reasoning", "</think>": "content", "<tool_call>": "call", "</tool_call>": "content"}
_HEAD = re.compile(r'\s*\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*"arguments"\s*:\s*(?=\{)')


class HermesParser:
    """Holds back what may be the beginning of a marker; arguments go out as they come once the call's name is known."""

    def __init__(self, region: str):
        self._region, self._held = region, ""
        self._edge = True  # blank lines between parts are layout
        self._index = -1
        self._call, self._scan = "", None  # a call's text so far; the arguments' end

    def push(self, text: str) -> Delta:
        self._held += text
        out = Delta()
        while True:
            at, marker = min(((i, m) for m in self._ends() if (i := self._held.find(m)) >= 0), default=(-1, ""))
            if at < 0:
                keep = max((n for m in self._ends() for n in range(1, len(m)) if self._held.endswith(m[:n])), default=0)
                cut = len(self._held) - keep
                self._take(self._held[:cut], out)
                self._held = self._held[cut:]
                return out
            self._take(self._held[:at], out)
            self._held = self._held[at + len(marker) :]
            if self._region == "call":
                self._end_call(out)
            self._region, self._edge = _MARKERS[marker], True

    def flush(self) -> Delta:
        out = Delta()
        self._take(self._held, out)
        self._held = ""
        if self._region == "call":
            self._end_call(out)
        return out

    def _ends(self) -> tuple[str, ...]:
        return {"reasoning": ("</think>",), "call": ("</tool_call>",)}.get(self._region, ("<think>", "<tool_call>"))

    def _take(self, text: str, out: Delta) -> None:
        if self._region == "call":
            self._take_call(text, out)
            return
        if self._edge:
            text = text.lstrip("\n")
            self._edge = not text
        if self._region == "reasoning":
            out.reasoning += text
        else:
            out.content += text

    def _take_call(self, text: str, out: Delta) -> None:
        self._call += text
        if self._scan is None and (head := _HEAD.match(self._call)):
            self._scan = JsonScan()
            self._index += 1
            out.calls.append(CallDelta(self._index, id=call_id(), name=json.loads(head[1], strict=False)))
            text = self._call[head.end() :]
        if self._scan is not None and not self._scan.done:
            arguments = text[: self._scan.push(text)]
            if arguments:
                out.calls.append(CallDelta(self._index, arguments))

    def _end_call(self, out: Delta) -> None:
        """A call that did not begin as expected: its keys in another order, or no call at all, which is then text."""
        if self._scan is None and self._call.strip():
            try:
                call = json.loads(self._call)
                name, arguments = call["name"], call.get("arguments", call.get("parameters", {}))
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
                out.content += f"<tool_call>{self._call}</tool_call>"
            else:
                self._index += 1
                arguments = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
                out.calls.append(CallDelta(self._index, arguments, id=call_id(), name=str(name)))
        self._call, self._scan = "", None


class HermesFormat:
    name = "hermes"
    markers: ClassVar[dict[str, str]] = _MARKERS
    has_tools = True

    def __init__(self, thinks: bool):
        self._thinks = thinks

    def parser(self, opening: str) -> HermesParser:
        return HermesParser(region_after(self, opening, "content"))

    def grammar(self, wanted: Wanted, opening: str, mark: Mark) -> str:
        rules = [
            r"TEXT: /(.|\n)*/ & ~/(.|\n)*<tool_call>(.|\n)*/",
            r"thought: thinking GAP",
            r"thinking[lazy]: /(.|\n)*<\/think>/",
            r"GAP: /\n{0,2}/",
        ]
        think = ""
        if region_after(self, opening, "content") == "reasoning":
            think = "thought"
        elif self._thinks and "</think>" not in opening:
            think = '("<think>" thought)?'
        answers = []
        if wanted.text:
            answers.append("TEXT" if wanted.schema is None else "body")
            if wanted.schema is not None:
                rules.append(json_rule("body", wanted.schema, LOOSE))
        if wanted.calls:
            answers.append("calls")
            for i, (tool, schema) in enumerate(wanted.tools):
                head = json.dumps(f'\n{{"name": {json.dumps(tool)}, "arguments": ')
                rules.append(f'call_{i}: {head} arguments_{i} "}}\\n</tool_call>"')
                rules.append(json_rule(f"arguments_{i}", schema, TIGHT))
            rules.append(f"call: {' | '.join(f'call_{i}' for i in range(len(wanted.tools)))}")
            more = r'("\n<tool_call>" call)*' if wanted.parallel else ""
            rules.append(f"calls: lead call {more}")
            words_before = wanted.text and wanted.schema is None
            rules.append(r"lead[lazy]: /(.|\n)*<tool_call>/" if words_before else 'lead: "<tool_call>"')
        return "\n".join([f"start: {think} ({' | '.join(answers)})", *rules])
