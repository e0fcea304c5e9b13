"""Sampling against transformers' logits processors and against chance; stop strings against a plain search."""

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from transformers.generation.logits_process import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from engine.sampling import SamplingParams, StopMatcher, distribution, sample
from mkviz.errors import MkvizError


def theirs(logits, temperature, top_k, top_p) -> np.ndarray:
    """f64[vocab]: the probabilities that transformers samples from."""
    scores = torch.from_numpy(logits.astype(np.float64))[None]
    warpers = [TemperatureLogitsWarper(temperature)]
    warpers += [TopKLogitsWarper(top_k)] if top_k else []
    warpers += [TopPLogitsWarper(top_p)] if top_p < 1 else []
    for warper in warpers:
        scores = warper(None, scores)
    return torch.softmax(scores, -1)[0].numpy()


@pytest.mark.parametrize("temperature", [0.1, 0.7, 1.0, 3.0])
@pytest.mark.parametrize("top_k", [0, 1, 5, 400])
@pytest.mark.parametrize("top_p", [1.0, 0.95, 0.5, 0.01])
def test_distributions_are_those_of_transformers(temperature, top_k, top_p):
    for seed in range(5):
        logits = np.random.default_rng(seed).normal(0, 4, 300).astype(np.float32)
        tokens, probs = distribution(logits, SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p))
        want = theirs(logits, temperature, top_k, top_p)
        assert np.array_equal(np.sort(tokens), np.flatnonzero(want))
        np.testing.assert_allclose(probs, want[tokens], rtol=1e-9)
        assert np.all(np.diff(probs) <= 0)


def test_equal_logits_go_by_id():
    logits = np.array([0, 2, 2, 1, 2], np.float32)
    tokens, probs = distribution(logits, SamplingParams(temperature=1.0, top_k=2))
    assert tokens.tolist() == [1, 2]
    assert probs.tolist() == [0.5, 0.5]
    assert sample(logits, SamplingParams(), 0) == 1


@pytest.mark.parametrize(("temperature", "top_k", "top_p"), [(1.0, 0, 1.0), (0.5, 0, 0.9), (2.0, 7, 1.0), (1.3, 20, 0.8)])
def test_frequencies(temperature, top_k, top_p):
    """Pearson's chi-square over 20,000 draws: 5 standard deviations above its mean would be one test in a million."""
    logits = np.random.default_rng(11).normal(0, 1.5, 40).astype(np.float32)
    params = SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p, seed=123)
    draws, want = 20_000, theirs(logits, temperature, top_k, top_p)
    counts = np.bincount([sample(logits, params, i) for i in range(draws)], minlength=40)
    assert not counts[want == 0].any()
    expected = draws * want[want > 0]
    chi2, freedom = ((counts[want > 0] - expected) ** 2 / expected).sum(), len(expected) - 1
    assert chi2 < freedom + 5 * np.sqrt(2 * freedom)


def test_seed_and_index_alone_decide():
    logits = np.zeros(1000, np.float32)
    draw = [[sample(logits, SamplingParams(temperature=1.0, seed=s), i) for i in range(50)] for s in (1, 2, 1, 2**64 - 1)]
    assert draw[0] == draw[2]
    assert len({tuple(d) for d in draw}) == 3
    assert len(set(draw[0])) > 40
    assert draw[0][7] == sample(logits, SamplingParams(temperature=1.0, seed=1, max_tokens=9, stop=("x",)), 7)


def test_greedy_is_the_first_largest():
    logits = np.array([1, 5, 5, -2], np.float32)
    assert sample(logits, SamplingParams(temperature=0), 3) == 1
    assert sample(logits, SamplingParams(temperature=1e-300), 3) in (1, 2)


def test_top_p_always_keeps_a_token():
    logits = np.array([10, 0, 0], np.float32)
    for top_p in (1e-12, 0.5, 1 - 1e-16):
        assert sample(logits, SamplingParams(temperature=1.0, top_p=top_p), 0) == 0


@pytest.mark.parametrize(("settings_", "says"), [
    ({"max_tokens": 0}, "max_tokens: 0; at least 1"),
    ({"temperature": float("nan")}, "temperature: nan; 0 .greedy. or a positive number"),
    ({"temperature": float("inf")}, "temperature: inf"),
    ({"top_k": -1}, "top_k: -1"),
    ({"top_p": 1.5}, "top_p: 1.5; above 0, at most 1"),
    ({"seed": 1 << 64}, r"seed: \d+; 0 to 2\^64 - 1"),
    ({"stop": ("",)}, "stop: .*no empty strings"),
])  # fmt: skip
def test_bad_parameters_are_named(settings_, says):
    with pytest.raises(MkvizError, match=says):
        SamplingParams(**settings_)


# -- stop strings


def plain(pieces, stop):
    """(text, number of the piece that stops or None): the text so far is searched as a whole after every piece."""
    text = ""
    for n, piece in enumerate(pieces):
        text += piece
        found = [text.find(s) for s in stop if s in text]
        if found:
            return text[: min(found)], n
    return text, None


WORDS = st.text("ab", max_size=4)


@settings(max_examples=500, deadline=None)
@given(st.lists(WORDS, max_size=12), st.lists(st.text("ab", min_size=1, max_size=4), max_size=3))
@example(["a", "a", "b"], ["aab"])
@example(["aba", "b", "ab"], ["abab", "baba"])
@example(["a", "ab"], ["aaa", "ab"])
def test_stop_matcher_against_a_plain_search(pieces, stop):
    want, stopped_at = plain(pieces, stop)
    matcher, out = StopMatcher(tuple(stop)), ""
    for n, piece in enumerate(pieces):
        text, stopped = matcher.push(piece)
        out += text
        assert want.startswith(out)  # nothing goes out that has to be taken back
        assert stopped == (n == stopped_at)
        if stopped:
            break
        seen = "".join(pieces[: n + 1])
        held = len(seen) - len(out)
        # only the beginning of a stop string is held back, and the longest that it can be
        assert held == max((k for s in stop for k in range(len(s)) if seen.endswith(s[:k])), default=0)
    else:
        out += matcher.flush()
    assert out == want
