"""StepTime: how long a step will take, learned from the steps that were measured."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np

from engine.config import ModelConfig

KEPT = 32  # newest steps kept of each power of two of rows: many steps of one size do not make it forget the others
QUANTILE = 0.99


class StepTime:
    """Predicts a step's time from what the step reads and computes: a + b · rows + c · experts touched + d · keys seen.

    a to d, none of them negative, are fitted by least squares of the relative error to the newest steps of each size.  Experts
    are those that rows with independent routing touch on average; keys are summed over rows and averaged over layers.  A
    *span* is (first position, rows) of one sequence.
    """

    def __init__(self, config: ModelConfig):
        self._experts, self._miss = config.experts, 1 - config.top_k / config.experts if config.experts else 0.0
        self._window = config.window
        self._sliding = sum(layer.attention == "sliding" for layer in config.layers) / len(config.layers)
        self._kept: dict[int, deque[tuple[np.ndarray, float]]] = {}
        self._weights: np.ndarray | None = None
        self.most_rows = 0  # of the largest step that was measured

    def observe(self, spans: Sequence[tuple[int, int]], ns: float) -> None:
        """A step of these spans took ``ns``."""
        rows = sum(count for _, count in spans)
        self._kept.setdefault(rows.bit_length(), deque(maxlen=KEPT)).append((self._features(spans), float(ns)))
        self.most_rows, self._weights = max(self.most_rows, rows), None

    def estimate(self, spans: Sequence[tuple[int, int]]) -> float:
        """ns that 99 of 100 steps of these spans stay within; 0 before anything was measured."""
        if self._weights is None and self._kept:
            self._fit()
        return 0.0 if self._weights is None else float(self._features(spans) @ self._weights)

    def _features(self, spans: Sequence[tuple[int, int]]) -> np.ndarray:
        rows = sum(count for _, count in spans)
        keys = sum(self._keys(first, count) for first, count in spans)
        return np.array([1.0, rows, self._experts * (1 - self._miss**rows), keys])

    def _keys(self, first: int, count: int) -> float:
        seen = np.arange(first + 1, first + count + 1)
        return float((1 - self._sliding) * seen.sum() + self._sliding * np.minimum(seen, self._window).sum())

    def _fit(self) -> None:
        features, ns = (np.array(column) for column in zip(*(s for kept in self._kept.values() for s in kept), strict=True))
        scale = features.max(axis=0)
        use, relative = np.flatnonzero(scale), features / np.maximum(scale, 1) / ns[:, None]
        while True:
            found = np.linalg.lstsq(relative[:, use], np.ones(len(ns)), rcond=None)[0]
            if (found >= 0).all():
                break
            use = np.delete(use, found.argmin())
        weights = np.zeros(4)
        weights[use] = found / np.maximum(scale[use], 1)
        self._weights = weights * max(1.0, float(np.quantile(ns / (features @ weights), QUANTILE)))
