"""Paired: launches that take turns, their times, and how many times as long some take."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

BOOTSTRAP = 4000


def in_turn(launches: Sequence[Callable[[], float]], rounds: int) -> np.ndarray:
    """f64[launches, rounds]: what each returned, one after the other, the first of a round changing from round to round."""
    n = len(launches)
    times = np.zeros((n, rounds))
    for i in range(rounds):
        for k in range(n):
            which = (i + 1 + k) % n
            times[which, i] = launches[which]()
    return times


def ratio(ours: np.ndarray, theirs: np.ndarray) -> dict:
    """How many times as long theirs takes: the mean of the pairs' ratios with its 95 % bootstrap interval."""
    each = theirs / ours
    means = np.random.default_rng(0).choice(each, (BOOTSTRAP, len(each))).mean(1)
    low, high = np.quantile(means, (0.025, 0.975)).tolist()
    return {"mean": round(float(each.mean()), 4), "interval_95": [round(low, 4), round(high, 4)], "pairs": len(each)}


def spread(times: np.ndarray) -> dict:
    """Of times in ms a step, one a launch."""
    low, middle, high = np.percentile(times, (25, 50, 75)).tolist()
    told = {"ms_step": middle, "ms_quartiles": [low, high], "ms_fastest": float(times.min())}
    return told | {"ms_each": times.round(5).tolist()}
