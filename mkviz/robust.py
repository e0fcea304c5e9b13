"""Robust statistics: figures of many values that a few wild ones do not move."""

from __future__ import annotations

import numpy as np

NORMAL = 1.4826  # standard deviations of a normal distribution in one median absolute deviation
NORMAL_MEAN = 1.2533  # ... in one mean absolute deviation
Z_95 = 1.959964
MOST_POINTS = 1000  # of which every pair has a slope; beyond, medians of neighbours stand for them


def z_scores(values: np.ndarray) -> np.ndarray:
    """f64[n]: distance from the median in standard deviations, as the median absolute deviation estimates them, or the mean one
    where more than half of the values are the same; 0 where all are."""
    off = values.astype(np.float64) - np.median(values)
    scale = NORMAL * np.median(np.abs(off)) or NORMAL_MEAN * np.mean(np.abs(off))
    return off / scale if scale else off


def drift(values: np.ndarray) -> tuple[float, float, float]:
    """Slope of values in a row per place, with its 95 % interval: the median slope of all pairs (Theil and Sen), whose interval
    follows from Kendall's tau.  NaN for fewer than 3 values.  The interval takes deviations to be independent."""
    if len(values) < 3:
        return np.nan, np.nan, np.nan
    y, place = values.astype(np.float64), np.arange(len(values), dtype=np.float64)
    if len(y) > MOST_POINTS:
        parts = np.array_split(np.arange(len(y)), MOST_POINTS)
        y, place = np.array([np.median(y[p]) for p in parts]), np.array([place[p].mean() for p in parts])
    n = len(y)
    i, j = np.triu_indices(n, 1)
    slopes = np.sort((y[j] - y[i]) / (place[j] - place[i]))
    width = Z_95 * np.sqrt(n * (n - 1) * (2 * n + 5) / 18)
    low, high = int(np.floor((len(slopes) - width) / 2)), int(np.ceil((len(slopes) + width) / 2))
    return float(np.median(slopes)), float(slopes[max(low, 0)]), float(slopes[min(high, len(slopes) - 1)])


FEWEST = 6  # values of which the least and the most enclose the median in 95 of 100 cases: 1 - 2 / 2^6 = 97 %


def median_interval(values: np.ndarray) -> tuple[int, int]:
    """The 95 % interval of the median (values that are there), by order statistics, whatever their distribution; of fewer than
    FEWEST, which have none, from the least to the most."""
    values, n = np.sort(values), len(values)
    half = Z_95 * np.sqrt(n) / 2
    return int(values[max(int(np.floor(n / 2 - half)), 0)]), int(values[min(int(np.ceil(n / 2 + half)), n - 1)])
