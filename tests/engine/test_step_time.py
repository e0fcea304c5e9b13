"""The model of a step's time, against machines on paper whose times are known."""

from types import SimpleNamespace

import numpy as np
import pytest

from engine.layers import LayerSpec
from engine.step_time import FEW, STALE, START, StepTime, size_of

FULL, SLIDING = LayerSpec("full", True, "dense", 8), LayerSpec("sliding", True, "moe", 8)
DENSE = SimpleNamespace(experts=0, top_k=0, window=0, layers=(FULL,))
SPARSE = SimpleNamespace(experts=32, top_k=4, window=100, layers=(FULL, SLIDING, SLIDING, SLIDING))


def spans(rng, most=64):
    """A step of decoding rows and a chunk."""
    decode = [(int(rng.integers(0, 3000)), 1) for _ in range(rng.integers(0, 8))]
    return [*decode, (int(rng.integers(0, 3000)), int(rng.integers(1, most - 8)))]


def ns(config, spans):
    """A jump at each size: 1 ms, 0.3 ms for each doubling; 20 µs a row, 3 ns a key, of which sliding layers see the window."""
    rows = sum(n for _, n in spans)
    share, window = (0.75, 100) if config is SPARSE else (0.0, 0)
    keys = [first + i + 1 for first, n in spans for i in range(n)]
    return (
        1e6 + 3e5 * int(np.ceil(np.log2(rows))) + 2e4 * rows + 3 * sum((1 - share) * k + share * min(k, window) for k in keys)
    )


def learnt(config, steps, rng, noise=0.0):
    model = StepTime(config)
    for _ in range(steps):
        step = spans(rng)
        model.observe(step, ns(config, step) * rng.lognormal(0, noise))
    return model


def estimate(model, step):
    return model.estimate(*model.load(step))


@pytest.mark.parametrize("config", [DENSE, SPARSE])
def test_it_learns_a_line_for_each_size(config):
    rng = np.random.default_rng(1)
    model = learnt(config, 2500, rng)
    assert model.margin == pytest.approx(1, abs=0.01)
    for _ in range(50):
        step = spans(rng)
        assert estimate(model, step) == pytest.approx(ns(config, step), rel=0.01)


def test_993_of_1000_noisy_steps_stay_within():
    rng = np.random.default_rng(2)
    model, outside = learnt(DENSE, 2000, rng, 0.05), 0
    for _ in range(2000):
        step = spans(rng)
        real = ns(DENSE, step) * rng.lognormal(0, 0.05)
        outside += real > estimate(model, step)
        assert ns(DENSE, step) < estimate(model, step) < 1.3 * ns(DENSE, step)
        model.observe(step, real)
    assert 2 <= outside <= 30  # about 14 are expected


def test_rare_outliers_change_nothing():
    """One step in 300 takes ten times as long: it neither bends the line nor widens the margin."""
    rng, model = np.random.default_rng(5), StepTime(DENSE)
    for i in range(3000):
        step = spans(rng)
        model.observe(step, ns(DENSE, step) * (10 if i % 300 == 299 else rng.lognormal(0, 0.01)))
        if i > 2000:
            assert estimate(model, step) == pytest.approx(ns(DENSE, step), rel=0.08)


def test_it_follows_a_machine_that_changes_and_does_not_forget_large_steps():
    model = StepTime(DENSE)
    for _ in range(40):
        for rows in (1, 2, 4, 16, 64):
            model.observe([(0, rows)], 1e6 + 1e5 * rows)
    for _ in range(1000):
        model.observe([(0, 1)], 1.1e6)
    assert estimate(model, [(0, 64)]) == pytest.approx(7.4e6, rel=0.01)
    for _ in range(250):
        for rows in (1, 2, 4, 16, 64):
            model.observe([(0, rows)], 2e6 + 2e5 * rows)
    assert estimate(model, [(0, 64)]) == pytest.approx(14.8e6, rel=0.01)


def test_of_sizes_that_are_not_known_it_says_what_others_leave_possible():
    model = StepTime(DENSE)
    assert model.estimate(5, 15) == 0
    for _ in range(FEW):
        model.observe([(0, 8)], 4e6)
    assert model.known(8) and model.known(5) and not model.known(9)
    assert model.estimate(12, 0) == pytest.approx(START * 4e6 * 12 / 8 * 1.5, rel=0.01)  # in proportion, half as much again
    assert model.least(12, 0) == pytest.approx(4e6, rel=0.01)
    for _ in range(FEW):
        model.observe([(0, 64)], 7e6)
    assert model.estimate(16, 0) < START * 7e6  # no more than a larger step
    line = 4e6 + (7e6 - 4e6) * 1 / 56  # to nine rows, of those from 8 to 64
    assert model.estimate(9, 0) == pytest.approx(START * line * 1.5, rel=0.05)
    model.observe([(0, 10)], 5e6)
    assert model.estimate(12, 0) == pytest.approx(START * 5e6 * 12 / 10)
    assert model.fresh(8) and not model.fresh(12)
    for _ in range(STALE):
        model.observe([(0, 40)], 7e6)
    assert model.known(8) and not model.fresh(8)


def test_sizes_are_powers_of_two():
    assert [size_of(n) for n in (1, 2, 3, 4, 5, 8, 9, 64, 65)] == [1, 2, 4, 4, 8, 8, 16, 64, 128]


def test_more_never_takes_less_within_a_size():
    """Whatever was measured: weights that would be negative are left out."""
    rng, model = np.random.default_rng(4), StepTime(SPARSE)
    for _ in range(200):
        model.observe(spans(rng), float(rng.uniform(1e5, 1e7)))
    assert 0 < estimate(model, [(10, 34)]) <= estimate(model, [(10, 60), (500, 1)])
