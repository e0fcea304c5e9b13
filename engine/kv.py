"""PagePool: which KV pages are free and which belong to whom."""

from __future__ import annotations

from engine.tiling import PAGE
from mkviz.errors import MkvizError


class PagePool:
    """Hands out pages of 64 tokens (all layers of a token block share a page number)."""

    def __init__(self, pages: int):
        self.total = pages
        self._free = list(range(pages - 1, -1, -1))

    @property
    def free(self) -> int:
        return len(self._free)

    @staticmethod
    def pages_for(tokens: int) -> int:
        return -(-tokens // PAGE)

    def take(self, count: int) -> list[int]:
        if count > len(self._free):
            raise MkvizError(
                f"KV cache: {count} pages wanted, {len(self._free)} of {self.total} free", "fewer or shorter requests"
            )
        return [self._free.pop() for _ in range(count)]

    def give_back(self, pages: list[int]) -> None:
        self._free.extend(reversed(pages))
