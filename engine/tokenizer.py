"""Tokenizer: text to token ids and back, from a model directory's tokenizer.json and tokenizer_config.json."""

from __future__ import annotations

from pathlib import Path

import tokenizers

from engine.config import read_json
from mkviz.errors import MkvizError

_NAMED = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
_CHARACTER = 4  # bytes of one at most, and so tokens


class Tokenizer:
    """Wraps a ``tokenizers.Tokenizer``.

    ``vocab``: one more than the highest id.  ``special``: name -> text of the named tokens ("bos_token", ...).
    ``eos``: ids of the named end token (the model's config may know more).  ``chat_templates``: name -> Jinja source,
    "default" first among them; empty when the model has none.
    """

    def __init__(self, backend: tokenizers.Tokenizer, special: dict[str, str], chat_templates: dict[str, str]):
        self.backend, self.special, self.chat_templates = backend, special, chat_templates
        self.vocab = max(backend.get_vocab().values(), default=-1) + 1
        eos = backend.token_to_id(special["eos_token"]) if "eos_token" in special else None
        self.eos: tuple[int, ...] = () if eos is None else (eos,)

    @classmethod
    def open(cls, directory: str | Path, vocab: int | None = None) -> Tokenizer:
        """Read a model directory.  With ``vocab``, the model's vocabulary size, a tokenizer with ids beyond it is refused.

        Raises :class:`MkvizError` naming the file and field that is missing, unreadable or contradictory.
        """
        directory = Path(directory)
        path = directory / "tokenizer.json"
        if not path.exists():
            raise MkvizError(f"{path}: no such file", "a model directory with a tokenizer.json")
        try:
            backend = tokenizers.Tokenizer.from_file(str(path))
        except Exception as e:  # the library raises bare Exception
            raise MkvizError(f"{path}: not a tokenizer ({e})", "fetch the file again") from None
        backend.no_truncation()  # what a training script left behind must not cut prompts
        backend.no_padding()
        config_path = directory / "tokenizer_config.json"
        config = read_json(config_path) if config_path.exists() else {}
        special = _add_tokens(backend, config, config_path)
        out = cls(backend, special, _chat_templates(directory, config))
        if vocab is not None and out.vocab > vocab:
            raise MkvizError(f"{path}: token ids up to {out.vocab - 1}", f"below the model's vocab_size {vocab}")
        return out

    def encode(self, text: str, special: bool = True) -> list[int]:
        """Token ids of ``text``; ``special`` adds what tokenizer.json wants around a prompt (a begin token, say).

        Special tokens spelled out in the text are recognised either way.
        """
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as e:
            raise MkvizError(f"text holds half a character at position {e.start}", "text without lone surrogates") from None
        # As a batch of one: that lets other threads run meanwhile, those that generate among them; a plain encode does not.
        return self.backend.encode_batch_fast([text], add_special_tokens=special)[0].ids

    def decode(self, ids: list[int], skip_special: bool = True) -> str:
        """Text of token ids; ids that the tokenizer does not know are left out, as are special tokens unless told otherwise."""
        return self.backend.decode(ids, skip_special_tokens=skip_special)

    def detokenizer(self, skip_special: bool = True) -> Detokenizer:
        """A fresh :class:`Detokenizer` for one stream."""
        return Detokenizer(self, skip_special)


class Detokenizer:
    """Turns a stream of token ids into text pieces: joined, they are ``decode`` of all the ids.

    A piece never ends in half a character: bytes that may still become one are held back until they do, or cannot.
    """

    def __init__(self, tokenizer: Tokenizer, skip_special: bool = True):
        self._tokenizer, self._skip_special = tokenizer, skip_special
        # Decoders look at neighbours (a leading space goes, bytes join), so a window is decoded: the tokens of the last
        # piece as context, and those pending.
        self._window: list[int] = []
        self._context = 0  # how many of the window are context
        self._sent = 0  # characters of the window's text that are out
        self._silent = 0  # tokens since the last piece

    def push(self, token: int) -> str:
        """Take one token and return the text that is now certain (maybe "")."""
        self._window.append(token)
        text = self._decode()
        # What is incomplete decodes to replacement characters at the end.
        certain = text.rstrip(_REPLACEMENT)
        piece = certain[self._sent :]
        if piece or certain == text:
            self._silent = 0
        elif self._decode([token]):
            self._silent += 1
            if self._silent >= _CHARACTER:
                return self._give_up(text)
        else:  # a token that is not shown: what is pending waits on
            self._window.pop()
        self._sent = max(self._sent, len(certain))
        if certain == text and piece:
            self._window = self._window[self._context :]
            self._context = len(self._window)
            self._sent = len(self._decode())
        return piece

    def _give_up(self, text: str) -> str:
        """These bytes are no character, whatever follows, but for the last replacement, which may be the beginning of one.
        Its bytes are in the last tokens; with more of them, each push would decode all of a long run anew."""
        piece = text[self._sent : -1]
        self._window, self._context = self._window[-_CHARACTER:], 0
        self._sent = len(self._decode()) - 1
        return piece

    def flush(self) -> str:
        """The stream has ended: return what was held back."""
        piece = self._decode()[self._sent :]
        self._window, self._context, self._sent, self._silent = [], 0, 0, 0
        return piece

    def _decode(self, tokens: list[int] | None = None) -> str:
        return self._tokenizer.decode(self._window if tokens is None else tokens, self._skip_special)


def _text(token, where: str) -> str:
    """A token is written as a string or as an object with its text in "content"."""
    if isinstance(token, dict):
        token = token.get("content")
    if isinstance(token, str):
        return token
    raise MkvizError(f"{where} {token!r}", 'a string, or an object with a "content" string')


def _add_tokens(backend: tokenizers.Tokenizer, config: dict, path: Path) -> dict[str, str]:
    """Bring in the tokens that only tokenizer_config.json knows, mark special ones, and return the named ones."""
    listed = config.get("added_tokens_decoder") or {}
    if not isinstance(listed, dict) or not all(key.isdecimal() for key in listed):
        raise MkvizError(f"{path}: added_tokens_decoder is malformed", "an object from token id to token")
    for key in sorted(listed, key=int):
        token, form = listed[key], {}
        text = _text(token, f"{path}: added_tokens_decoder.{key}")
        if isinstance(token, dict):
            form = {k: bool(token[k]) for k in ("single_word", "lstrip", "rstrip", "normalized", "special") if k in token}
        backend.add_tokens([tokenizers.AddedToken(text, **({"special": True} | form))])
        if backend.token_to_id(text) != int(key):
            raise MkvizError(
                f"{path}: added_tokens_decoder.{key} {text!r} has id {backend.token_to_id(text)} in tokenizer.json",
                "the two files of one model",
            )
    special = {name: _text(config[name], f"{path}: {name}") for name in _NAMED if config.get(name) is not None}
    more = [_text(token, f"{path}: additional_special_tokens") for token in config.get("additional_special_tokens") or ()]
    already = {token.content for token in backend.get_added_tokens_decoder().values() if token.special}
    for text in [*special.values(), *more]:
        # A name for a token outside the vocabulary (often padding) stays a name: a new id would lie beyond the embedding.
        if text not in already and backend.token_to_id(text) is not None:
            backend.add_special_tokens([tokenizers.AddedToken(text, special=True, normalized=False)])
    for name in ("bos_token", "eos_token"):
        if name in special and backend.token_to_id(special[name]) is None:
            raise MkvizError(f"{path}: {name} {special[name]!r} is not in tokenizer.json", "a token of the vocabulary")
    return special


def _chat_templates(directory: Path, config: dict) -> dict[str, str]:
    """chat_template.jinja where it exists, else chat_template of tokenizer_config.json: one text or a list of named ones."""
    file = directory / "chat_template.jinja"
    if file.exists():
        try:
            return {"default": file.read_text(encoding="utf-8")}
        except (OSError, UnicodeDecodeError) as e:
            raise MkvizError(f"{file}: not readable ({e})", "fetch the file again") from None
    given = config.get("chat_template")
    if not given:
        return {}
    if isinstance(given, str):
        return {"default": given}
    try:
        return {str(entry["name"]): str(entry["template"]) for entry in given}
    except (TypeError, KeyError):
        raise MkvizError(
            f"{directory / 'tokenizer_config.json'}: chat_template is malformed",
            "a string, or a list of objects with name and template",
        ) from None
