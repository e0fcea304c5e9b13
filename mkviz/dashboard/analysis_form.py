"""AnalysisForm: what one analysis can be asked with: a few choices and texts in a row."""

from __future__ import annotations

import param
from panel.custom import JSComponent

from mkviz.dashboard.theme import HERE, asset


class AnalysisForm(JSComponent):
    """``fields``: dicts of name, label, value and, for a choice, options [[value, words]], or, for a text, like (what it is
    like) and, if there are some, known [values].  ``handler(values)`` gets all values when one was changed."""

    fields = param.List([])

    _esm = HERE / "analysis_form.js"
    _stylesheets = [asset("analysis_form.css")]  # noqa: RUF012

    def __init__(self, handler, **params):
        self._handler = handler
        super().__init__(**params)

    def _handle_msg(self, data) -> None:
        names = {field["name"] for field in self.fields}
        self._handler({name: str(value) for name, value in data["values"].items() if name in names})
