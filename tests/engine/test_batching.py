"""Policy of the batcher, without a model: order, room, shares, the inter-token budget on a clock of its own."""

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from paper_engine import VOCAB, Paper, answer

from engine.batching import Turns, shares
from engine.budget import CREDIT


def tokens(seed, length):
    return np.random.default_rng(seed).integers(0, VOCAB, length).tolist()


def rows_of(paper, sequence):
    """[(step, rows)] of one request."""
    return [(i, n) for i, step in enumerate(paper.steps) for request, _, n in step if request == sequence.request]


# -- order


def test_salts_take_turns_and_each_is_served_by_arrival():
    paper = Paper()
    turns, order = Turns(), "aaaabbca"
    waiting = [paper.submit(tokens(i, 3), salt=salt) for i, salt in enumerate(order)]
    for sequence in waiting:
        turns.add(sequence)
    turns.remove(waiting[4])
    assert len(turns) == 7
    taken = []

    def take(count):
        for _ in range(count):
            taken.append(next(turns.heads()))
            turns.take(taken[-1])
        return [s.request for s in taken[-count:]]

    assert take(4) == [0, 5, 6, 1]
    late = paper.submit(tokens(9, 3), salt="d")
    turns.add(late)
    assert take(3) == [2, late.request, 3]
    assert list(turns.heads()) == list(turns) == [waiting[7]]
    turns.take(waiting[7])
    assert len(turns) == 0
    with pytest.raises(ValueError):
        turns.remove(late)


def test_one_key_with_many_requests_does_not_hold_up_another():
    """Of 20 requests of one key and 2 of another that come last, one at a time: the other's start second and fourth."""
    paper = Paper(batch=1)
    many = [paper.submit(tokens(i, 30), salt="many") for i in range(20)]
    few = [paper.submit(tokens(50 + i, 30), salt="few") for i in range(2)]
    paper.run()
    assert [s.request for s in paper.ended[:5]] == [many[0].request, few[0].request, *(s.request for s in many[1:2]),
                                                    few[1].request, many[2].request]  # fmt: skip


def test_a_large_request_is_not_passed_by_small_ones():
    """It needs every page.  Small ones keep coming; it starts as soon as those that ran before it have ended."""
    paper = Paper(pages=4, batch=4)
    before = [paper.submit(tokens(i, 20), 30) for i in range(2)]
    paper.step()
    large = paper.submit(tokens(7, 200), 40)
    for i in range(400):
        if i % 3 == 0 and not large.ended:
            paper.submit(tokens(100 + i, 10), 4)
        paper.step()
        if large in paper.ended:
            break
    assert [s.request for s in paper.ended] == [*(s.request for s in before), large.request]


# -- room


def test_who_arrived_last_makes_room_and_goes_on_where_it_was():
    """Three requests that grow to three pages each, in seven pages."""
    paper = Paper(pages=7, batch=3)
    asked = [(tokens(i, 60), 120) for i in range(3)]
    sequences = [paper.submit(*a) for a in asked]
    states = []
    for _ in range(500):
        paper.step()
        states.append([s.state for s in sequences])
        if len(paper.ended) == 3:
            break
    assert [s.preemptions for s in sequences] == [0, 0, 1]
    first = next(i for i, s in enumerate(states) if s[2] == "preempted")
    assert states[first - 1] == ["decode"] * 3
    again = next(rows for rows in paper.steps[first + 1 :] if any(r == 2 for r, _, _ in rows))
    assert [(r, at) for r, at, _ in again if r == 2] == [(2, 64)]  # one of its pages was still there
    for sequence, (prompt, count) in zip(sequences, asked, strict=True):
        assert sequence.tokens == prompt + answer(prompt, count)


def test_the_first_to_arrive_is_never_preempted():
    paper = Paper(pages=5, batch=4)
    asked = [(tokens(i, 40 + 10 * i), 200 - 10 * i) for i in range(4)]
    sequences = [paper.submit(*a) for a in asked]
    paper.run()
    assert sequences[0].preemptions == 0 and sum(s.preemptions for s in sequences) > 0
    assert [s.tokens for s in sequences] == [prompt + answer(prompt, count) for prompt, count in asked]


def test_requests_start_when_what_they_have_now_fits_not_what_they_may_come_to_hold():
    paper = Paper(pages=8, batch=3)
    for i in range(3):
        paper.submit(tokens(i, 30), 400)  # seven pages in the end
    paper.step()
    assert len(paper.batcher.running) == 3


def test_a_conversation_goes_on_from_its_own_answer():
    paper = Paper()
    first = paper.submit(tokens(1, 100), 60)
    paper.run()
    turn = [*first.tokens, *tokens(2, 10)]
    other = paper.submit(turn, 3, salt="other")
    second = paper.submit(turn, 3)
    paper.run()
    assert (first.cached_tokens, second.cached_tokens, other.cached_tokens) == (0, 128, 0)  # 159 tokens were computed
    assert second.tokens == other.tokens == turn + answer(turn, 3)
    whole = []
    for _ in range(2):
        whole.append(paper.submit(tokens(2, 128), 1))
        for _ in range(10):
            paper.step()
    assert [s.cached_tokens for s in whole] == [0, 64]  # the last token is computed anyway: its logits are wanted
    assert all(s.tokens[128:] == answer(tokens(2, 128), 1) for s in whole)
    off = Paper(prefix_cache=False)
    twice = [off.submit(tokens(1, 100), 2) for _ in range(2)]
    off.run()
    assert [s.cached_tokens for s in twice] == [0, 0] and off.pool.idle == 0


def test_answers_to_one_prompt_read_it_once():
    """Four at once, and one of another salt that begins alike: the three others wait for the pages, the stranger does not."""
    paper = Paper(pages=40, batch=8)
    asked = [tokens(1, 300)] * 4
    sequences = [paper.submit(t, 10) for t in asked]
    stranger = paper.submit(tokens(1, 300), 10, salt="other")
    shorter = paper.submit(tokens(1, 60), 10)  # it could share no page, but comes after those of its salt
    paper.run()
    assert [s.cached_tokens for s in sequences] == [0, 256, 256, 256]
    assert stranger.cached_tokens == shorter.cached_tokens == 0
    assert rows_of(paper, stranger)[0][0] == 0
    assert all(s.tokens == t + answer(t, 10) for s, t in zip(sequences, asked, strict=True))
    computed = sum(n for _, _, n in (row for step in paper.steps for row in step) if n)
    assert computed == 300 + 3 * 44 + 300 + 60 + 6 * 9


def test_pages_behind_the_window_are_given_back():
    """Every layer slides over 100 keys: a row needs the pages of the two splits (of 256 keys) that its window touches."""
    paper = Paper(pages=9, batch=1, window=100)
    sequence = paper.submit(tokens(1, 40), 500)
    most = 0
    while not sequence.ended:
        paper.step()
        most = max(most, sum(p >= 0 for p in sequence.pages))
    assert most == 6  # at 355 tokens: pages 0 to 5, as the window begins at 256 then
    assert sequence.tokens == tokens(1, 40) + answer(tokens(1, 40), 500)


# -- rows


@given(st.lists(st.integers(0, 30), max_size=8), st.integers(0, 64))
def test_shares(wanted, total):
    given_ = shares(wanted, total)
    assert sum(given_) == min(total, sum(wanted))
    assert all(0 <= g <= w for g, w in zip(given_, wanted, strict=True))
    satisfied = [g == w for g, w in zip(given_, wanted, strict=True)]
    least = min((g for g, s in zip(given_, satisfied, strict=True) if not s), default=64)
    assert max(given_, default=0) <= least + 1


def test_a_short_prompt_does_not_wait_for_a_long_one():
    paper = Paper(pages=40)
    long = paper.submit(tokens(1, 2000), 1)
    for _ in range(3):
        paper.step()
    short = paper.submit(tokens(2, 50), 1)
    paper.run()
    assert rows_of(paper, short) == [(3, 32), (4, 18)]
    assert [n for _, n in rows_of(paper, long)][:6] == [64, 64, 64, 32, 46, 64]


def test_without_a_budget_a_step_is_as_full_as_it_gets():
    paper = Paper(pages=20)
    decode = paper.submit(tokens(1, 5), 60)
    paper.step()
    paper.submit(tokens(2, 500), 1)
    paper.run()
    assert [sum(n for _, _, n in step) for step in paper.steps[1:9]] == [64] * 7 + [1 + 500 - 7 * 63]
    assert [step for step, _ in rows_of(paper, decode)] == list(range(60))  # a row in every step


def test_a_step_tells_what_its_longest_sequence_will_come_to():
    paper = Paper(pages=20)
    paper.submit(tokens(1, 5), 60)
    paper.step()
    assert paper.batcher.plan(paper.now).for_backend().keys == 6  # it decodes: as long as it is
    paper.submit(tokens(2, 500), 1)
    paper.batcher.admit()
    plan = paper.batcher.plan(paper.now).for_backend()
    assert len(plan) == 64 and plan.keys == 500


# -- the inter-token budget


def step_ns(spans):
    """A machine on paper: 2 ms, 0.5 ms a row, 1 µs a key."""
    rows = sum(n for _, n in spans)
    return 2e6 + 0.5e6 * rows + 1e3 * sum(n * first + n * (n + 1) // 2 for first, n in spans)


def decode_while_prompts_come(budget_ms, batch=4, decoding=2, prompt=600, max_rows=64, step_ns=step_ns, **options):
    """(gaps in ms between the tokens of requests that decode, ms to the first token of the prompt, paper)."""
    budget = budget_ms and budget_ms * 1e6
    paper = Paper(pages=80, batch=batch, max_rows=max_rows, step_ns=step_ns, budget_ns=budget, **options)
    for i in range(4):  # it has seen steps before
        paper.submit(tokens(90 + i, 300), 4)
        paper.run()
    streams = [paper.submit(tokens(i, 10), 2000) for i in range(decoding)]
    times = {s: [] for s in streams}
    while any(s.state != "decode" for s in streams):
        paper.step()
    late, began = paper.submit(tokens(50, prompt), 1), paper.now
    while not late.ended:
        paper.step()
        for s in streams:
            if not times[s] or s.last_token != times[s][-1]:
                times[s].append(s.last_token)
    gaps = [(b - a) / 1e6 for t in times.values() for a, b in pairwise(t)]
    return gaps, (paper.now - began) / 1e6, paper


@pytest.mark.parametrize("budget", [8, 25])
def test_tokens_come_within_the_budget_while_a_prompt_is_read(budget):
    gaps, _, _ = decode_while_prompts_come(budget)
    assert sum(g > budget for g in gaps) <= 2 * CREDIT  # two decode: the steps to learn from
    assert np.mean(gaps) > 0.7 * budget  # and the prompt gets what is left of it


def test_with_decoding_paused_nobody_gets_a_token_while_a_prompt_is_read():
    gaps, first, _ = decode_while_prompts_come(None, pause_decode=True)
    assert gaps == []
    assert first < decode_while_prompts_come(None)[1]


def test_a_budget_that_nothing_fits_still_lets_the_prompt_on():
    gaps, _, paper = decode_while_prompts_come(1, prompt=60)
    late = max(r for step in paper.steps for r, _, _ in step)
    assert [n for step in paper.steps for r, _, n in step if r == late] == [2] * 30  # two decode: steps of four rows
    assert min(gaps) > 1


def test_where_decoding_rows_fill_the_step_prompts_get_steps_of_their_own():
    """Seven of eight rows decode: a row a step is left, and two steps of eight go between two tokens, as the budget allows."""

    def even(spans):
        return 10e6  # a step takes 10 ms whatever is in it

    gaps, first, paper = decode_while_prompts_come(35, batch=8, decoding=7, prompt=200, max_rows=8, step_ns=even)
    assert max(gaps) <= 35
    alone = [step for step in paper.steps if len(step) == 1 and step[0][2] == 8]
    assert len(alone) > 10
    slow_gaps, slow, _ = decode_while_prompts_come(15, batch=8, decoding=7, prompt=200, max_rows=8, step_ns=even)
    assert max(slow_gaps) <= 15  # no time between
    assert first < slow / 4


def test_every_request_ends_whatever_comes():
    rng = np.random.default_rng(3)
    paper = Paper(pages=7, batch=3, max_rows=16, budget_ns=10e6, step_ns=step_ns)
    asked = {}
    for _ in range(60):
        prompt = tokens(int(rng.integers(0, 5)), int(rng.integers(1, 300)))
        count = int(rng.integers(1, 148))
        asked[paper.submit(prompt, count, str(rng.integers(0, 3)))] = prompt + answer(prompt, count)
        for _ in range(int(rng.integers(0, 12))):
            paper.step()
    paper.run()
    assert Counter(s.request for s in paper.ended) == Counter(range(60))
    assert all(s.tokens == want for s, want in asked.items())
    assert sum(s.preemptions for s in asked) > 5
