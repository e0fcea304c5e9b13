"""Chat: the text pane.  Streams pieces into the page and hands generation requests to a session."""

from __future__ import annotations

import param
from panel.custom import JSComponent

from mkviz.dashboard.theme import asset
from mkviz.protocols import GenerateRequest


class Chat(JSComponent):
    """The conversation and its composer.  ``handler(message)`` gets what the user does (generate, stop, over, goto)."""

    can_generate = param.Boolean(False)
    running = param.Boolean(False)
    models = param.List([])
    model_name = param.String("")
    max_tokens = param.Integer(GenerateRequest.max_tokens, doc="what the page asks for until the user says otherwise")
    note = param.String("")
    note_kind = param.String("")
    empty = param.String("")
    dark = param.Boolean(False)
    ready = param.Boolean(False, doc="the session's ticks have begun")

    _esm = asset("blocks.js") + asset("chat.js")
    _stylesheets = [asset("chat.css")]  # noqa: RUF012

    def __init__(self, handler, **params):
        self._handler = handler
        super().__init__(**params)

    def _handle_msg(self, data) -> None:
        self._handler(data)

    def turn(self, role: str, text: str) -> None:
        """Begin a turn; the pieces that follow are its answer."""
        self._send_msg({"type": "turn", "role": role, "text": text})

    def append(self, pieces: list[tuple[str, int]]) -> None:
        """Add (text, step) pieces to the running answer."""
        self._send_msg({"type": "append", "pieces": pieces})

    def light(self, step: int) -> None:
        """Light the tokens that a step made (-1: none)."""
        self._send_msg({"type": "light", "step": step})
