"""The model of a step's time, against machines on paper whose times are known."""

from types import SimpleNamespace

import numpy as np
import pytest

from engine.layers import LayerSpec
from engine.step_time import StepTime

FULL, SLIDING = LayerSpec("full", True, "dense", 8), LayerSpec("sliding", True, "moe", 8)
DENSE = SimpleNamespace(experts=0, top_k=0, window=0, layers=(FULL,))
SPARSE = SimpleNamespace(experts=32, top_k=4, window=100, layers=(FULL, SLIDING, SLIDING, SLIDING))


def spans(rng, most=64):
    """A step of decoding rows and a chunk."""
    decode = [(int(rng.integers(0, 3000)), 1) for _ in range(rng.integers(0, 8))]
    return [*decode, (int(rng.integers(0, 3000)), int(rng.integers(1, most - 8)))]


def dense_ns(spans):
    """1 ms, 20 µs a row, 3 ns a key."""
    return 1e6 + 2e4 * sum(n for _, n in spans) + 3 * sum(first + i + 1 for first, n in spans for i in range(n))


def sparse_ns(spans):
    """0.2 ms, 30 µs for each of 32 experts touched, 5 ns a key of which three layers of four see at most 100."""
    rows, keys = sum(n for _, n in spans), [first + i + 1 for first, n in spans for i in range(n)]
    touched = 32 * (1 - (28 / 32) ** rows)
    return 2e5 + 3e4 * touched + 5 * sum(0.25 * k + 0.75 * min(k, 100) for k in keys)


@pytest.mark.parametrize(("config", "ns"), [(DENSE, dense_ns), (SPARSE, sparse_ns)])
def test_exact_where_the_machine_is_as_thought(config, ns):
    rng, model = np.random.default_rng(1), StepTime(config)
    assert model.estimate([(0, 5)]) == 0
    for _ in range(100):
        step = spans(rng)
        model.observe(step, ns(step))
    for _ in range(50):
        step = spans(rng)
        assert model.estimate(step) == pytest.approx(ns(step), rel=1e-6)
    assert model.most_rows > 50


def test_99_of_100_noisy_steps_stay_within():
    rng, model, outside = np.random.default_rng(2), StepTime(DENSE), 0

    def measured(step):
        return dense_ns(step) * rng.lognormal(0, 0.05)

    for _ in range(400):
        step = spans(rng)
        model.observe(step, measured(step))
    for _ in range(500):
        step = spans(rng)
        outside += measured(step) > model.estimate(step)
        assert dense_ns(step) < model.estimate(step) < 1.3 * dense_ns(step)
    assert outside <= 20  # about 5 are expected


def test_it_follows_a_machine_that_changes_and_does_not_forget_large_steps():
    model = StepTime(DENSE)
    for _ in range(40):
        for rows in (1, 2, 4, 16, 64):
            model.observe([(0, rows)], 1e6 + 1e5 * rows)
    for _ in range(1000):
        model.observe([(0, 1)], 1.1e6)
    assert model.estimate([(0, 64)]) == pytest.approx(7.4e6, rel=0.01)
    for _ in range(40):
        for rows in (1, 2, 4, 16, 64):
            model.observe([(0, rows)], 2e6 + 2e5 * rows)
    assert model.estimate([(0, 32)]) == pytest.approx(8.4e6, rel=0.01)


def test_more_never_takes_less():
    """Whatever was measured: weights that would be negative are left out."""
    rng, model = np.random.default_rng(4), StepTime(SPARSE)
    for _ in range(60):
        model.observe(spans(rng), float(rng.uniform(1e5, 1e7)))
        small, large = [(10, 3)], [(10, 30), (500, 1)]
        assert 0 < model.estimate(small) <= model.estimate(large)
