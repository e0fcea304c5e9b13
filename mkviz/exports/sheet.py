"""Sheet: a table of the page as CSV, with plain numbers and their unit in the head."""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING

from mkviz.dashboard.tables import TABLES
from mkviz.errors import MkvizError

if TYPE_CHECKING:
    from mkviz.exports.excerpt import Excerpt


def sheet(excerpt: Excerpt, name: str = "ops") -> bytes:
    """UTF-8 CSV (RFC 4180) of one of the tables ``ops``, ``waits``, ``steps``, ``why``, ``requests``, with the page's limits:
    20 longest waits, 100 newest steps and requests.  Raises MkvizError for another name."""
    if name not in TABLES:
        raise MkvizError(f"table {name!r}", f"one of {', '.join(TABLES)}")
    table = TABLES[name](excerpt.scene(1000), excerpt.x0, excerpt.x1)
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow([f"{name} ({unit})" if unit and unit not in name else name for name, unit in table.columns.items()])
    writer.writerows(table.values)
    return text.getvalue().encode()
