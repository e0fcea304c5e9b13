"""PagePool: which KV pages are empty, which are held by whom, and which are kept for whoever asks for their content again."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence

from engine.tiling import PAGE
from mkviz.errors import MkvizError


class PagePool:
    """Pages of 64 tokens (all layers of a token block share a page number), each *empty*, *held* or *idle*.

    A page may have several holders, counted exactly, once it has a key (:mod:`engine.prefix`): it is full then and never
    written again, so nothing is ever copied on write.  When its last holder gives it back it stays idle under its key until
    the pool runs out of empty ones; the one that has been idle longest goes first.
    """

    def __init__(self, pages: int):
        self.total = pages
        self._empty = list(range(pages - 1, -1, -1))
        self._holders = [0] * pages
        self._key: dict[int, bytes] = {}
        self._page: dict[bytes, int] = {}  # the inverse of _key
        self._idle: OrderedDict[int, None] = OrderedDict()  # the longest idle first

    @property
    def free(self) -> int:
        """Pages that can be taken: empty and idle ones."""
        return len(self._empty) + len(self._idle)

    @property
    def idle(self) -> int:
        return len(self._idle)

    @staticmethod
    def pages_for(tokens: int) -> int:
        return -(-tokens // PAGE)

    def take(self, count: int) -> list[int]:
        """``count`` pages for a single holder; what they held is forgotten.  Raises MkvizError when there are fewer."""
        if count > self.free:
            raise MkvizError(f"KV cache: {count} pages wanted, {self.free} of {self.total} free", "fewer or shorter requests")
        pages = [self._empty.pop() if self._empty else self._evict() for _ in range(count)]
        for page in pages:
            self._holders[page] = 1
        return pages

    def _evict(self) -> int:
        page, _ = self._idle.popitem(last=False)
        del self._page[self._key.pop(page)]
        return page

    def find(self, keys: Sequence[bytes], needs: Callable[[int], int] = lambda n: 0) -> list[int]:
        """Pages of the longest beginning of ``keys`` that a sequence can go on from; nobody holds them yet.

        ``needs(n)``: the first page that whoever goes on from page n still reads; those before are -1 in the answer, and need
        not be there.
        """
        best = run = 0  # pages in a row up to here that are there
        for n, key in enumerate(keys, 1):
            run = run + 1 if key in self._page else 0
            if run >= n - needs(n):
                best = n
            elif not run and not needs(len(keys)):  # every longer beginning needs this page too
                break
        first = needs(best)
        return [-1] * first + [self._page[key] for key in keys[first:best]]

    def idle_among(self, pages: Sequence[int]) -> int:
        """How many of ``pages`` stop being free when they are held."""
        return sum(page in self._idle for page in pages)

    def hold(self, pages: Sequence[int]) -> None:
        """One more holder for each of ``pages``, which have keys; -1 is passed over."""
        for page in pages:
            if page >= 0:
                self._holders[page] += 1
                self._idle.pop(page, None)

    def keep(self, page: int, key: bytes) -> int:
        """Name the content of a page that is full.  The page to use from now on: another one, held in its place, if its content
        was there already."""
        if (known := self._page.get(key)) is not None and known != page:
            self.hold([known])
            self.give_back([page])
            return known
        self._key[page], self._page[key] = key, page
        return page

    def give_back(self, pages: Sequence[int]) -> None:
        """One holder less for each of ``pages`` (-1 is passed over), the last first: a page without those before it is of no
        use to anybody, so it shall be evicted before them."""
        for page in reversed(pages):
            if page < 0:
                continue
            self._holders[page] -= 1
            if self._holders[page] == 0:
                if page in self._key:
                    self._idle[page] = None
                else:
                    self._empty.append(page)
