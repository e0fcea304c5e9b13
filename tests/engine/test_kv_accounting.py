"""Pages: counted exactly, shared only where content and salt are the same, never lost.  Against a simple model, at random."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from paper_engine import VOCAB, Paper, answer

from engine.kv import PagePool
from engine.prefix import extend_keys
from engine.tiling import PAGE
from mkviz.errors import MkvizError

DONE = Counter()


class Accounting(RuleBasedStateMachine):
    """Requests of three salts, whose prompts begin alike, come, run, are cancelled; pages are few."""

    @initialize(
        pages=st.integers(5, 12), batch=st.integers(1, 5), rows=st.sampled_from([8, 64]), window=st.sampled_from([0, 0, 90])
    )
    def open(self, pages, batch, rows, window):
        self.paper = Paper(pages, batch=batch, max_rows=rows, window=window)
        self.asked = {}

    @rule(
        stem=st.integers(0, 1),
        kept=st.integers(0, 200),
        more=st.integers(1, 100),
        count=st.sampled_from([1, 5, 80, 130]),
        salt=st.sampled_from("abc"),
    )
    def submit(self, stem, kept, more, count, salt):
        shared = np.random.default_rng(stem).integers(0, VOCAB, 200).tolist()[:kept]
        tokens = shared + [(kept + i) % VOCAB for i in range(more)]
        count = min(count, self.paper.pool.total * PAGE - len(tokens))
        if count >= 1:
            self.asked[self.paper.submit(tokens, count, salt)] = (tokens, count)

    @rule(which=st.integers(0, 2))
    def again(self, which):
        """The next turn of a conversation: prompt and answer of an ended request, and some more."""
        ended = [s for s in self.paper.ended if len(s.tokens) + 20 <= self.paper.pool.total * PAGE]
        if ended:
            old = ended[-1 - which % len(ended)]
            tokens = [*old.tokens, 7]
            self.asked[self.paper.submit(tokens, 5, old.salt)] = (tokens, 5)

    @rule(steps=st.integers(1, 15))
    def run(self, steps):
        for _ in range(steps):
            self.paper.step() if any(True for _ in self.paper.batcher) else None

    @rule()
    def preempt(self):
        """At any moment, as it seldom comes of itself."""
        if len(self.paper.batcher.running) > 1:
            self.paper.batcher._preempt()
            self.paper.preemptions += 1

    @rule(which=st.integers(0, 20))
    def cancel(self, which):
        alive = list(self.paper.batcher)
        if alive:
            sequence = alive[which % len(alive)]
            self.paper.end(sequence)
            del self.asked[sequence]

    @invariant()
    def counts_are_exact(self):
        DONE["operations"] += 1
        if not hasattr(self, "paper"):
            return
        pool, held = self.paper.pool, Counter()
        for sequence in self.paper.batcher:
            held.update(page for page in sequence.pages if page >= 0)
            assert sequence.state in ("prefill", "decode") or not sequence.pages
        assert pool._holders == [held[page] for page in range(pool.total)]
        assert len(set(pool._empty)) == len(pool._empty)
        assert not set(pool._empty) & set(pool._idle)
        assert set(pool._empty) | set(pool._idle) == {page for page in range(pool.total) if not held[page]}
        assert pool.free == pool.total - len(held)
        assert {key: page for page, key in pool._key.items()} == pool._page
        assert set(pool._idle) <= set(pool._key)

    @invariant()
    def shared_pages_have_one_salt(self):
        if not hasattr(self, "paper"):
            return
        salts = {}
        for sequence in self.paper.batcher.running:
            for page in sequence.pages:
                assert page < 0 or salts.setdefault(page, sequence.salt) == sequence.salt

    def teardown(self):
        if hasattr(self, "paper"):
            for sequence in list(self.paper.batcher)[8:]:
                self.paper.end(sequence)
                del self.asked[sequence]
            self.paper.run()
            DONE["preempted"] += self.paper.preemptions
            DONE["cached"] += sum(s.cached_tokens > 0 for s in self.asked)
            DONE["evicted"] += len({key for s in self.asked for key in s.keys} - self.paper.pool._page.keys())
            for sequence, (tokens, count) in self.asked.items():
                assert sequence.tokens == tokens + answer(tokens, count), "not the tokens of the request alone"
            assert self.paper.pool.free == self.paper.pool.total
            assert not any(self.paper.pool._holders)


def run(examples):
    """Run the machine; how many of each thing were done."""
    DONE.clear()
    run_state_machine_as_test(
        Accounting,
        settings=settings(
            max_examples=examples, stateful_step_count=50, deadline=None, suppress_health_check=list(HealthCheck),
            derandomize=True, print_blob=False,
        ),
    )  # fmt: skip
    return DONE


@pytest.mark.timeout(300)
def test_at_random():
    assert run(60)["operations"] >= 2000


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_ten_thousand_operations():
    done = run(250)
    assert done["operations"] >= 10_000
    assert all(done[what] >= 30 for what in ("preempted", "cached", "evicted")), done


# -- by hand


def keys_of(tokens, salt=""):
    keys = []
    extend_keys(keys, tokens, salt)
    return keys


def filled(pool, tokens, salt=""):
    """Pages of ``tokens``, full ones named, still held."""
    pages = pool.take(PagePool.pages_for(len(tokens)))
    return [pool.keep(p, k) for p, k in zip(pages, keys_of(tokens, salt), strict=False)] + pages[len(tokens) // PAGE :]


def test_keys_name_a_page_and_all_before_it():
    a, b, c = [1] * 200, [1] * 64 + [2] * 136, [3] * 64 + [1] * 136
    assert len(keys_of(a)) == 3  # the last 8 tokens fill no page
    assert keys_of(a)[:1] == keys_of(b)[:1] and keys_of(a)[1] != keys_of(b)[1]
    assert keys_of(c)[1] != keys_of(a)[1]  # the same tokens after others
    assert keys_of(a)[0] == keys_of([*a, 5])[0] != keys_of(a, "key")[0]
    assert len({k for salt in ("", "a", "b") for k in keys_of(a, salt)}) == 9
    grown = keys_of(a[:70])
    extend_keys(grown, a, "")
    assert grown == keys_of(a)


def test_the_longest_idle_page_goes_first_and_ends_before_beginnings():
    pool = PagePool(5)
    old, new = filled(pool, [1] * 128), filled(pool, [2] * 128)
    pool.give_back(old)
    pool.give_back(new)
    assert (pool.free, pool.idle) == (5, 4)
    pool.hold(pool.find(keys_of([1] * 64)))  # used again
    pool.give_back(old[:1])
    taken = pool.take(3)  # the empty one first
    assert taken[1:] == [old[1], new[1]]
    assert pool.find(keys_of([1] * 128)) == old[:1] and pool.find(keys_of([2] * 128)) == new[:1]
    assert pool.find(keys_of([1] * 128, "other")) == []
    assert pool.take(2) == [new[0], old[0]]
    assert pool.find(keys_of([1] * 128)) == []
    with pytest.raises(MkvizError, match="KV cache: 1 pages wanted, 0 of 5 free"):
        pool.take(1)


def test_the_same_content_twice_is_kept_once():
    pool = PagePool(4)
    first = filled(pool, [1] * 64)
    again = filled(pool, [1] * 64)
    assert first == again and pool.free == 3
    pool.give_back(first)
    assert pool.idle == 0  # there is a second holder
    pool.give_back(again)
    assert (pool.free, pool.idle) == (4, 1)


def test_of_a_sliding_beginning_only_the_window_is_asked_for():
    pool = PagePool(8)
    keys, pages = keys_of([1] * 512), filled(pool, [1] * 512)
    pool.give_back(pages[:4])
    pool.take(0)
    others = pool.take(4)  # evicts the first four
    assert set(others) == set(pages[:4])

    def needs(n):
        return max(0, n - 2)

    assert pool.find(keys) == []
    assert pool.find(keys, needs) == [-1] * 6 + pages[6:]
    assert pool.find(keys[:5], needs) == []  # page 3 is gone
    assert pool.find(keys[:6], needs) == [-1] * 4 + pages[4:6]
