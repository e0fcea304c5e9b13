"""The formats of Cohere's Command models (cmd3, cmd4): marker tokens around reasoning, text and a JSON list of calls."""

from __future__ import annotations

import json
from dataclasses import dataclass

from cohere_melody import PyFilter, PyFilterOptions

from engine.serve.formats import LOOSE, TIGHT, CallDelta, Delta, Mark, Wanted, call_id, json_rule, region_after

_THINK, _THOUGHT = "<|START_THINKING|>", "<|END_THINKING|>"
_ACT, _ACTED = "<|START_ACTION|>", "<|END_ACTION|>"


class CommandParser:
    """cohere-melody's filter.  A call goes out once its name is there, with an id of our own (the model numbers the calls of
    each answer anew), and never without arguments, which the filter leaves out where they are empty."""

    def __init__(self, options: PyFilterOptions, opening: str):
        self._filter = PyFilter(options)
        self._arguments: list[str] = []  # of each call that is out
        self._text = ""
        if opening:
            self._filter.write_decoded(opening)

    def push(self, text: str) -> Delta:
        self._text += text
        return self._delta(self._filter.write_decoded(text)) if text else Delta()

    def flush(self) -> Delta:
        delta = self._delta(self._filter.flush_partials())
        self._complete(delta)
        if not self._arguments and _ACT in self._text:
            self._salvage(self._text.partition(_ACT)[2].partition(_ACTED)[0], delta)
        return delta

    def _salvage(self, action: str, delta: Delta) -> None:
        """Calls that the filter dropped, such as those without an id; what is none is text, and not lost either."""
        try:
            calls = [(str(call["tool_name"]), json.dumps(call.get("parameters") or {})) for call in json.loads(action)]
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            delta.content += action
        else:
            delta.calls = [CallDelta(i, arguments, id=call_id(), name=name) for i, (name, arguments) in enumerate(calls)]

    def _delta(self, result) -> Delta:
        delta = Delta(result.content or "", result.reasoning or "")
        for call in result.tool_calls:
            if call.name:
                self._complete(delta)
                delta.calls.append(CallDelta(len(self._arguments), id=call_id(), name=call.name))
                self._arguments.append("")
            if call.arguments and self._arguments:
                delta.calls.append(CallDelta(len(self._arguments) - 1, call.arguments))
                self._arguments[-1] += call.arguments
        return delta

    def _complete(self, delta: Delta) -> None:
        if self._arguments and not self._arguments[-1]:
            self._arguments[-1] = "{}"
            delta.calls.append(CallDelta(len(self._arguments) - 1, "{}"))


@dataclass(frozen=True)
class CommandFormat:
    name: str
    say: str
    said: str
    has_tools: bool = True

    @property
    def markers(self) -> dict[str, str]:
        return {_THINK: "reasoning", _THOUGHT: "", self.say: "content", self.said: "", _ACT: "call", _ACTED: ""}

    def parser(self, opening: str) -> CommandParser:
        at = min((i for marker in self.markers if (i := opening.find(marker)) >= 0), default=len(opening))
        options = getattr(PyFilterOptions(), self.name)().stream_tool_actions()
        if _THINK not in opening:  # else the filter takes unmarked text for reasoning
            options = options.start_in_answer()
        return CommandParser(options, opening[at:])

    def grammar(self, wanted: Wanted, opening: str, mark: Mark) -> str:
        region = region_after(self, opening, "")
        rules = ["TEXT: /(.|\\n)*/"]
        think = {"": f"({mark(_THINK)} TEXT {mark(_THOUGHT)})?", "reasoning": f"TEXT {mark(_THOUGHT)}"}.get(region, "")
        answers = []
        if wanted.text:
            if wanted.schema is not None:
                rules.append(json_rule("body", wanted.schema, LOOSE))
            body = "TEXT" if wanted.schema is None else "body"
            answers.append(f"{'' if region == 'content' else mark(self.say)} {body} {mark(self.said)}")
        if wanted.calls:
            answers.append("calls")
            rules += self._calls(wanted, mark)
        return "\n".join([f"start: {think} ({' | '.join(answers)})", *rules])

    def _calls(self, wanted: Wanted, mark: Mark) -> list[str]:
        names = []
        rules = ["NUMBER: /[0-9]{1,3}/"]
        for i, (tool, schema) in enumerate(wanted.tools):
            names.append(f"call_{i}")
            head = json.dumps(f'", "tool_name": {json.dumps(tool)}, "parameters": ')
            rules.append(rf'call_{i}: "    {{\"tool_call_id\": \"" NUMBER {head} arguments_{i} "}}"')
            rules.append(json_rule(f"arguments_{i}", schema, TIGHT))
        more = r'(",\n" call)*' if wanted.parallel else ""
        rules.append(f"call: {' | '.join(names)}")
        rules.append(rf'calls: {mark(_ACT)} "[\n" call {more} "\n]" {mark(_ACTED)}')
        return rules


CMD3 = CommandFormat("cmd3", "<|START_RESPONSE|>", "<|END_RESPONSE|>")
CMD4 = CommandFormat("cmd4", "<|START_TEXT|>", "<|END_TEXT|>")
