"""Steps of more than 64 rows, the kernel on a CPU: rows that decode beside prompts, experts of very many rows and of none."""

import numpy as np
import pytest
from checkpoints import make_checkpoint
from emulated import open_emulated
from rows import Rows, open_backend, same_bits
from test_emulated_kernel import _TINY, MODELS, ask, write_model

from engine.pick import pick
from engine.plan import StepPlan

SCRATCH = ("normed", "attention", "expert_hidden", "dense_hidden", "shared_hidden", "q", "mid", "router_logits", "chosen",
           "chosen_weight", "tile_max", "tile_arg")  # fmt: skip
# (token, length): where there are experts, sequences of one token, whose rows choose alike
SEQUENCES = {128: ((7, 45), (40, 66), (61, 9), (11, 1)), 256: ((7, 100), (40, 66), (61, 9), (11, 1))}
CASES = [pytest.param(model, rows, marks=[pytest.mark.slow] * ((model, rows) != ("cohere", 256)))
         for model in MODELS for rows in SEQUENCES]  # fmt: skip


@pytest.fixture(scope="module")
def directory_of(tmp_path_factory):
    """A model of sixteen experts, where it has any: four tokens choose three each."""

    def write(model):
        directory = tmp_path_factory.getbasetemp() / f"wide-{model}"
        if not directory.exists():
            family, settings = MODELS[model]
            make_checkpoint(directory, family, **_TINY | settings | ({"num_experts": 16} if "moe" in family else {}))
        return directory

    return write


def one_wide_step(directory, rows: int) -> tuple[Rows, list[list[int]], np.ndarray]:
    """All sequences, nearly all of it in one step: the second prompt has begun, and the third one decodes.  With the experts
    of that step's rows in the last layer that has some."""
    backend = open_emulated(directory, rows=rows, trace=1, seed=rows)
    tokens = [[token] * n for token, n in SEQUENCES[rows]]
    if not backend.config.experts:
        tokens = [np.random.default_rng(token).integers(3, 97, n).tolist() for token, n in SEQUENCES[rows]]
    step = backend.step

    def poisoned(plan):  # nobody may read what no one has written in this step
        for name in SCRATCH:
            if name in backend._arrays:
                backend._arrays[name].view(np.uint8).fill(0xFF)
        return step(plan)

    backend.step = poisoned
    run = Rows(backend, tokens, seed=1)
    run.step([0, 3, 8, 0])
    run.step([len(tokens[0]) - 1, len(tokens[1]) - 3, 1, 1])
    chosen = np.array(backend._arrays["chosen"])[: len(run.plans[1]), : backend.config.top_k]
    run.step([1, 0, 0, 0])
    return run, tokens, chosen


@pytest.mark.parametrize(("model", "rows"), CASES)
def test_a_wide_step(model, rows, directory_of):
    """Each row has the bits of eight-row steps and is what the interpreter says, whose libm may turn a rounding: of hundreds
    of rows some, so the limit is wider than for short prompts.  fp32 is 4e-3 away."""
    directory = directory_of(model)
    run, tokens, chosen = one_wide_step(directory, rows)
    wide = run.plans[1]
    assert len(wide) > rows // 2 and set(np.bincount(wide.sequence)) >= {1}
    oracle = open_backend(directory, mode="bf16")
    expected = Rows(oracle, tokens, seed=3).run(most=40)
    oracle.close()
    narrow = Rows(open_emulated(directory), tokens, seed=2).run(most=8)
    for mine, theirs, few in zip(run.logits, expected, narrow, strict=True):
        assert np.linalg.norm(mine - theirs) < 2e-3 * np.linalg.norm(theirs)
        assert same_bits(mine, few)
    if experts := run.backend.config.experts:
        counts = {}
        for layer, _, expert, n in run.results[1].routes:
            counts.setdefault(layer, np.zeros(experts, int))[expert] = n
        for n in counts.values():
            assert n.sum() == len(wide) * run.backend.config.top_k and n.max() > rows // 4
            assert (n == 0).any(), "an expert that nobody chose"
        first, second = set(chosen[:128].flat), set(chosen[128:].flat)
        assert rows < 256 or (first - second and second - first and first & second), "of one pass, of the other, of both"


@pytest.mark.slow
def test_hundreds_of_rows_are_drawn(tmp_path_factory):
    """A hundred and forty sequences of a token each: what the rule picks from their logits."""
    i32, n = np.int32, 140
    directory = write_model("cohere", tmp_path_factory)
    tokens = np.random.default_rng(6).integers(3, 97, n).astype(i32)
    asks = [ask(i) for i in range(n)]
    asked = {"sequence": np.arange(n, dtype=i32), "wants_logits": np.ones(n, bool), "pages": np.arange(n, dtype=i32)[:, None]}
    backend = open_emulated(directory, rows=256, sampling=True, pages=n)
    drawn = backend.step(StepPlan(tokens, np.zeros(n, i32), **asked, sampling=asks))
    logits = backend.step(StepPlan(tokens, np.zeros(n, i32), **asked)).logits
    assert drawn.greedy.tolist() == [pick(logits[i], a, 0) for i, a in enumerate(asks)]
