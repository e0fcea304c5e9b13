"""The format of models whose chat template knows neither tools nor reasoning: all is text."""

from __future__ import annotations

from typing import ClassVar

from engine.serve.formats import LOOSE, Delta, Mark, Wanted, json_rule


class PlainParser:
    def push(self, text: str) -> Delta:
        return Delta(content=text)

    def flush(self) -> Delta:
        return Delta()


class PlainFormat:
    name = "plain"
    markers: ClassVar[dict[str, str]] = {}
    has_tools = False

    def parser(self, opening: str) -> PlainParser:
        return PlainParser()

    def grammar(self, wanted: Wanted, opening: str, mark: Mark) -> str:
        if wanted.schema is None:
            return "start: /(.|\\n)*/"
        return json_rule("start", wanted.schema, LOOSE)
