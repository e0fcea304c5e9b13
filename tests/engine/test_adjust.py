"""Penalties, biases and masks: against transformers' processors, and by hand."""

import numpy as np
import pytest
import torch
from transformers import RepetitionPenaltyLogitsProcessor

from engine.adjust import adjust, forbid
from engine.sampling import SamplingParams
from mkviz.errors import MkvizError


@pytest.mark.parametrize("penalty", [1.3, 0.7])
def test_repetition_penalty_is_transformers_to_the_bit(penalty):
    rng = np.random.default_rng(1)
    logits, prompt, generated = rng.normal(0, 5, 300).astype(np.float32), rng.integers(0, 300, 40), rng.integers(0, 300, 20)
    ids = torch.tensor(np.concatenate([prompt, generated]))[None]
    want = RepetitionPenaltyLogitsProcessor(penalty)(ids, torch.tensor(logits)[None])[0].numpy()
    got = adjust(logits, SamplingParams(repetition_penalty=penalty), prompt.tolist(), generated.tolist())
    assert np.array_equal(got.view(np.uint32), want.view(np.uint32))
    assert not np.array_equal(got, logits)


def test_counts_are_those_of_the_answer():
    """mu[j] - c[j] · frequency - (c[j] > 0) · presence, c counting what was sampled: the prompt does not count."""
    logits = np.array([1, 2, 3, 4, -5], np.float32)
    got = adjust(logits, SamplingParams(frequency_penalty=0.5, presence_penalty=0.25), [0, 0, 4], [1, 3, 3, 3])
    assert got.tolist() == [1, 2 - 0.75, 3, 4 - 1.75, -5]
    got = adjust(logits, SamplingParams(frequency_penalty=-1.0), [], [4, 4])
    assert got.tolist() == [1, 2, 3, 4, -3]
    assert adjust(logits, SamplingParams(presence_penalty=2.0), [0, 1, 2], []).tolist() == logits.tolist()
    assert logits.tolist() == [1, 2, 3, 4, -5]


def test_biases_are_added_last():
    logits = np.array([2, -2, 0], np.float32)
    params = SamplingParams(repetition_penalty=2.0, presence_penalty=1.0, logit_bias={0: 100, 1: -100, 2: 0.5})
    assert adjust(logits, params, [0, 1], [0]).tolist() == [2 / 2 - 1 + 100, -2 * 2 - 100, 0.5]


def test_masks():
    logits = np.arange(6, dtype=np.float32)
    none = -np.inf
    assert forbid(logits, np.array([1, 0, 1, 0, 0, 1], bool), ()).tolist() == [0, none, 2, none, none, 5]
    assert forbid(logits, np.array([1, 0, 1], bool), ()).tolist() == [0, none, 2, none, none, none]
    assert forbid(logits, np.ones(9, bool), ()).tolist() == logits.tolist()  # a tokenizer may have more than the model
    assert forbid(logits, None, (5, 0)).tolist() == [none, 1, 2, 3, 4, none]
    assert forbid(logits, np.array([1, 0, 0, 0, 0, 1], bool), (5,)).tolist() == [0, none, none, none, none, none]
    assert forbid(logits, np.array([0, 0, 0, 0, 0, 1], bool), (5,)).tolist()[5] == 5  # nothing else is allowed
    for mask in (np.zeros(6, bool), np.zeros(0, bool)):
        with pytest.raises(MkvizError, match="constraint: no token may come next"):
            forbid(logits, mask, ())


@pytest.mark.parametrize(("settings", "says"), [
    ({"presence_penalty": 2.1}, "presence_penalty: 2.1; -2 to 2"),
    ({"frequency_penalty": float("nan")}, "frequency_penalty: nan"),
    ({"repetition_penalty": 0}, "repetition_penalty: 0; 0.01 to 100"),
    ({"logit_bias": {5: 101}}, "logit_bias: {5: 101}; -100 to 100"),
    ({"min_tokens": 9, "max_tokens": 8}, "min_tokens: 9; 0 to max_tokens, 8"),
    ({"prompt_logprobs": 21}, "prompt_logprobs: 21"),
])  # fmt: skip
def test_bad_values(settings, says):
    with pytest.raises(MkvizError, match=says):
        SamplingParams(**settings)
