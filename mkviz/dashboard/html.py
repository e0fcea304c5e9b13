"""Html: a pane of HTML whose style sheets are written once."""

from __future__ import annotations

import panel as pn


class Html(pn.pane.HTML):
    """With every new text Panel writes a pane's style sheets again: as the names they have on its CDN, from where a notebook's
    cell would then load them."""

    def _update(self, ref, model) -> None:
        properties = self._get_properties(model.document)
        del properties["stylesheets"]
        model.update(**properties)
