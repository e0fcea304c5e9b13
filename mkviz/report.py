"""Report: what all analyses say of a trace, as one HTML file that asks for nothing, and the same figures as JSON."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cached_property
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from mkviz import __version__
from mkviz.dashboard.theme import KIND_COLOURS, theme_of
from mkviz.errors import MkvizError
from mkviz.findings import ANALYSES, Finding
from mkviz.findings.html import prose, remarks_html, table_html
from mkviz.reading import Reading
from mkviz.trace import Trace

if TYPE_CHECKING:
    from mkviz.findings import Analysis

HERE = Path(__file__).parent
DEFINITIONS = "docs/analyses.md"


@dataclass(eq=False)
class Report:
    """Of the steps of a trace that ``reading`` names.  ``refused``: analyses that could not be made, and why."""

    trace: Trace
    reading: Reading
    findings: dict[str, Finding]
    refused: dict[str, str]

    @classmethod
    def of(cls, trace: Trace | str | Path, steps: str = "") -> Report:
        """``steps`` in words, as :class:`mkviz.reading.Reading` takes them.  Raises MkvizError for a trace without these, and
        for one of which no analysis can read the records."""
        trace = trace if isinstance(trace, Trace) else Trace.open(trace)
        reading = Reading.of_source(trace, steps)
        findings, refused = {}, {}
        for name, analysis in ANALYSES.items():
            try:
                findings[name] = _find(name, analysis, reading)
            except MkvizError as error:
                refused[name] = str(error)
                if name == "occupancy" and refused[name] == refused.get("accounting"):
                    raise  # it takes whatever can be read
        return cls(trace, reading, findings, refused)

    @property
    def answer(self) -> str:
        """What bounds the step, in sentences."""
        return self.findings["blame"].answer if "blame" in self.findings else self.refused["blame"]

    @cached_property
    def head(self) -> dict:
        """What the trace is, as its meta.json says it."""
        meta, (records, steps) = self.trace.meta, self.trace.lost
        return {
            "label": self.trace.label, "kind": self.trace.kind, "device": meta.get("device", ""),
            "command": meta.get("command", ""), "created": meta.get("created", ""), "complete": self.trace.complete,
            "lost_records": records, "lost_steps": steps, "clock_error_ns": meta["clock"]["error_ns"],
            "versions": meta.get("versions", {}), "steps": self.reading.words,
        }  # fmt: skip

    def to_json(self) -> dict:
        """Times in ns, rates per second, shares of 1."""
        analyses = {name: self.findings[name].to_json() if name in self.findings else {"refused": self.refused[name]}
                    for name in ANALYSES}  # fmt: skip
        return {
            "format": "mkviz report",
            "version": __version__,
            "head": self.head,
            "answer": self.answer,
            "analyses": analyses,
        }

    def to_html(self, dark: bool = False) -> str:
        """One page with everything in it; the figures of ``to_json`` are its element ``figures``."""
        from bokeh.embed import components
        from bokeh.resources import Resources

        # not render_js(): in a process with Panel it names files of a server, too
        inline = Resources(mode="inline", components=["bokeh"]).js_raw
        plots = {f"{name}-{i}": plot(dark) for name, f in self.findings.items() for i, plot in enumerate(f.plots)}
        script, drawn = components(plots) if plots else ("", {})
        sections = [self._section(name, analysis, drawn) for name, analysis in ANALYSES.items()]
        theme, kind = theme_of(dark), KIND_COLOURS.get(self.trace.kind)
        colours = {**vars(theme), "kind": kind[dark] if kind else theme.text}
        parts = {
            "TITLE": escape(f"{self.trace.label} · report"),
            "SCHEME": "dark" if dark else "light",
            "COLOURS": "; ".join(f"--{name}: {colour}" for name, colour in colours.items()),
            "STYLE": (HERE / "report.css").read_text(encoding="utf-8"),
            "LABEL": escape(self.trace.label),
            "ANSWER": prose(self.answer),
            "HEAD": "".join(f"<dt>{escape(k)}</dt><dd>{escape(v)}</dd>" for k, v in self._facts()),
            "SECTIONS": "".join(sections),
            "FOOT": escape(f"Made by mkviz {__version__} from {self.trace.path.name}. Definitions: {DEFINITIONS}."),
            "FIGURES": json.dumps(self.to_json(), ensure_ascii=False).replace("<", "\\u003c"),  # or a name could end the script
            "BOKEH": "".join(f"<script>{raw}</script>" for raw in inline) if plots else "",
            "SCRIPT": script,
        }
        page = (HERE / "report.html").read_text(encoding="utf-8")
        return re.sub("@([A-Z]+)@", lambda found: parts[found[1]], page)

    def _facts(self) -> list[tuple[str, str]]:
        """The head in words; what is not known is left out."""
        h = self.head
        error, versions = h["clock_error_ns"], ", ".join(f"{name} {version}" for name, version in h["versions"].items())
        facts = [
            ("device", h["device"]), ("command", h["command"]), ("recorded", h["created"]), ("steps", h["steps"]),
            ("lost", f"{h['lost_records']:,} records, {h['lost_steps']:,} steps" + ("" if h["complete"] else "; incomplete")),
            ("clock error", f"{error:.0f} ns" if error is not None else "not measured"), ("versions", versions),
        ]  # fmt: skip
        return [(name, text) for name, text in facts if text]

    def _section(self, name: str, analysis: Analysis, drawn: dict[str, str]) -> str:
        means = f'<p class="means">{escape(analysis.means)} Definition: {DEFINITIONS}, “{escape(analysis.section)}”.</p>'
        head = f'<section id="{name}"><h2>{escape(analysis.title)}</h2><p class="asks">{escape(analysis.asks)}</p>'
        found = self.findings.get(name)
        if found is None:
            return f'{head}<p class="refused">This cannot be told: {escape(self.refused[name])}.</p>{means}</section>'
        plots = "".join(drawn[f"{name}-{i}"] for i in range(len(found.plots)))
        tables = "".join(table_html(caption, table) for caption, table in found.tables.items())
        answer = "" if found.answer == self.answer else f'<p class="answer">{prose(found.answer)}</p>'
        label = "" if found.label == self.trace.label else f'<p class="label">{escape(found.label)}</p>'
        return (f'{head}{label}{answer}{plots}<div class="tables">{tables}</div>{means}'
                f"{remarks_html(found.remarks)}</section>")  # fmt: skip


def _find(name: str, analysis: Analysis, reading: Reading) -> Finding:
    if name != "diff":
        return analysis.find(reading)
    return analysis.find(*sides(reading))


def sides(reading: Reading) -> tuple[Reading, Reading]:
    """What is compared where nothing else is asked for: the step of median time with the slowest one."""
    if len(reading.times.times) < 2 or reading.one is None:
        raise MkvizError("there is only one step", "a second source, or other steps to compare with")
    if reading.one == reading.worst:
        raise MkvizError(f"step {reading.one} is the slowest one itself", "other steps to compare with")
    return reading.only(str(reading.one)), reading.only("worst")
