"""JsonScan: where a JSON value that comes in pieces ends."""

from __future__ import annotations


class JsonScan:
    """Follows one JSON object or array through its brackets and strings; it does not judge what lies between."""

    def __init__(self):
        self._depth, self._string, self._escape = 0, False, False
        self.done = False

    def push(self, text: str) -> int:
        """Take more of it; returns how many characters of ``text`` belong to the value."""
        for i, letter in enumerate(text):
            if self._escape:
                self._escape = False
            elif self._string:
                self._escape, self._string = letter == "\\", letter != '"'
            elif letter == '"':
                self._string = True
            elif letter in "{[":
                self._depth += 1
            elif letter in "}]":
                self._depth -= 1
                if self._depth == 0:
                    self.done = True
                    return i + 1
        return len(text)
