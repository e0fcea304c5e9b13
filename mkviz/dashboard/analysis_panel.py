"""AnalysisPanel: one analysis on the page: its question, its answer, plots and tables, and what could not be told."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

import panel as pn

from mkviz.dashboard.analysis_form import AnalysisForm
from mkviz.dashboard.html import Html
from mkviz.dashboard.theme import asset
from mkviz.findings import ANALYSES
from mkviz.findings.html import Link, prose, remarks_html, table_html

if TYPE_CHECKING:
    from collections.abc import Callable

    from bokeh.plotting import figure

    from mkviz.findings import Finding

DEFINITIONS = "docs/analyses.md"


def _pane() -> Html:
    return Html("", css_classes=["analysis"], stylesheets=[asset("analysis_panel.css")], margin=0, sizing_mode="stretch_width")


class AnalysisPanel:
    """``root`` is placed on a page; ``source`` names what the finding that it shows is of; ``update`` shows another one."""

    def __init__(self, name: str, asked: Callable[[dict[str, str]], None]):
        self.name, self.analysis, self.source = name, ANALYSES[name], ""
        self.finding: Finding | None = None
        self._link: Link | None = None
        self._alone = ""
        self.words, self.facts = _pane(), _pane()
        self.form = AnalysisForm(asked, margin=0, sizing_mode="stretch_width", visible=False)
        self.figures = pn.Column(margin=(0, 8, 0, 8), sizing_mode="stretch_width")
        self.root = pn.Column(
            self.words, self.form, self.figures, self.facts, css_classes=["analysis"], margin=0, sizing_mode="stretch_width",
            stylesheets=[asset("analysis_card.css")],
        )  # fmt: skip
        self.say("")

    def ask(self, fields: list[dict]) -> None:
        """What it can be asked with."""
        if fields != self.form.fields:
            self.form.fields = fields
        self.form.visible = bool(fields)

    def lead(self, alone: str) -> None:
        """Where the link in its head leads: to it alone, or back to all."""
        self._alone = alone

    def waiting(self) -> None:
        """Computing; what was shown stays."""
        self._head("computing …")

    def say(self, words: str) -> None:
        """Words instead of a finding."""
        self.finding, self.source = None, ""
        self.figures.objects = []
        self.facts.object = ""
        self._head("", f'<p class="state">{prose(words)}</p>' if words else "")

    def update(self, source: str, finding: Finding, figures: list[figure], link: Link | None) -> None:
        """Show a finding with its plots; ``link``: where rows of its tables lead."""
        self.source, self.finding, self._link = source, finding, link
        self.redraw(figures)
        tables = "".join(table_html(caption, table, link) for caption, table in finding.tables.items())
        means = f"{escape(self.analysis.means)} Definition: {DEFINITIONS}, “{escape(self.analysis.section)}”."
        self.facts.object = (f'<div class="tables">{tables}</div>{remarks_html(finding.remarks)}'
                             f'<p class="means">{means}</p>')  # fmt: skip
        self._head("")

    def redraw(self, figures: list[figure]) -> None:
        """The plots, as for another theme."""
        for drawn in figures:  # columns are narrow: what a figure is of may be cut, what it shows may not
            shows = drawn.title.text.removeprefix(f"{self.finding.label} · ")
            drawn.title.text = shows if shows == drawn.title.text else f"{shows} · {self.finding.label}"
        self.figures.objects = [pn.pane.Bokeh(f, sizing_mode="stretch_width", margin=0) for f in figures]

    def _head(self, busy: str, below: str = "") -> None:
        if self.finding is not None:
            below = f'<p class="answer">{prose(self.finding.answer)}</p>'
        alone = f'<a class="alone" href="{escape(self._alone)}">{"all analyses" if self.alone else "alone"}</a>'
        self.words.object = (f'<h2>{escape(self.analysis.title)}<span class="asks">{escape(self.analysis.asks)}</span>'
                             f'<span class="busy" role="status">{escape(busy)}</span>{alone if self._alone else ""}</h2>'
                             f"{below}")  # fmt: skip

    alone = False
    """Whether the page shows nothing but this."""
