"""HTML of findings, for pages and reports alike."""

from __future__ import annotations

import re
from collections.abc import Callable
from html import escape

from mkviz.table import Table

Link = Callable[[int, int], str]  # of a step number and a task (-1: none): an address


def table_html(caption: str, table: Table, link: Link | None = None) -> str:
    """A table whose first cells lead where ``link`` says."""
    texts = [unit == "" and all(isinstance(row[i], str | None) for row in table.values)
             for i, unit in enumerate(table.columns.values())]  # fmt: skip
    kind = ['class="text"' if text else "" for text in texts]
    head = "".join(f"<th {k}>{escape(name)}</th>" for name, k in zip(table.head, kind, strict=True))
    body = []
    for number, row in enumerate(table.rows):
        cells = [escape(text) or "(none)" for text in row]
        if link is not None and table.goes_to:
            to = escape(link(*table.goes_to[number]))
            cells[0] = f'<a href="{to}" title="show it on the timeline">{cells[0]}</a>'
        body.append("<tr>" + "".join(f"<td {k}>{c}</td>" for c, k in zip(cells, kind, strict=True)) + "</tr>")
    return f"<table><caption>{escape(caption)}</caption><thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table>"


def prose(text: str) -> str:
    """Words as HTML in which no figure is parted from its unit."""
    return re.sub(r"(?<=\d) (?=(?:%|ns|µs|ms|s|[KMG]iB|[kMG]?B|GB/s|TB/s)\b|%)", "&nbsp;", escape(text))


def remarks_html(remarks: list[str]) -> str:
    """What could not be told and what is wrong, as a list; "" for nothing."""
    return f'<ul class="remarks">{"".join(f"<li>{prose(text)}</li>" for text in remarks)}</ul>' if remarks else ""
