"""Workloads: five kinds of use of a server, as prompts and lengths.

Texts are the standard library's sources of the Python that runs the client: real code and prose, at hand everywhere.  Each
request begins with words of its own, so that no prefix cache helps, except where a conversation goes on.
"""

from __future__ import annotations

import ast
import hashlib
import random
import secrets
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from mkviz.errors import MkvizError

_MARGIN = 32  # tokens of a chat template around each turn
_ESTIMATE = 1.2  # a text may have so many times the tokens that its letters let expect


@dataclass(frozen=True)
class Workload:
    """``prompt`` and ``output`` in tokens, of the first turn; each of the further ``turns`` adds ``more`` tokens to the prompt,
    besides the answers so far.  ``chat``: by messages, else as a plain completion."""

    name: str
    words: str
    prompt: int
    output: int
    chat: bool = True
    turns: int = 1
    more: int = 0

    @property
    def length(self) -> int:
        """Tokens that its last turn holds."""
        return self.prompt + self.turns * self.output + (self.turns - 1) * self.more

    def within(self, context: int) -> Workload:
        """The same with its lengths cut in proportion to what ``context`` tokens hold.

        Raises :class:`MkvizError` when nothing is left.
        """
        margin = _MARGIN * self.turns
        share = (context - margin) / (self.length * _ESTIMATE)
        if share >= 1:
            return self
        if share <= 0:
            raise MkvizError(f"workload {self.name}: a context of {context} tokens", f"more than {margin}")
        prompt, output, more = (max(1, int(n * share)) if n else 0 for n in (self.prompt, self.output, self.more))
        return replace(self, prompt=prompt, output=output, more=more)


WORKLOADS = {
    workload.name: workload
    for workload in (
        Workload("chat", "short chat", 64, 128),
        Workload("code", "code completion", 512, 64, chat=False),
        Workload("prompt", "30K prompt", 30_000, 128, chat=False),
        Workload("agent", "multi-turn agent", 1500, 100, turns=6, more=200),
        Workload("long", "long generation", 128, 2048, chat=False),
    )
}


class Text:
    """Pieces of the sources, ``letters`` characters to a token (measured on the server's tokenizer)."""

    def __init__(self, letters: float, seed: str):
        self._letters, self._random = letters, random.Random(seed)

    def piece(self, tokens: int) -> str:
        """About ``tokens`` tokens from a place that the seed chooses, after a first line that no other piece of any run has."""
        source = sources()
        own = f"# {secrets.token_hex(8)}\n"
        size = max(1, int(tokens * self._letters) - len(own))
        at = self._random.randrange(len(source))
        text = source[at : at + size]
        while len(text) < size:
            text += source[: size - len(text)]
        return own + text


@cache
def sources() -> str:
    """The sources of the modules beside ast whose names begin with a to d, in order of their names, as one text."""
    here = Path(ast.__file__).parent
    return "\n".join(path.read_text(encoding="utf-8", errors="replace") for path in sorted(here.glob("[a-d]*.py")))


def sample() -> str:
    """2,000 letters from ten places, which tell how many letters a server's tokenizer has to a token."""
    step = len(sources()) // 10
    return "".join(sources()[i * step : i * step + 200] for i in range(10))


def digest() -> str:
    """Which sources these are."""
    return hashlib.sha256(sources().encode()).hexdigest()[:16]


def turns(workload: Workload, text: Text) -> Iterator[str]:
    """What the user says in each turn."""
    yield text.piece(workload.prompt)
    for _ in range(workload.turns - 1):
        yield text.piece(workload.more)
