"""Analyses: one open page of analyses.  Asks the worker, shows what has come, and keeps its state in the address."""

from __future__ import annotations

import functools
import logging
import queue
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import urlencode

import panel as pn

from mkviz.dashboard import leads
from mkviz.dashboard.analyses_ask import DEFAULTS, fields, find, settle
from mkviz.dashboard.analyses_bar import AnalysesBar
from mkviz.dashboard.analysis_panel import AnalysisPanel
from mkviz.dashboard.worker import worker
from mkviz.errors import MkvizError
from mkviz.findings import ANALYSES, Finding
from mkviz.reading import Reading

if TYPE_CHECKING:
    from bokeh.plotting import figure

    from mkviz.dashboard.hub import Hub

log = logging.getLogger(__name__)

TICK_MS = 200
AGAIN_S = 5.0  # between the end of one look at a live source and the begin of the next
RESTS = 2  # times as long as a look took, at least, until the next
NO_SOURCE = "Nothing to analyse yet: choose a source above"


@dataclass
class Answer:
    """What the worker made of a panel's question (``name`` "": of the source and steps themselves)."""

    name: str
    reading: Reading | None = None
    finding: Finding | None = None
    figures: list[figure] = field(default_factory=list)
    dark: bool = False
    error: str = ""


class Analyses:
    """All methods but ``_read`` and ``_find`` run on the server's loop; ``tick`` is called every TICK_MS.

    ``asked`` counts what each panel was asked (and, as "", the source): an answer to an earlier question is dropped.
    """

    def __init__(self, hub: Hub, home: str = "./"):
        self.hub, self.home = hub, home
        self.source_name = self.steps = self.only = ""
        self.auto, self.dark = True, False
        self.values = {name: dict(values) for name, values in DEFAULTS.items()}
        self.reading: Reading | None = None
        self.bar = AnalysesBar(self.controlled, sizing_mode="stretch_width", margin=(0, 12, 0, 20))
        self.panels = {name: AnalysisPanel(name, functools.partial(self.ask_with, name)) for name in ANALYSES}
        self.asked = dict.fromkeys(["", *self.panels], 0)
        self._answers: queue.SimpleQueue[tuple[int, Answer]] = queue.SimpleQueue()
        self._due: set[str] = set()  # panels whose answer has not come
        self._began = self._rested = 0.0  # when the last look began and when its last answer came
        self._version = -1  # of the source then
        self._saved: dict[str, str] = {}

    @property
    def shown(self) -> list[str]:
        """Names of the panels on the page."""
        return [self.only] if self.only else list(self.panels)

    # what the user does

    def controlled(self, kind: str, value) -> None:
        """What the bar asks for."""
        if kind == "source":
            self.source_name, self.steps = value, ""
        elif kind == "steps":
            self.steps = value.strip()
        elif kind == "auto":
            self.auto = bool(value)
            self.bar.auto = self.auto
            return
        self.ask()

    def ask_with(self, name: str, changed: dict[str, str]) -> None:
        """What a panel's form asks for."""
        self.values[name] = settle(name, self.values[name], changed)
        self._show_forms()
        if self.reading is not None:
            self._ask_panel(name, self.reading)

    def set_dark(self, dark: bool) -> None:
        self.dark = self.bar.dark = dark
        for name in self.shown:
            panel = self.panels[name]
            if panel.finding is not None:
                panel.redraw([plot(dark) for plot in panel.finding.plots])

    # questions

    def ask(self) -> None:
        """Look at the source and steps anew, and let every panel answer."""
        for name in self.asked:
            self.asked[name] += 1
        self._due = set()
        if not self.source_name:
            self._say_all(NO_SOURCE)
            self.bar.show(words="", wrong=False)
            return
        source = self.hub.sources.get(self.source_name)
        self._began, self._version = time.monotonic(), source.version if source is not None else -1
        self._due = {"", *self.shown}
        for name in self.shown:
            self.panels[name].waiting()
        self.bar.show(source=self.source_name, steps=self.steps, words="reading …", wrong=False)
        worker.put(functools.partial(self._read, self.asked[""], self.source_name, self.steps))

    def _ask_panel(self, name: str, reading: Reading) -> None:
        self.asked[name] += 1
        self._due.add(name)
        self.panels[name].waiting()
        values = dict(self.values.get(name, {}))
        worker.put(functools.partial(self._find, self.asked[name], name, reading, values, self.dark))

    def _read(self, number: int, source_name: str, steps: str) -> None:
        """On the worker's thread."""
        if number != self.asked[""]:
            return
        try:
            source = self.hub.source(source_name)
            if source is None:
                raise MkvizError(f"there is no source {source_name!r} any more", "another one above")
            words = getattr(source, "words", "")
            try:
                answer = Answer("", Reading.of_source(source, steps))
            except MkvizError as error:
                answer = Answer("", error=words or str(error))
        except MkvizError as error:
            answer = Answer("", error=str(error))
        except Exception as error:
            answer = Answer("", error=_bug(error))
        self._answers.put((number, answer))

    def _find(self, number: int, name: str, reading: Reading, values: dict[str, str], dark: bool) -> None:
        """On the worker's thread."""
        if number != self.asked[name]:
            return
        try:
            finding = find(name, reading, values, self.hub)
            answer = Answer(name, reading, finding, [plot(dark) for plot in finding.plots], dark)
        except MkvizError as error:
            answer = Answer(name, error=str(error))
        except Exception as error:
            answer = Answer(name, error=_bug(error))
        self._answers.put((number, answer))

    # answers

    def tick(self) -> None:
        """Show at most one answer, look again at a live source when it is time, and keep the address.  Never raises."""
        try:
            with pn.io.hold():
                self._take()
                self._look_again()
                self._show_bar()
                self.save()
        except Exception:
            log.exception("a tick of the page of analyses failed; the next one tries again")

    def _take(self) -> None:
        while not self._answers.empty():
            number, answer = self._answers.get()
            if number != self.asked[answer.name]:
                continue
            self._due.discard(answer.name)
            if answer.name:
                self._show(answer)
                break
            self._take_reading(answer)

    def _take_reading(self, answer: Answer) -> None:
        if answer.reading is None:
            self._due.clear()
            self.reading = None
            self._say_all(f"This cannot be told: {answer.error}")
            self.bar.show(words=answer.error, wrong=True)
        else:
            self.reading = answer.reading
            self.bar.show(words=f"{self.reading.words} · {self.reading.label}", wrong=False)
            for name in self.shown:
                self._ask_panel(name, self.reading)
        self._rested = time.monotonic()

    def _show(self, answer: Answer) -> None:
        panel = self.panels[answer.name]
        if answer.finding is None:
            panel.say(f"This cannot be told: {answer.error}")
        else:
            same = answer.name != "diff" or not self.values["diff"]["with"]
            link = functools.partial(leads.to_task, self.home, self.source_name, answer.reading.of)
            figures = answer.figures if answer.dark == self.dark else [plot(self.dark) for plot in answer.finding.plots]
            panel.update(self.source_name, answer.finding, figures, link if same else None)
        if not self._due:
            self._rested = time.monotonic()

    def _look_again(self) -> None:
        """At a source that has grown, some seconds after the last answer, more where these took long."""
        source = self.hub.sources.get(self.source_name)
        live = source is not None and (self.reading is None or not getattr(self.reading.of, "closed", True))
        self.bar.show(is_live=live)
        if self._due or not (live and self.auto) or source.version == self._version:
            return
        if time.monotonic() - self._rested > max(AGAIN_S, RESTS * (self._rested - self._began)):
            self.ask()

    def _say_all(self, words: str) -> None:
        for name in self.shown:
            self.panels[name].say(words)

    # around

    def _show_bar(self) -> None:
        self.bar.show(sources=self.hub.names, source=self.source_name, timeline=self._timeline())
        self._show_forms()

    def _timeline(self) -> str:
        """Its address, of the steps that this page is of."""
        if not self.source_name:
            return self.home
        if self.reading is None or not self.steps:
            return self.home + "?" + urlencode({"source": self.source_name})
        return leads.to_steps(self.home, self.source_name, self.reading.of, self.reading.steps)

    def _show_forms(self) -> None:
        for name in self.shown:
            others = [source for source in self.hub.names if source != self.source_name]
            self.panels[name].ask(fields(name, self.values.get(name, {}), others))
            self.panels[name].alone = bool(self.only)
            self.panels[name].lead("?" + urlencode(self.state() | {"panel": "" if self.only else name}))

    def state(self) -> dict[str, str]:
        """What the address keeps, but for what is as it is without being asked for."""
        found = {"source": self.source_name, "steps": self.steps, "panel": self.only, "again": "" if self.auto else "no"}
        for name, values in self.values.items():
            found |= {key: value for key, value in values.items() if value != DEFAULTS[name][key]}
        return {key: value for key, value in found.items() if value}

    def restore(self, query: dict[str, str]) -> None:
        """The state that an address keeps."""
        self.source_name, self.steps = query.get("source", ""), query.get("steps", "").strip()
        self.only = query["panel"] if query.get("panel") in self.panels else ""
        self.auto = query.get("again") != "no"
        for name, values in DEFAULTS.items():
            self.values[name] = settle(name, values, {key: query[key] for key in values if key in query})
        if not self.source_name:
            self.source_name = self.hub.first
        self.bar.show(auto=self.auto)
        self._show_forms()

    def save(self) -> None:
        state = self.state()
        if pn.state.location is not None and state != self._saved:
            self._saved = state
            pn.state.location.search = "?" + urlencode(state) if state else ""

    def close(self) -> None:
        """The page is gone: what is still asked is not answered."""
        for name in self.asked:
            self.asked[name] += 1


def _bug(error: Exception) -> str:
    log.exception("an analysis failed")
    return f"a bug of mkviz: {type(error).__name__}: {error}".splitlines()[0]
