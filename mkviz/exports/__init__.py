"""Export: a range of a source as a file that needs no mkviz: HTML that zooms and hovers, PNG, SVG, a table as CSV."""

from __future__ import annotations

from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING

from mkviz.errors import MkvizError
from mkviz.exports.saved import save

if TYPE_CHECKING:
    from mkviz.exports.excerpt import Excerpt
    from mkviz.protocols import Source
    from mkviz.trace import Trace

FORMS = ("html", "png", "svg", "csv")


def export(of: Trace | Source | str | Path, path: str | Path, *, steps: int | tuple[int, int] | None = None,
           span: tuple[float, float] | None = None, table: str = "ops", dark: bool = False,
           overwrite: bool = False) -> Path:  # fmt: skip
    """Write steps (one, or first and last) or a ``span`` (from, to in ns since the first step began) of a trace, of the one at
    a path, or of what a source holds; without either, all of it.

    The end of ``path`` says as what: ``.html``, ``.png``, ``.svg``, ``.csv`` (of a ``table``: ops, waits, steps, why).  Raises
    MkvizError for an unknown ending, a file that exists (unless ``overwrite``), an empty range, or more than 2,000,000 tasks in
    one HTML file; nothing half-written is left.
    """
    from dataclasses import replace

    form = form_of(path, overwrite)
    excerpt = excerpt_of(of, steps, span)
    excerpt = replace(excerpt, look=replace(excerpt.look, dark=dark))
    return save(render(excerpt, form, table), path)


def excerpt_of(of: Trace | Source | str | Path, steps=None, span=None) -> Excerpt:
    """The excerpt that ``export`` writes.  Raises MkvizError as it does."""
    from mkviz.exports.excerpt import Excerpt
    from mkviz.trace import Trace

    pair = (int(steps), int(steps)) if isinstance(steps, Integral) else steps
    if isinstance(of, (str, Path, Trace)):
        return Excerpt.of_trace(of if isinstance(of, Trace) else Trace.open(of), pair, span)
    return Excerpt.of_source(of, pair, span)


def form_of(path: str | Path, overwrite: bool = False) -> str:
    """One of FORMS by a path's ending.  Raises MkvizError for another one, and for a file that exists or cannot."""
    path = Path(path)
    form = path.suffix.lower().removeprefix(".")
    if form not in FORMS:
        raise MkvizError(f"{path}: what to write is told by its ending", f"one of {', '.join('.' + f for f in FORMS)}")
    if path.is_dir():
        raise MkvizError(f"{path} is a folder", "the name of a file")
    if not path.parent.is_dir():
        raise MkvizError(f"{path}: there is no folder {path.parent}", "an existing one")
    if path.exists() and not overwrite:
        raise MkvizError(f"{path} exists", "choose another name, or ask for it to be overwritten")
    return form


def render(excerpt: Excerpt, form: str, table: str = "ops") -> bytes:
    """A whole file of one of FORMS in memory; ``table`` is the one that a CSV holds."""
    if form == "html":
        from mkviz.exports.document import document

        return document(excerpt)
    if form == "csv":
        from mkviz.exports.sheet import sheet

        return sheet(excerpt, table)
    from mkviz.exports.picture import picture

    return picture(excerpt, form)
