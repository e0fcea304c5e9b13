"""Rows drawn in the kernel, from vocabularies of full size: the tokens of engine/pick.py, or left to the host."""

import numpy as np
import pytest
from cases import CASES
from checkpoints import make_checkpoint
from stepping import open_cuda

from engine.cuda.abi import BUCKETS
from engine.pick import logprobs, pick
from engine.plan import StepPlan
from engine.sampling import SamplingParams

pytestmark = pytest.mark.gpu

VOCAB = 262_144
KINDS = [{}, {"top_k": 40}, {"top_p": 0.95}, {"top_p": 0.9, "top_k": 50}, {"min_p": 0.05}, {"temperature": 0.3, "top_p": 0.99},
         {"top_p": 0.9, "logprobs": 5}, {"temperature": 0.0, "logprobs": 20}]  # fmt: skip


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    directory = tmp_path_factory.mktemp("vocabulary", numbered=False)
    family, settings = CASES["llama-256"]
    make_checkpoint(directory, family, **settings | {"vocab_size": VOCAB, "max_position_embeddings": 512})
    return directory


def plan(tokens, position: int, asks) -> StepPlan:
    n, i32 = len(tokens), np.int32
    return StepPlan(np.asarray(tokens, i32), np.full(n, position, i32), np.arange(n, dtype=i32), np.ones(n, bool),
                    np.arange(n, dtype=i32)[:, None], asks)  # fmt: skip


@pytest.mark.parametrize("rows", [1, 8, 64, 100, 200])
def test_steps_are_drawn_by_the_rule(directory, rows, evidence):
    """Twenty steps, each by the logits of a backend that does not sample; where the kernel has no token, the rule gives it."""
    bucket = next(b for b in BUCKETS if b >= rows)
    plain, drawing = open_cuda(directory, rows=bucket), open_cuda(directory, rows=bucket, sampling=True)
    asks = [SamplingParams(**{"temperature": 1.0, "seed": 99 + i} | KINDS[i % len(KINDS)]) for i in range(rows)]
    tokens, left, wrong = np.arange(10, 10 + rows), 0, []
    for position in range(20 if rows < 64 else 4):
        logits = plain.step(plan(tokens, position, None)).logits
        got = drawing.step(plan(tokens, position, asks))
        want = np.array([pick(logits[i], a, position) for i, a in enumerate(asks)])
        left += int((got.greedy < 0).sum())
        wrong += [(position, i) for i in np.flatnonzero((got.greedy != want) & (got.greedy >= 0)).tolist()]
        for i, a in enumerate(asks):
            if a.logprobs is not None and got.greedy[i] >= 0:
                assert got.told[i] == logprobs(logits[i], want[i], a.logprobs), (position, i)
        tokens = want
    evidence.add("drawn", vocabulary=VOCAB, rows=rows, picks=rows * (position + 1), left_to_host=left, wrong=len(wrong))
    assert not wrong


def test_many_drawn_steps_in_one_launch(directory, evidence):
    """A launch of 60 steps draws what 60 launches draw; it ends early only where a row is left to the host."""
    backend = open_cuda(directory, sampling=True)
    asks = [SamplingParams(temperature=0.8, top_k=40, seed=i) for i in range(8)]
    start = np.arange(50, 58)
    backend.run(plan(start, 0, asks), 60)
    together, tokens = backend.greedy_steps.copy(), start
    for position in range(len(together)):
        tokens = backend.step(plan(tokens, position, asks)).greedy
        assert tokens.tolist() == together[position].tolist(), position
    evidence.add("drawn, one launch", steps=len(together), asked=60)
    assert len(together) == 60 or (together[-1] < 0).any()


def test_the_engine_draws_the_same_on_either_side():
    from engine.engine import Engine

    def answers(**options):
        engine = Engine(backend="cuda", **options)
        ask = [
            SamplingParams(max_tokens=40, ignore_eos=True, temperature=0.9, top_p=0.95, seed=s, logprobs=2) for s in range(4)
        ]
        sequences = [engine.submit(engine.tokenizer.encode("def f(x):"), a) for a in ask]
        out = [([p.token for p in engine.stream(s)], s.logprobs) for s in sequences]
        engine.close()
        return out

    assert answers(rows=64) == answers(sampling=False, rows=8)
