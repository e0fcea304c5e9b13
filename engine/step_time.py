"""StepTime: how long a step will take, learned from the steps that were measured."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np

from engine.config import ModelConfig

KEPT = 32  # newest steps of a size that count
FEW = 4  # steps of a size from which on it is known
STALE = 2000  # steps after which what is known of a size that none of them had is to be tried again
JUMP = 1.5  # how much longer a step of a larger size may take than smaller ones make believe
RECENT = 1024  # newest steps that the margin is of
QUANTILE = 0.993  # of these stay within it
START = 1.1  # what it begins at
_TRUST = np.array([1.0, 0.5, 0.1])  # where measurements leave it open: rather all steps alike than by row, by row than by key
_RIDGE = 1e-3  # deviation of a step's time, squared, where a + b + c are about 1


def size_of(rows: int) -> int:
    """Steps of one size have one task table and one kernel: powers of two of rows."""
    return 1 << (rows - 1).bit_length()


class SizeTime:
    """Time of steps of one size: a + b · rows + c · keys, fitted to the newest of them, b and c not negative.

    An outlier counts no more than a step that is just outside of what most do.
    """

    def __init__(self, size: int):
        self.size = size
        self._kept: deque[tuple[float, float, float]] = deque(maxlen=KEPT)
        self._seen, self._weights = 0, None
        self.last = 0  # step, of all sizes, that was measured last

    @property
    def known(self) -> bool:
        return self._seen >= FEW

    @property
    def fewest(self) -> int:
        """Rows of the smallest of the steps that count."""
        return min(rows for rows, _, _ in self._kept)

    def observe(self, rows: int, keys: float, ns: float) -> None:
        self._kept.append((rows, keys, ns))
        self._seen += 1
        if self._seen <= KEPT or self._seen % 4 == 0:  # a fit takes 50 us: seldom enough not to be seen
            self._weights = None

    def typical(self, rows: int, keys: float) -> float:
        """ns that steps of so many rows and keys take."""
        if not self.known:  # no step takes more than in proportion to its rows
            return sorted(ns * max(1.0, rows / n) for n, _, ns in self._kept)[(len(self._kept) - 1) // 2]
        if self._weights is None:
            self._weights = self._fit()
        a, b, c = self._weights
        return a + b * rows + c * keys

    def _fit(self) -> tuple[float, float, float]:
        kept = np.array(self._kept)
        unit = np.median(kept[:, 2])
        scale = np.array([1.0, self.size, max(1.0, kept[:, 1].max())]) / _TRUST
        features = np.column_stack([np.ones(len(kept)), kept[:, :2]]) / scale * (unit / kept[:, 2])[:, None]
        use, weight = np.arange(3), np.ones(len(kept))
        while True:
            for _ in range(3):
                part = features[:, use]
                found = np.linalg.solve(part.T @ (part * weight[:, None]) + _RIDGE * np.eye(len(use)), part.T @ weight)
                off = np.abs(part @ found - 1)
                weight = np.minimum(1, np.maximum(1.5 * np.median(off), 1e-6) / np.maximum(off, 1e-9))
            if (found >= 0).all():
                break
            use = np.delete(use, found.argmin())
        weights = np.zeros(3)
        weights[use] = found
        return tuple((weights * unit / scale).tolist())


class StepTime:
    """Predicts a step's time from its size, its rows, and the keys that they see.

    Steps of one size (1, 2, 4, … rows) have a line of their own (:class:`SizeTime`), so that a larger size, which has another
    task table and may have another kernel, may begin with a jump.  Of a size that is not known yet, what is known of others
    says no more than: a larger step does not take less, and not more than in proportion to its rows and half as much again.
    Keys are summed over rows and averaged over layers.  A *span* is (first position, rows) of one sequence.

    ``margin``: how much longer than predicted 993 of the newest 1,000 steps or so took at most.
    """

    def __init__(self, config: ModelConfig):
        self._window = config.window
        self._sliding = sum(layer.attention == "sliding" for layer in config.layers) / len(config.layers)
        self._sizes: dict[int, SizeTime] = {}
        self._off, self._next, self._steps = np.full(RECENT, START), 0, 0
        self.margin = START

    def observe(self, spans: Sequence[tuple[int, int]], ns: float) -> None:
        """A step of these spans took ``ns``."""
        rows, keys = self.load(spans)
        size = self._sizes.setdefault(size_of(rows), SizeTime(size_of(rows)))
        if size.known:
            self._off[self._next % RECENT] = ns / size.typical(rows, keys)
            self._next += 1
            self.margin = max(1.0, float(np.partition(self._off, int(QUANTILE * RECENT))[int(QUANTILE * RECENT)]))
        size.observe(rows, keys, float(ns))
        self._steps += 1
        size.last = self._steps

    def estimate(self, rows: int, keys: float) -> float:
        """ns that a step of so many rows and keys stays within but for 7 in 1,000; 0 before anything was measured."""
        return self.margin * self._typical(rows, keys)

    def known(self, rows: int) -> bool:
        """Whether enough steps of this size were measured."""
        return (size := self._sizes.get(size_of(rows))) is not None and size.known

    def fresh(self, rows: int) -> bool:
        """Whether one of the steps of late was of this size, too, and one that counts had no more rows."""
        return self.known(rows) and self._steps - (size := self._sizes[size_of(rows)]).last < STALE and size.fewest <= rows

    def least(self, rows: int, keys: float) -> float:
        """ns that such a step takes at least, by what is known of smaller sizes."""
        return max((s.typical(s.size, keys) for s in self._sizes.values() if s.known and s.size < size_of(rows)), default=0.0)

    def _typical(self, rows: int, keys: float) -> float:
        own = self._sizes.get(size_of(rows))
        if own is not None and own.known:
            return own.typical(rows, keys)
        bounds = [own.typical(rows, keys)] if own is not None else []
        larger = min((n for n, s in self._sizes.items() if n > size_of(rows) and s.known), default=0)
        if larger:
            most = self._sizes[larger].typical(larger, keys)
            bounds.append(self._sizes[larger].typical(larger // 2 + 1, keys))
        if smaller := max((n for n, s in self._sizes.items() if n < size_of(rows) and s.known), default=0):
            least = self._sizes[smaller].typical(smaller, keys)
            bounds.append(least * rows / smaller * JUMP)
            if larger:
                bounds.append((least + (most - least) * (rows - smaller) / (larger - smaller)) * JUMP)
        return min(bounds, default=0.0)

    def load(self, spans: Sequence[tuple[int, int]]) -> tuple[int, float]:
        """(rows, keys) of a step."""
        rows = keys = 0
        for first, count in spans:
            rows, keys = rows + count, keys + self._keys(first, count)
        return rows, keys

    def _keys(self, first: int, count: int) -> float:
        seen = count * first + count * (count + 1) // 2
        if not self._sliding:
            return seen
        inside = min(count, max(0, self._window - first))  # rows that see less than the window
        narrow = inside * first + inside * (inside + 1) // 2 + (count - inside) * self._window
        return (1 - self._sliding) * seen + self._sliding * narrow
