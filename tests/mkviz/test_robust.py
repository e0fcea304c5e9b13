"""Robust statistics, worked by hand."""

import numpy as np
import pytest

from mkviz.robust import drift, median_interval, z_scores


def test_z_scores_by_the_median_absolute_deviation():
    # median 11.5, deviations 1.5 1.5 0.5 0.5 1.5 18.5, their median 1.5
    z = z_scores(np.array([10, 10, 11, 12, 13, 30]))
    assert z == pytest.approx(np.array([-1.5, -1.5, -0.5, 0.5, 1.5, 18.5]) / (1.4826 * 1.5))


def test_z_scores_where_most_values_are_the_same():
    assert z_scores(np.array([5, 5, 5, 5, 15])) == pytest.approx(np.array([0, 0, 0, 0, 10]) / (1.2533 * 2))
    assert z_scores(np.array([7, 7, 7])).tolist() == [0, 0, 0]


def test_drift_is_the_median_of_all_slopes():
    # of 10 pairs: -26, 1 six times, 10, 14.5, 28; the interval goes from (10 - 1.96 * sqrt(5*4*15/18)) / 2 = 0.9996 to 9.0004
    assert drift(np.array([0, 1, 2, 30, 4])) == (1, -26, 28)
    slope, low, high = drift(np.arange(40) * 3)
    assert (slope, low, high) == (3, 3, 3)
    assert all(np.isnan(drift(np.array([1, 2]))))


def test_drift_of_thousands_of_values_by_medians_of_neighbours():
    rng = np.random.default_rng(1)
    noise = rng.normal(0, 100, 20_000)
    slope, low, high = drift(0.01 * np.arange(20_000) + noise)
    assert low < 0.01 < high and low > 0 and slope == pytest.approx(0.01, abs=0.002)
    _, low, high = drift(noise)
    assert low < 0 < high


def test_the_interval_of_a_median_by_order_statistics():
    # of 100 values the 41st to the 61st: 50 -+ 1.96 * 5
    assert median_interval(np.arange(100)[::-1]) == (40, 60)
    assert median_interval(np.array([7, 5])) == (5, 7) and median_interval(np.array([3])) == (3, 3)
