"""What a request may ask of sampling; stop strings against a plain search."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from engine.sampling import SamplingParams, StopMatcher
from mkviz.errors import MkvizError


@pytest.mark.parametrize(("settings_", "says"), [
    ({"max_tokens": 0}, "max_tokens: 0; at least 1"),
    ({"temperature": float("nan")}, "temperature: nan; 0 .greedy. or a positive number"),
    ({"temperature": float("inf")}, "temperature: inf"),
    ({"top_k": -1}, "top_k: -1"),
    ({"top_p": 1.5}, "top_p: 1.5; above 0, at most 1"),
    ({"min_p": 1.01}, "min_p: 1.01; 0 .all. to 1"),
    ({"choice": -1}, "choice: -1; 0 to"),
    ({"logprobs": 21}, "logprobs: 21; None, or 0 to 20"),
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


@pytest.mark.timeout(60)  # far from it: one piece took seconds when every beginning of a stop string was tried
def test_stop_strings_as_long_as_a_request_cost_nothing():
    matcher = StopMatcher(tuple("x" * 200_000 + end for end in "abcdefghijklmnop"))
    assert "".join(matcher.push("xyz")[0] for _ in range(200)) + matcher.flush() == "xyz" * 200
    assert [matcher.push("x" * 100_000) for _ in range(2)] == [("", False)] * 2 and matcher.push("p..") == ("", True)
