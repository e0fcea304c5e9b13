"""Structure: grammars that an answer must follow, as masks over the vocabulary, through llguidance."""

from __future__ import annotations

import json
from functools import lru_cache

import llguidance
import numpy as np

from engine.serve.errors import ApiError
from engine.tokenizer import Tokenizer
from mkviz.errors import MkvizError

# What a request may spend on compiling its grammar, and on one step of it: tenths of a second.
_LIMITS = llguidance.LLParserLimits(max_grammar_size=100_000, verbose_errors=False)


class StructureError(MkvizError):
    """A grammar that compiled, but leads nowhere or grew too large on the way: the request's fault, found while it runs."""


class Constraint:
    """One sequence's place in a grammar; the engine's thread alone uses it.  ``param``: where the grammar came from."""

    def __init__(self, matcher: llguidance.LLMatcher, vocab: int, param: str):
        self._matcher, self._vocab, self._param = matcher, vocab, param

    def mask(self, generated: list[int]) -> np.ndarray:
        """bool[vocab]: the tokens that may come next, those that end the answer among them where it may end."""
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        self._check()
        return np.unpackbits(bits, count=self._vocab, bitorder="little").view(bool)

    def accept(self, token: int) -> bool:
        """Go on to ``token``; True where the answer is complete then, and nothing could follow."""
        self._matcher.consume_token(token)
        self._check()
        return self._matcher.is_stopped()

    def _check(self) -> None:
        if self._matcher.is_error():
            reason = self._matcher.get_error().strip().splitlines()[0]
            if reason == "NoExtensionBias":  # its word for it
                reason = "nothing can follow that fits the schema"
            raise StructureError(f"{self._param}: {reason}", "a simpler schema")


class Grammars:
    """Compiles Lark grammars for one tokenizer.  Thread-safe."""

    def __init__(self, tokenizer: Tokenizer, vocab: int, eos: tuple[int, ...]):
        self.tokenizer, self.eos, self._vocab = tokenizer, eos, vocab
        text = tokenizer.backend.to_str()
        self._special = {token["content"]: token["id"] for token in json.loads(text)["added_tokens"] if token["special"]}
        self._tokens = llguidance.LLTokenizer(text, n_vocab=vocab, eos_token=list(eos) or None)
        self._compiled = lru_cache(maxsize=64)(self._compile)

    def mark(self, text: str) -> str:
        """The Lark expression of a marker: its token where it is a special one, its letters where not."""
        return f"<[{self._special[text]}]>" if text in self._special else json.dumps(text)

    def constraint(self, grammar: str, param: str) -> Constraint:
        """Raises :class:`ApiError` naming ``param``, the field that the grammar came from, when it cannot be followed."""
        matcher = self._compiled(grammar)
        if matcher.is_error():
            reason = matcher.get_error().strip().splitlines()[0].rpartition("JSON schema: ")[2][:400]
            raise ApiError(400, f"{param}: {reason}", param=param, code="invalid_schema")
        return Constraint(matcher.deep_copy(), self._vocab, param)

    def _compile(self, grammar: str) -> llguidance.LLMatcher:
        return llguidance.LLMatcher(self._tokens, grammar, log_level=0, limits=_LIMITS)

    def bytes_of(self, token: int) -> bytes:
        """The bytes that a token adds to a text."""
        if self._tokens.is_special_token(token):
            return (self.tokenizer.backend.id_to_token(token) or "").encode()
        return self._tokens.decode_bytes([token])
