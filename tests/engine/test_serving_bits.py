"""Same request, same bits: whoever else runs, whatever is cached, however the prompt is cut, whoever had to make room."""

import time

import numpy as np
import pytest
from serving import Watch, make_model, params, prompt, text_of, tokens_of

from engine.engine import Engine

MODELS = {
    "full and sliding": {},
    "all sliding": {"layer_types": ["sliding_attention"] * 2, "sliding_window": 70},
}


def asked():
    """(tokens, settings, salt) of ten requests: long, short, beginning alike; greedy, drawn, penalised, with logprobs."""
    stem = prompt(100, 150)
    return [
        (prompt(0, 1), {"max_tokens": 140}, "a"),
        ([*stem, 5, 6, 7], {"max_tokens": 30}, "a"),
        ([*stem, *prompt(2, 60)], {"max_tokens": 25, "temperature": 0.8, "top_p": 0.9, "seed": 3}, "b"),
        ([*stem, *prompt(2, 61)], {"max_tokens": 25, "temperature": 1.0, "seed": 3, "logprobs": 2}, "a"),
        (stem[:128], {"max_tokens": 20, "temperature": 1.0, "seed": 3, "choice": 1}, "a"),
        (prompt(5, 260), {"max_tokens": 60}, "b"),
        (prompt(6, 64), {"max_tokens": 1}, "b"),
        (prompt(7, 40), {"max_tokens": 130, "frequency_penalty": 0.7, "repetition_penalty": 1.3, "logit_bias": {77: 3.0}}, "c"),
        (prompt(8, 33), {"max_tokens": 40, "temperature": 1.2, "top_k": 40, "presence_penalty": 0.5, "seed": 8}, "c"),
        ([*stem, 5, 6, 8], {"max_tokens": 20, "logprobs": 3, "prompt_logprobs": 1}, "a"),
    ]


@pytest.fixture(scope="module", params=["full and sliding", pytest.param("all sliding", marks=pytest.mark.slow)])
def case(request, tmp_path_factory):
    """(model directory, what each request gives alone: logits by position, tokens, text, log-probabilities)."""
    directory, _ = make_model(tmp_path_factory.mktemp("model"), **MODELS[request.param])
    engine = Engine(directory, sms=1, workers=1, batch=1, prefix_cache=False)
    engine.batcher.max_rows = 2
    want = outcome(engine, Watch(engine), [submit(engine, a) for a in asked()])
    assert engine.stats().cached_tokens == 0
    engine.close()
    return directory, want


def submit(engine, request):
    tokens, settings, salt = request
    return engine.submit(tokens, params(**settings), salt=salt)


def outcome(engine, watch, sequences):
    pieces = [list(engine.stream(s)) for s in sequences]
    return [
        (watch.of(s.request), tokens_of(p), text_of(p), s.logprobs, s.prompt_logprobs)
        for s, p in zip(sequences, pieces, strict=True)
    ]


def same_as(i, mine, alone):
    """Request i gave the same tokens, text, log-probabilities, and the same bits of the same rows of logits."""
    assert mine[1:] == alone[1:], f"request {i}"
    assert mine[0].keys() == alone[0].keys(), f"request {i}"
    assert all(alone[0][position] == row for position, row in mine[0].items()), f"request {i}"


@pytest.mark.parametrize("rows", [64, 256])
def test_all_at_once(case, rows):
    directory, want = case
    engine = Engine(directory, sms=4, workers=2, rows=None if rows == 64 else rows)
    watch = Watch(engine, held=True)
    sequences = [submit(engine, a) for a in asked()]
    watch.go.set()
    for i, mine in enumerate(outcome(engine, watch, sequences)):
        same_as(i, mine, want[i])
    assert max(len({request for request, _ in plan}) for plan in watch.plans) == 8
    assert max(map(len, watch.plans)) == rows
    engine.close()


def test_from_the_cache(case):
    """Everything a second time, one after the other in another order: each finds the pages of its first time."""
    directory, want = case
    engine = Engine(directory, sms=4, workers=2, pages=64)
    watch, full = Watch(engine), set()
    for turn in range(2):
        for i in np.random.default_rng(turn).permutation(len(want)).tolist():
            sequence = submit(engine, asked()[i])
            same_as(i, outcome(engine, watch, [sequence])[0], want[i])
            if turn:  # all full pages but one that holds the last token; request 9 wants its whole prompt's logits
                assert sequence.cached_tokens == (0 if i == 9 else (sequence.prompt_tokens - 1) // 64 * 64)
            computed = sequence.tokens[:-1]
            full |= {(sequence.salt, *computed[:end]) for end in range(64, len(computed) + 1, 64)}
    assert engine.stats().pages_cached == len(full)
    engine.close()


def test_a_conversation_goes_on_from_the_pages_of_its_answer(case):
    directory, _ = case
    turns, engines = prompt(30, 50), []
    for cached in (True, False):
        engine = Engine(directory, sms=4, workers=2, prefix_cache=cached)
        tokens, watch, told = list(turns), Watch(engine), []
        for turn in range(3):
            sequence = engine.submit(tokens, params(max_tokens=70))
            told.append(outcome(engine, watch, [sequence])[0])
            computed = len(tokens) - 6 - 1 if cached and turn else 0  # all of the turn before but its last token
            assert sequence.cached_tokens == computed // 64 * 64
            tokens = [*sequence.tokens, *prompt(31 + turn, 6)]
        engines.append(told)
        engine.close()
    for (a, *mine), (b, *other) in zip(*engines, strict=True):
        assert mine == other and all(b[position] == row for position, row in a.items())


def test_preempted_at_any_moment(case):
    """Whoever arrived last has to go before a step in six, in the middle of its prompt or of its answer."""
    directory, want = case
    engine = Engine(directory, sms=4, workers=2, pages=30)
    engine.batcher.max_rows = 20
    plan, rng, states = engine.batcher.plan, np.random.default_rng(5), set()

    def harsh(now):
        gone = []
        if len(engine.batcher.running) > 1 and rng.random() < 1 / 6:
            states.add(max(engine.batcher.running, key=lambda s: s.request).state)
            gone.append(engine.batcher._preempt())
            if rng.random() < 0.5:
                engine.pool.give_back(engine.pool.take(engine.pool.free))  # nothing of it is left in the cache
        step = plan(now)
        step.preempted += gone
        return step

    engine.batcher.plan = harsh
    watch = Watch(engine, held=True)
    sequences = [submit(engine, a) for a in asked()]
    watch.go.set()
    for i, mine in enumerate(outcome(engine, watch, sequences)):
        same_as(i, mine, want[i])
    assert states == {"prefill", "decode"} and engine.stats().preemptions > 10
    engine.close()


def test_however_the_prompt_is_cut(case):
    """Requests come while others run: steps of 11 rows, and one row of prompts beside those that decode."""
    directory, want = case
    engine = Engine(directory, sms=4, workers=2, batch=5, itl_budget_ms=0.001, pages=16)
    engine.batcher.max_rows = 11
    watch, sequences = Watch(engine), []
    for a in asked():
        sequences.append(submit(engine, a))
        while engine.stats().steps < 8 * len(sequences) and not sequences[-1].ended:
            time.sleep(0.001)
    for i, mine in enumerate(outcome(engine, watch, sequences)):
        same_as(i, mine, want[i])
    chunks = {plan.count(r) for plan in ([request for request, _ in plan] for plan in watch.plans) for r in plan}
    assert {1, 11} <= chunks and len(chunks) > 2
    engine.close()


def test_seeds_reproduce_in_other_company(case):
    """A request that is drawn, beside ten others each time, gives its own tokens; another seed gives others."""
    directory, want = case
    engine = Engine(directory, sms=3, workers=2, pages=14)
    tokens, settings, salt = asked()[3]
    for company in range(3):
        others = [engine.submit(prompt(50 * company + i), params(temperature=1.0, seed=3, max_tokens=50)) for i in range(6)]
        assert tokens_of(engine.stream(submit(engine, asked()[3]))) == want[3][1]
        other = tokens_of(engine.stream(engine.submit(tokens, params(**settings | {"seed": 4 + company}), salt=salt)))
        assert other != want[3][1]
        for sequence in others:
            sequence.cancelled = True
    engine.close()
