"""Fields: typed reading of config.json."""

from __future__ import annotations

from mkviz.errors import MkvizError


class Fields:
    """``values``: the file; ``defaults``: what a field is where the file leaves it out or says null.

    Every complaint is a :class:`MkvizError` that names the field, its value and what would be right.
    """

    def __init__(self, values: dict, defaults: dict | None = None):
        self.values, self.defaults = values, defaults or {}

    def refuse(self, name: str, right: str):
        said = f"{name} {self.values[name]!r}" if name in self.values else f"{name} is missing"
        raise MkvizError(f"config.json: {said}", right)

    def given(self, name: str) -> bool:
        return self.values.get(name) is not None

    def _value(self, name: str, default):
        value = self.values.get(name)
        return self.defaults.get(name, default) if value is None else value

    def integer(self, name: str, default: int | None = None, least: int = 1) -> int:
        value = self._value(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            self.refuse(name, f"a whole number of {least} or more")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        value = self._value(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
            self.refuse(name, "a number above 0")
        return float(value)

    def flag(self, name: str, default: bool) -> bool:
        value = self._value(name, default)
        if not isinstance(value, bool):
            self.refuse(name, "true or false")
        return value

    def choice(self, name: str, choices: tuple[str, ...], default: str | None = None) -> str:
        value = self._value(name, default)
        if value not in choices:
            self.refuse(name, f"one of {', '.join(choices)}")
        return value

    def token(self, name: str, vocab: int) -> int | None:
        value = self.values.get(name)
        if value is None or (value == -1 and name == "pad_token_id"):
            return None
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < vocab:
            self.refuse(name, f"null or a token id below vocab_size {vocab}")
        return value

    def per_layer(self, name: str, count: int, choices: tuple[str, ...]) -> list[str]:
        value = self.values[name]
        if not isinstance(value, list) or len(value) != count or any(v not in choices for v in value):
            self.refuse(name, f"num_hidden_layers {count} entries, each one of {', '.join(choices)}")
        return value
