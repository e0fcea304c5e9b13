"""Columns: arrays of whole numbers as the few bytes that a static page carries, and their description.

A column is as many bytes wide as its largest number needs, all its lowest bytes first, then all next ones (so that they
compress well); the columns follow each other, deflated together.  ``document.js`` reads them.
"""

from __future__ import annotations

import base64
import zlib

import numpy as np

from mkviz.errors import MkvizError

WIDEST = 6  # bytes: what a double, the only number of JavaScript, holds exactly


def pack(columns: dict[str, np.ndarray]) -> tuple[list[dict], str]:
    """([{name, count, width}], base64 text) of columns of non-negative integers below 2^48.  Raises MkvizError for others."""
    described, parts = [], []
    for name, values in columns.items():
        values = np.asarray(values, np.int64)
        if values.size and (values.min() < 0 or values.max() >= 1 << 8 * WIDEST):
            raise MkvizError(f"column {name}: {values.min()} to {values.max()}", f"from 0 to below 2^{8 * WIDEST}")
        width = max(1, (int(values.max(initial=0)).bit_length() + 7) // 8)
        planes = values.astype("<i8").view(np.uint8).reshape(-1, 8).T[:width]
        described.append({"name": name, "count": len(values), "width": width})
        parts.append(np.ascontiguousarray(planes).tobytes())
    return described, base64.b64encode(zlib.compress(b"".join(parts), 6)).decode()
