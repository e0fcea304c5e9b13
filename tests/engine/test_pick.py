"""The pick rule: its arithmetic against vectors and exact numbers, its sets and probabilities against transformers' logits
processors, its draws against chance."""

from math import ceil

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import njit
from transformers.generation.logits_process import (
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from engine.cpu import math
from engine.pick import ONE, draw, exp, kept, logprobs, pick, weigh
from engine.sampling import SamplingParams
from mkviz.errors import MkvizError


def theirs(logits, temperature, top_k, top_p, min_p) -> np.ndarray:
    """f64[vocab]: the probabilities that transformers samples from."""
    scores = torch.from_numpy(logits.astype(np.float64))[None]
    warpers = [TemperatureLogitsWarper(temperature)]
    warpers += [TopKLogitsWarper(top_k)] if top_k else []
    warpers += [TopPLogitsWarper(top_p)] if top_p < 1 else []
    warpers += [MinPLogitsWarper(min_p)] if min_p else []
    for warper in warpers:
        scores = warper(None, scores)
    return torch.softmax(scores, -1)[0].numpy()


def by_the_letter(logits, params, u) -> int:
    """The rule as it is written, token by token in whole numbers, from weights that are taken as given."""
    ids, weights = (a.tolist() for a in weigh(logits, params.temperature))
    order = sorted(zip(ids, weights, strict=True), key=lambda t: (-logits[t[0]], t[0]))
    order = order[: params.top_k or len(order)]
    if params.top_p < 1:
        need, mass = ceil(params.top_p * sum(w for _, w in order)), 0
        for n, (_, w) in enumerate(order, 1):
            mass += w
            if mass >= need:
                order = order[:n]
                break
    order = [(i, w) for i, w in order if w >= ceil(params.min_p * ONE)]
    r, mass = u * sum(w for _, w in order) // 2**64, 0
    for i, w in sorted(order):
        mass += w
        if mass > r:
            return i
    raise AssertionError("nothing picked")


def philox_words(counter, key) -> list[int]:
    """Philox4x32-10 on arrays of u64, as the paper draws it: the S-box on pairs, the permutation, the bumped key."""
    c, k = np.array(counter, np.uint64), np.array(key, np.uint64)
    mask, multiply = np.uint64(0xFFFFFFFF), np.array([0xD2511F53, 0xCD9E8D57], np.uint64)
    bump = np.array([0x9E3779B9, 0xBB67AE85], np.uint64)
    for i in range(10):
        product = multiply * c[[0, 2]]
        high, low = (product >> np.uint64(32))[::-1], (product & mask)[::-1]
        mixed = high ^ c[[1, 3]] ^ ((k + np.uint64(i) * bump) & mask)
        c = np.array([mixed[0], low[0], mixed[1], low[1]])
    return c.tolist()


def test_philox_of_the_reference_is_the_published_one():
    """Known answers of Random123's kat_vectors, philox4x32 10."""
    pi = [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344], [0xA4093822, 0x299F31D0]
    assert philox_words([0] * 4, [0] * 2) == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    assert philox_words([2**32 - 1] * 4, [2**32 - 1] * 2) == [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]
    assert philox_words(*pi) == [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1]


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1))
def test_draw_is_philox(seed, position, choice):
    low, high, *_ = philox_words([position, choice, 0, 0], [seed % 2**32, seed >> 32])
    assert draw(seed, position, choice) == high << 32 | low


def test_exp_has_the_bits_of_the_interpreters():
    x = -np.linspace(0, 87, 100_001, dtype=np.float32)

    @njit
    def all_of(x):
        out = np.empty_like(x)
        for i in range(len(x)):
            out[i] = math.exp(x[i])
        return out

    assert np.array_equal(exp(x).view(np.uint32), all_of(x).view(np.uint32))
    exact = np.exp(x.astype(np.float64))
    assert np.abs(exp(x) / exact - 1).max() < 2e-7


def test_weights_by_hand():
    """exp(-ln 2) is a half; 2^-40 is the least; equal logits weigh the same; minus infinity nothing."""
    ln2 = np.float32(np.log(2))
    logits = np.array([3, 3 - ln2, -np.inf, 3, 3 - 41 * ln2, 3 - 39 * ln2], np.float32)
    ids, weights = weigh(logits, 1.0)
    assert ids.tolist() == [0, 1, 3, 5]
    assert weights.tolist()[::2] == [ONE, ONE]
    assert abs(int(weights[1]) - ONE // 2) <= ONE >> 23
    assert weights[3] in (1, 2)
    assert weigh(logits, 2.0)[0].tolist() == [0, 1, 3, 4, 5]


@pytest.mark.parametrize("temperature", [0.1, 0.7, 1.0, 3.0])
@pytest.mark.parametrize("top_k", [0, 1, 5, 400])
@pytest.mark.parametrize(("top_p", "min_p"), [(1.0, 0.0), (0.95, 0.0), (0.5, 0.2), (0.01, 0.0), (1.0, 0.05), (0.9, 0.01)])
def test_distributions_are_those_of_transformers(temperature, top_k, top_p, min_p):
    for seed in range(5):
        logits = np.random.default_rng(seed).normal(0, 4, 300).astype(np.float32)
        params = SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
        ids, weights = kept(logits, params)
        want, have = theirs(logits, temperature, top_k, top_p, min_p), np.zeros(300)
        have[ids] = weights / weights.sum()
        assert np.array_equal(np.flatnonzero(have), np.flatnonzero(want > want.max() * 2.0**-40))
        np.testing.assert_allclose(have, want, rtol=2e-6, atol=2.0**-40)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_pick_by_the_letter(data):
    """Ties, infinities and every filter at once, against the rule written out token by token."""
    numbers = st.sampled_from([0.0, 1.0, 1.5, 2.0, 5.0, -3.0, -40.0, -np.inf]) | st.floats(-20, 20, width=32)
    logits = np.array([*data.draw(st.lists(numbers, max_size=40)), data.draw(st.floats(-5, 5, width=32))], np.float32)
    params = SamplingParams(
        temperature=data.draw(st.sampled_from([1e-40, 0.3, 1.0, 7.0, 1e300])), top_k=data.draw(st.integers(0, 12)),
        top_p=data.draw(st.sampled_from([1e-12, 0.25, 0.5, 0.75, 0.9, 1 - 1e-16, 1.0])),
        min_p=data.draw(st.sampled_from([0.0, 1e-9, 0.25, 0.5, 1.0])), seed=data.draw(st.integers(0, 99)),
    )  # fmt: skip
    for position in range(5):
        assert pick(logits, params, position) == by_the_letter(logits, params, draw(params.seed, position, 0))


def test_ties_by_hand():
    """Four tokens of weight 1/4: top_p 0.5 is reached by two of them exactly, just above it needs a third."""
    logits = np.array([7, -9e9, 7, 7, 7], np.float32)
    one = {"temperature": 0.6, "seed": 4}
    assert kept(logits, SamplingParams(**one, top_p=0.5))[0].tolist() == [0, 2]
    assert kept(logits, SamplingParams(**one, top_p=0.5 + 2**-40))[0].tolist() == [0, 2, 3]
    assert kept(logits, SamplingParams(**one, top_k=3))[0].tolist() == [0, 2, 3]
    assert kept(logits, SamplingParams(**one, min_p=1.0))[0].tolist() == [0, 2, 3, 4]
    assert pick(np.array([1, 5, 5, -2], np.float32), SamplingParams(), 3) == 1


def test_top_p_counts_sums_that_f64_does_not_hold():
    """W = 2^54 + 8.  1 - 2^-53 of it is 2^54 + 6 less a little, 2^54 + 4 in f64 (whose neighbours there are 4 apart): all 2^14
    tokens of weight 2^40 stay, and four of weight 1, since a third makes 2^54 + 3, which f64 would round up."""
    logits = np.concatenate([np.zeros(1 << 14), np.full(8, -27.32)]).astype(np.float32)
    _, weights = kept(logits, SamplingParams(temperature=1.0, top_p=1 - 2**-53))
    assert weights.tolist() == [1 << 40] * (1 << 14) + [1] * 4


@pytest.mark.parametrize(("u", "token"), [(0, 1), (2**63 - 1, 1), (2**63, 3), (2**64 - 1, 3)])
def test_the_ends_of_a_tokens_share(monkeypatch, u, token):
    """Two tokens of one weight share the 2^64 numbers by halves, to the number."""
    monkeypatch.setattr("engine.pick.draw", lambda seed, position, choice: u)
    assert pick(np.array([-99, 4, -99, 4], np.float32), SamplingParams(temperature=1.0), 0) == token


FORMS = [
    {"temperature": 1.0}, {"temperature": 0.5, "top_p": 0.9}, {"temperature": 2.0, "top_k": 7},
    {"temperature": 1.3, "top_k": 20, "top_p": 0.8}, {"temperature": 1.0, "min_p": 0.1},
]  # fmt: skip
LOGITS = np.random.default_rng(11).normal(0, 1.5, 40).astype(np.float32)


def chi_square(counts, want) -> None:
    """Pearson's statistic may lie 5 standard deviations above its mean: about one test in a million would."""
    expected = counts.sum() * want[want > 0]
    assert not counts[want == 0].any()
    chi2, freedom = ((counts[want > 0] - expected) ** 2 / expected).sum(), len(expected) - 1
    assert chi2 < freedom + 5 * np.sqrt(2 * freedom)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("over", ["position", "seed", "choice"])
def test_frequencies(form, over):
    """4,000 draws that differ in one of the three alone."""
    filters = {"top_k": 0, "top_p": 1.0, "min_p": 0.0} | form
    if over == "position":
        params = SamplingParams(**form, seed=123)
        picks = [pick(LOGITS, params, i) for i in range(4_000)]
    else:
        picks = [pick(LOGITS, SamplingParams(**form, **{over: i}), 77) for i in range(4_000)]
    chi_square(np.bincount(picks, minlength=40), theirs(LOGITS, **filters))


@pytest.mark.parametrize(("position", "choice", "seed"), [(1, 0, 0), (0, 1, 0), (0, 0, 1), (0, 0, 1 << 32)])
def test_neighbours_are_independent(position, choice, seed):
    """Pairs of picks from eight equal tokens, one apart in position, choice or either half of the seed: all 64 as often."""
    logits, pairs = np.zeros(8, np.float32), np.zeros(64, int)
    for i in range(0, 12_800, 2):
        a = pick(logits, SamplingParams(temperature=1.0, seed=5, choice=3), i)
        pairs[8 * a + pick(logits, SamplingParams(temperature=1.0, seed=5 + seed, choice=3 + choice), i + position)] += 1
    chi_square(pairs, np.full(64, 1 / 64))


def test_nothing_else_decides():
    params = SamplingParams(temperature=1.0, seed=2**64 - 1, choice=9)
    picks = [pick(LOGITS, params, i) for i in range(50)]
    again = SamplingParams(max_tokens=1, temperature=1.0, seed=2**64 - 1, choice=9, stop=("x",), logprobs=3)
    assert picks == [pick(LOGITS, again, i) for i in range(50)]
    assert len({*picks}) > 5


@pytest.mark.parametrize("vocab", [5, 300, 50_000])
def test_logprobs_are_those_of_log_softmax(vocab):
    logits = np.random.default_rng(vocab).normal(0, 5, vocab).astype(np.float32)
    want = torch.log_softmax(torch.from_numpy(logits.astype(np.float64)), 0).numpy()
    told = logprobs(logits, 3, 4)
    assert abs(told.chosen - want[3]) < 4e-7
    assert [i for i, _ in told.top] == np.argsort(-want)[:4].tolist()
    assert all(abs(value - want[i]) < 4e-7 for i, value in told.top)
    assert logprobs(np.zeros(4, np.float32), 2, 2).top == ((0, -np.log(4)), (1, -np.log(4)))
    assert logprobs(logits, 3, 0).top == ()


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_logits_without_a_largest(bad):
    with pytest.raises(MkvizError, match=r"logits: the largest is (nan|inf); finite logits"):
        pick(np.array([0, bad, 1], np.float32), SamplingParams(temperature=1.0), 0)
    with pytest.raises(MkvizError, match=r"logits: the largest is -inf"):
        pick(np.full(3, -np.inf, np.float32), SamplingParams(temperature=1.0), 0)
