"""Control: a part of a page that the user asks things with."""

from __future__ import annotations

from panel.custom import JSComponent


class Control(JSComponent):
    """``handler(kind, value)`` gets what the user does."""

    __abstract = True

    def __init__(self, handler, **params):
        self._handler = handler
        super().__init__(**params)

    def _handle_msg(self, data) -> None:
        self._handler(data["type"], data["value"])

    def show(self, **values) -> None:
        """Set what differs, in one message."""
        changed = {name: value for name, value in values.items() if getattr(self, name) != value}
        if changed:
            self.param.update(**changed)
