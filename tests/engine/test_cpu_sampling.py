"""The interpreter's sample and pick tasks against the rule, on the logits of the same step."""

import numpy as np
import pytest
from checkpoints import make_checkpoint
from rows import open_backend

from engine.pick import logprobs, pick
from engine.plan import StepPlan
from engine.sampling import SamplingParams

FILTERS = [{}, {"top_k": 5}, {"top_p": 0.6}, {"min_p": 0.2}, {"top_k": 20, "top_p": 0.9, "min_p": 0.01}, {"temperature": 0.2},
           {"top_p": 1e-12}, {"temperature": 0.0, "logprobs": 3}, {"logprobs": 20, "top_k": 2},
           {"temperature": 0.0}]  # fmt: skip


@pytest.fixture(scope="module")
def backend(tmp_path_factory):
    directory = tmp_path_factory.mktemp("model")
    make_checkpoint(directory, "llama", num_hidden_layers=1, vocab_size=211, storage="bfloat16", spread=0.5)
    backend = open_backend(directory, sampling=True)
    yield backend
    backend.close()


def plan(position: int, asks) -> StepPlan:
    n, i32 = len(asks), np.int32
    return StepPlan(np.arange(30, 30 + n, dtype=i32), np.full(n, position, i32), np.arange(n, dtype=i32), np.ones(n, bool),
                    np.arange(n, dtype=i32)[:, None], asks)  # fmt: skip


def test_picks_and_log_probabilities(backend):
    asks = [SamplingParams(**{"temperature": 1.0, "seed": 2**63 + i, "choice": i} | f) for i, f in enumerate(FILTERS)]
    seen = set()
    for position in range(12):
        result = backend.step(plan(position, asks))
        assert result.greedy.tolist() == [pick(result.logits[i], a, position) for i, a in enumerate(asks)]
        told = [logprobs(result.logits[i], result.greedy[i], a.logprobs) if a.logprobs is not None else None
                for i, a in enumerate(asks)]  # fmt: skip
        assert result.told == told
        seen |= set(result.greedy.tolist())
    assert len(seen) > 10


def test_tasks_are_counted(backend):
    """A row that does not ask leaves its sample tasks skipped: they are there all the same."""
    graph, schedule = next(iter(backend.graphs.values()))
    assert (graph.op == graph.ops.index("sample")).sum() == backend.sms * 8  # of sixteen rows, two a task
    assert schedule.sms == backend.sms
    result = backend.step(plan(20, [None] * len(FILTERS)))
    assert result.greedy.tolist() == result.logits.argmax(1).tolist() and result.told == [None] * len(FILTERS)


def test_a_row_without_a_largest_logit_has_no_token(backend):
    norm = backend._arrays["norm"][-1]
    kept = norm.copy()
    norm[:] = np.inf
    result = backend.step(plan(21, [SamplingParams(temperature=1.0), None, SamplingParams(logprobs=1)]))
    norm[:] = kept
    assert result.greedy[0] == result.greedy[2] == -1 and result.told == [None] * 3
