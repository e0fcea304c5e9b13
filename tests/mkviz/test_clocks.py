"""Clock fits on synthetic clocks whose truth is known."""

import numpy as np
import pytest

from mkviz.clocks import Clocks, fit
from mkviz.errors import MkvizError

EPOCH = 1_700_000_000 * 10**9  # global ns do not fit a double: differences must be taken first


def quantised(ns, tick=32):
    return ns // tick * tick


def test_a_steady_clock_is_recovered_within_a_tick():
    rng = np.random.default_rng(1)
    ns = EPOCH + np.arange(20) * 2 * 10**9 + rng.integers(0, 10**6, 20)
    cycles = 40_000_000 + ((ns - EPOCH) * 1.755).astype(np.int64)
    f = fit(quantised(ns), cycles)
    assert len(f.rate) == 1
    assert f.rate[0] == pytest.approx(1.755, rel=1e-7)
    assert f.error <= 32
    later = EPOCH + 15 * 10**9 + 123
    assert abs(f.at(later) - (40_000_000 + (later - EPOCH) * 1.755)) <= 2 * 32 * 1.755


def test_a_step_of_the_frequency_is_followed():
    ns = EPOCH + np.arange(21) * 10**9
    cycles = np.where(ns <= ns[10], (ns - ns[0]) * 2.0, 2.0 * (ns[10] - ns[0]) + (ns - ns[10]) * 1.2).astype(np.int64)
    f = fit(ns, cycles)
    assert f.rate_at(ns[0] - 10**9) == pytest.approx(2.0)
    assert f.rate_at(ns[4] + 5) == pytest.approx(2.0)
    assert f.rate_at(ns[12] + 5) == pytest.approx(1.2)
    assert f.rate_at(ns[20] + 10**9) == pytest.approx(1.2)
    assert f.error < 1


def test_slow_drift_is_cut_into_pieces_and_the_rest_is_reported():
    ns = np.arange(40) * 2 * 10**9
    s = ns / 1e9
    cycles = (1.9e9 * s + 20 * s**2).astype(np.int64)  # 20 ppb/s: 1.9 GHz gains 40 Hz a second
    f = fit(ns, cycles, tolerance=200)
    assert len(f.rate) > 1
    assert 0 < f.error <= 200
    for i in (3, 20, 37):
        assert f.rate_at(ns[i]) == pytest.approx((1.9e9 + 40 * s[i]) / 1e9, rel=1e-6)


def test_fit_refuses_what_is_no_clock():
    with pytest.raises(MkvizError, match="1 anchors"):
        fit([5], [5])
    with pytest.raises(MkvizError, match="strictly ascending"):
        fit([5, 5], [5, 6])


def test_cpu_clock_is_exact():
    clocks = Clocks(fixed=True)
    clocks.add(0, EPOCH, EPOCH)
    cycles = np.array([[0, 1, 2**32 - 1]], np.uint32)
    assert clocks.to_ns(np.array([0]), np.array([EPOCH]), cycles).tolist() == [[0, 1, 2**32 - 1]]
    assert clocks.error_ns == 0
    assert clocks.from_host(12345) == 12345


def test_rates_are_per_sm_and_the_rest_takes_their_median():
    clocks = Clocks(5.0)
    for sm, rate in ((0, 1.0), (1, 2.0), (2, 1.5)):
        for ns in (0, 10**9, 2 * 10**9):
            clocks.add(sm, ns, int(ns * rate))
    sm = np.array([0, 1, 2, 9])
    deltas = np.full((4, 1), 3000, np.uint32)
    assert clocks.to_ns(sm, np.full(4, 10**9), deltas)[:, 0].tolist() == [3000, 1500, 2000, 2000]


def test_nominal_rate_until_anchors_come():
    clocks = Clocks(2.0)
    clocks.add(0, 10, 20)
    assert clocks.to_ns(np.array([0]), np.array([0]), np.array([[500]], np.uint32)).tolist() == [[250]]
    assert clocks.error_ns is None  # unknown, not zero


def test_order_survives_rounding():
    clocks = Clocks(1.98)
    cycles = np.sort(np.random.default_rng(2).integers(0, 5000, (1, 400)).astype(np.uint32))
    assert (np.diff(clocks.to_ns(np.array([0]), np.array([0]), cycles)) >= 0).all()


def test_backward_anchors_are_rejected_and_repeats_ignored():
    clocks = Clocks(1.0)
    for ns, cycles in ((100, 100), (100, 100), (200, 50), (50, 200), (300, 300)):
        clocks.add(0, ns, cycles)
    assert clocks.rejected == 2
    assert [(a["ns"], a["cycles"]) for a in clocks.since(0)] == [(100, 100), (300, 300)]
    assert clocks.since(1)["ns"].tolist() == [300] and len(clocks.since(2)) == 0


def test_anchors_of_every_step_are_thinned_to_what_a_fit_needs():
    clocks = Clocks(1.0)
    for step in range(20_000):  # 2 ms each: 40 s
        clocks.add(0, EPOCH + step * 2_000_000, step * 3_600_000, step)
    anchors = clocks.since(0)
    assert len(anchors) < 60
    assert np.diff(anchors["ns"])[-10:].min() >= 2 * 10**9
    assert clocks.fit_of(0).rate_at(EPOCH) == pytest.approx(1.8)


def test_tick_is_measured_from_the_anchors():
    clocks = Clocks(1.0)
    start = EPOCH // 1024 * 1024
    for k in (0, 1, 5, 9, 14, 20, 26, 34):
        clocks.add(0, start + 1024 * k, 1 + 1024 * k)
    assert clocks.tick_ns == 0 and clocks.error_ns is None  # seven intervals say little
    clocks.add(0, start + 1024 * 45, 1 + 1024 * 45)
    assert clocks.tick_ns == 1024
    assert clocks.error_ns == pytest.approx(1024)


def test_host_time_maps_to_the_trace_clock_with_drift():
    clocks = Clocks(1.0)
    for host in range(0, 10 * 10**9, 10**9):
        clocks.add_host(EPOCH + host + host // 20_000, 7 * 10**9 + host)  # the device gains 50 ppm
    host = 4 * 10**9 + 500
    assert abs(clocks.from_host(7 * 10**9 + host) - (EPOCH + host + host // 20_000)) <= 1
    lone = Clocks(1.0)
    lone.add_host(1_000, 400)
    assert lone.from_host(410) == 1_010


def test_clocks_refuse_a_rate_of_zero():
    with pytest.raises(MkvizError, match="cycles_per_ns 0"):
        Clocks(0)
