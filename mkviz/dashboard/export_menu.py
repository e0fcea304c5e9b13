"""ExportMenu: what the page shows, as a file: says what and how large before it is saved."""

from __future__ import annotations

import base64
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

import param
from panel.custom import JSComponent

from mkviz.dashboard.tables import TABLES
from mkviz.dashboard.theme import HERE, asset
from mkviz.dashboard.units import size
from mkviz.errors import MkvizError
from mkviz.exports import FORMS, render
from mkviz.exports.excerpt import Excerpt

if TYPE_CHECKING:
    from mkviz.dashboard.session import Session

CHUNK = 384 << 10  # bytes of a file in one message


@dataclass
class Job:
    """A file being made on a thread of its own."""

    name: str
    data: bytes = b""
    error: str = ""
    over: bool = False

    def run(self, excerpt: Excerpt, form: str, table: str) -> None:
        try:
            self.data = render(excerpt, form, table)
        except MkvizError as error:
            self.error = str(error)
        except Exception as error:  # a bug: the page lives on and says so in one line
            self.error = f"the export failed: {type(error).__name__}: {error}".splitlines()[0]
        self.over = True


class ExportMenu(JSComponent):
    """The button and its menu.  A file is made when its kind is chosen, then told in words, and travels in pieces when the user
    saves it."""

    forms = param.List(list(FORMS))
    table = param.String("ops", doc="the table that a CSV holds")
    what = param.String("", doc="the range, in words")
    file_name = param.String("", doc="of the file that is ready; empty while there is none")
    note = param.String("", doc="its size, that it is being made, or what is wrong")
    wrong = param.Boolean(False)
    chunks = param.Integer(0)

    _esm = HERE / "export_menu.js"
    _stylesheets = [asset("export_menu.css")]  # noqa: RUF012

    def __init__(self, session: Session, **params):
        self._session, self._job = session, None
        super().__init__(**params)

    def _handle_msg(self, data) -> None:
        kind = data["type"]
        if kind == "open":
            self._forget("")
            self._tell_range()
        elif kind == "make" and data["form"] in FORMS:
            self.make(data["form"])
        elif kind == "chunk" and self._job is not None:
            start = int(data["index"]) * CHUNK
            piece = base64.b64encode(self._job.data[start : start + CHUNK]).decode()
            self._send_msg({"type": "chunk", "index": data["index"], "data": piece})

    def make(self, form: str) -> None:
        """Begin a file of the measured range, else of what is in view."""
        try:
            excerpt = self._excerpt()
        except MkvizError as error:
            self._forget(str(error), wrong=True)
            return
        numbers = excerpt.snapshot.steps["step"][excerpt.steps]
        self._forget("making it …")
        self._job = Job(f"mkviz-step-{numbers[0]}" + (f"-to-{numbers[-1]}" if len(numbers) > 1 else "") + f".{form}")
        threading.Thread(target=self._job.run, args=(excerpt, form, self.table), name="mkviz-export", daemon=True).start()

    def tick(self) -> None:
        """Tell of a file that has become ready."""
        job = self._job
        if job is None or not job.over or self.file_name or self.wrong:
            return
        if job.error:
            self._forget(job.error, wrong=True)
        else:
            self.param.update(file_name=job.name, note=size(len(job.data)), chunks=-(-len(job.data) // CHUNK))

    def _excerpt(self) -> Excerpt:
        session = self._session
        snapshot = session.snapshot()
        if snapshot is None or not len(snapshot.steps):
            raise MkvizError("there are no steps to export yet", "generate some, or open a trace")
        x0, x1 = session.range or (session.x0, session.x1)
        if not len(snapshot.steps_in(x0, x1)):
            raise MkvizError("no step lies in the view", "move to one first")
        lo, hi = snapshot.extent
        return Excerpt(snapshot, max(x0, lo), min(x1, hi), session.source.label, session.source.kind, session.look)

    def _tell_range(self) -> None:
        table = self._session.tab if self._session.tab in TABLES else "ops"
        try:
            words = self._excerpt().words
            self.param.update(what=f"{'The measured range' if self._session.range else 'The view'}: {words}", table=table)
        except MkvizError as error:
            self.param.update(what="", table=table, note=str(error), wrong=True)

    def _forget(self, note: str, wrong: bool = False) -> None:
        self._job = None
        self.param.update(file_name="", note=note, wrong=wrong, chunks=0)
