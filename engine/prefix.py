"""Prefix: pages named by what they hold, so that K and V computed once serve every request that begins with the same tokens.

A key stands for a full page and all before it: SHA-256 of the key before and of the page's token ids.  The first follows the
hash of the request's salt, so that requests with different salts (API keys) never name a page alike.
"""

from __future__ import annotations

import hashlib

import numpy as np

from engine.tiling import PAGE


def extend_keys(keys: list[bytes], tokens: list[int], salt: str) -> None:
    """Append to ``keys`` those of the full pages of ``tokens`` that it does not name yet."""
    while (len(keys) + 1) * PAGE <= len(tokens):
        before = keys[-1] if keys else hashlib.sha256(salt.encode()).digest()
        page = np.array(tokens[len(keys) * PAGE : (len(keys) + 1) * PAGE], "<i4")
        keys.append(hashlib.sha256(before + page.tobytes()).digest())
