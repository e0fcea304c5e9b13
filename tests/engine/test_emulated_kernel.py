"""The kernel on a CPU against the interpreter in bf16 mode, which rounds where the kernel rounds, and against itself."""

import numpy as np
import pytest
from checkpoints import make_checkpoint
from emulated import EmulatedBackend, open_emulated
from rows import Rows, open_backend, same_bits

from engine.builder import StepShape
from engine.pick import logprobs, pick
from engine.plan import StepPlan
from engine.sampling import SamplingParams

_TINY = {"storage": "bfloat16", "num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 48}
MODELS = {
    "cohere": ("cohere2_moe", {
        "layer_types": ["full_attention", "sliding_attention"], "mlp_layer_types": ["dense", "sparse"], "sliding_window": 24,
        "num_shared_experts": 1, "shared_expert_combination_strategy": "average", "prefix_dense_intermediate_size": 112,
    }),
    "llama": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "qwen3": ("qwen3", {"head_dim": 48, "attention_bias": True, "num_key_value_heads": 1}),
    "qwen3moe": ("qwen3_moe", {"norm_topk_prob": True, "mlp_only_layers": [1], "head_dim": 32}),
    "qwen3moe-raw": ("qwen3_moe", {"norm_topk_prob": False, "num_hidden_layers": 1}),
}  # fmt: skip
PROMPTS = [np.random.default_rng(n).integers(3, 97, n).tolist() for n in (9, 2, 5)]


def models(*quick):
    """All models; those that are not ``quick`` only in slow runs: each kernel takes g++ some seconds."""
    return [pytest.param(m, marks=[pytest.mark.slow] * (m not in quick)) for m in MODELS]


def write_model(name, tmp_path_factory):
    directory = tmp_path_factory.getbasetemp() / f"emulated-{name}"
    if not directory.exists():
        family, settings = MODELS[name]
        make_checkpoint(directory, family, **_TINY | settings)
    return directory


@pytest.fixture(scope="module", params=models("cohere"))
def directory(request, tmp_path_factory):
    return write_model(request.param, tmp_path_factory)


@pytest.mark.parametrize("model", models("cohere", "qwen3moe"))
def test_logits_are_the_interpreters(model, tmp_path_factory):
    """Prompt rows and decode rows mixed.  Both round alike: 6e-8 of the logits apart, but for a rounding that another
    libm's exp may turn.  fp32 is 4e-3 away."""
    directory = write_model(model, tmp_path_factory)
    backend = open_backend(directory, mode="bf16")
    expected = Rows(backend, PROMPTS, seed=1).run(most=6)
    backend.close()
    ours = Rows(open_emulated(directory), PROMPTS, seed=1).run(most=6)
    for mine, theirs in zip(ours, expected, strict=True):
        assert np.linalg.norm(mine - theirs) < 5e-4 * np.linalg.norm(theirs)


@pytest.mark.parametrize("trace", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_no_turn_of_warps_and_no_batch_changes_a_bit(directory, trace):
    logits = Rows(open_emulated(directory), PROMPTS, seed=1).run(most=6)
    other = Rows(open_emulated(directory, sms=3, seed=7, trace=trace), PROMPTS, seed=2).run(most=4)
    assert all(same_bits(a, b) for a, b in zip(logits, other, strict=True))


@pytest.mark.parametrize("stages", [3, 4, 5])
def test_two_teams_never_mistake_a_phase(directory, stages):
    """A row alone, whose ring has few stages: warps rest now and then, and copies land late and in any order."""
    expected = Rows(open_emulated(directory), PROMPTS[:1], seed=1).run(most=9)
    one = Rows(open_emulated(directory, stages=stages, sms=1, seed=stages), PROMPTS[:1], seed=1)
    while one.done[0] < len(PROMPTS[0]):
        one.step([1])
    assert same_bits(one.logits[0], expected[0])


@pytest.mark.parametrize("rows", [1, pytest.param(8, marks=pytest.mark.slow)])
@pytest.mark.parametrize("model", models("cohere"))
def test_one_models_kernel_gives_the_same_bits(model, rows, tmp_path_factory, monkeypatch):
    directory = write_model(model, tmp_path_factory)
    expected = Rows(open_emulated(directory), PROMPTS, seed=1).run(most=rows)
    monkeypatch.setattr(EmulatedBackend, "known", True)
    got = Rows(open_emulated(directory), PROMPTS, seed=1).run(most=rows)
    assert all(same_bits(a, b) for a, b in zip(got, expected, strict=True))


# -- sampling


def ask(i: int) -> SamplingParams:
    kinds = (
        {},
        {"top_k": 9},
        {"top_p": 0.8, "logprobs": 2},
        {"min_p": 0.1, "temperature": 0.5},
        {"temperature": 0.0, "logprobs": 3},
    )
    return SamplingParams(**{"temperature": 1.2, "seed": 17 + i} | kinds[i % len(kinds)])


def test_sampled_steps(directory):
    """Rows drawn in the kernel, some steps in one launch, against the rule on the logits of a backend that does not sample."""
    plain, sampling = open_emulated(directory), open_emulated(directory, sampling=True, seed=5)
    rows, steps, i32 = 5, 4, np.int32
    pages = np.arange(rows, dtype=i32)[:, None]
    asks, tokens = [ask(i) for i in range(rows)], np.arange(20, 20 + rows, dtype=i32)
    asked = {"sequence": np.arange(rows, dtype=i32), "wants_logits": np.ones(rows, bool), "pages": pages}
    launch = sampling.run(StepPlan(tokens, np.zeros(rows, i32), **asked, sampling=asks), steps)
    assert launch.logits.shape == (rows, 0), "nobody needs them"
    got = sampling.greedy_steps
    for step in range(steps):
        logits = plain.step(StepPlan(tokens, np.full(rows, step, i32), **asked)).logits
        tokens = np.array([pick(logits[i], a, step) for i, a in enumerate(asks)], i32)
        assert got[step].tolist() == tokens.tolist(), step
    told = [logprobs(logits[i], tokens[i], a.logprobs) if a.logprobs is not None else None for i, a in enumerate(asks)]
    assert launch.told == told
    # a step whose rows do not ask, and one of which some do
    again = plain.step(StepPlan(tokens, np.full(rows, steps, i32), **asked))
    mixed = sampling.step(StepPlan(tokens, np.full(rows, steps, i32), **asked, sampling=[None, *asks[1:]]))
    assert same_bits(mixed.logits[0], again.logits[0]) and mixed.greedy[0] == again.greedy[0]
    assert mixed.greedy[1:].tolist() == [pick(again.logits[i], asks[i], steps) for i in range(1, rows)]


def test_a_launch_ends_where_a_row_is_left_to_the_host(directory):
    """Logits that are not finite: the row has no token, the others have, and no further step is run."""
    backend = open_emulated(directory, sampling=True)
    i32 = np.int32
    at = backend.weights.vectors["norm"]
    at[:] = np.inf
    asked = {"sequence": np.arange(2, dtype=i32), "wants_logits": np.ones(2, bool), "pages": np.arange(2, dtype=i32)[:, None]}
    plan = StepPlan(np.array([20, 21], i32), np.zeros(2, i32), **asked, sampling=[SamplingParams(temperature=1.0), None])
    result = backend.run(plan, 3)
    assert len(backend.greedy_steps) == 1 and result.greedy[0] == -1 and result.logits.shape[1] == backend.config.vocab


def test_the_engine_takes_what_the_kernel_picks(tmp_path, monkeypatch):
    """Drawn, greedy, told, penalised and constrained requests: the same answers whoever picks, in steps of any width."""
    from serving import make_model, params, prompt, tokens_of

    from engine import engine as module

    model = make_model(tmp_path, storage="bfloat16")[0]
    asks = [{"temperature": 1.0, "seed": 3}, {"temperature": 0.9, "top_p": 0.9, "logprobs": 2}, {"logprobs": 1},
            {"temperature": 1.0, "frequency_penalty": 1.0}, {"temperature": 1.0, "min_tokens": 2}]  # fmt: skip
    monkeypatch.setattr(module, "backend_class", lambda name: EmulatedBackend)
    answers, widest = [], []
    for options in ({"sampling": False, "rows": 8}, {"rows": 16}):  # unless it is told otherwise, the kernel picks
        engine = module.Engine(model, backend="cuda", trace=False, pages=16, context=64, **options)
        rows, step = [], engine.backend.step
        engine.backend.step = lambda plan, rows=rows, step=step: (rows.append(len(plan)), step(plan))[1]
        sequences = [engine.submit(prompt(i)[:4], params(max_tokens=3, **a)) for i, a in enumerate(asks)]
        answers.append([(tokens_of(engine.stream(s)), s.logprobs) for s in sequences])
        widest.append((max(rows), engine.backend.sampling))
        engine.close()
    assert answers[0] == answers[1] and widest == [(8, False), (16, True)]
    assert all(len(tokens) == 3 for tokens, _ in answers[0])


# -- steps of more than eight rows


def many_rows(directory, **options) -> list[np.ndarray]:
    """Logits of long and short sequences, in steps of any mixture of as many rows as the backend takes."""
    rng = np.random.default_rng(8)
    prompts = [rng.integers(3, 97, n).tolist() for n in (40, 3, 71, 1, 12)]
    backend = open_emulated(directory, **options)
    step = backend.step

    def poisoned(plan):  # nobody may read what no one has written in this step
        for name in ("normed", "attention", "expert_hidden", "dense_hidden", "shared_hidden", "q", "mid", "router_logits"):
            if name in backend._arrays:
                backend._arrays[name].view(np.uint8).fill(0xFF)
        return step(plan)

    backend.step = poisoned
    rows = Rows(backend, prompts, seed=4)
    logits = rows.run(most=50)
    assert max(map(len, rows.plans)) > options.get("rows", 8) // 2
    return logits


@pytest.fixture(scope="module")
def narrow(directory):
    return many_rows(directory)


@pytest.mark.parametrize("rows", [16, *(pytest.param(r, marks=pytest.mark.slow) for r in (32, 64))])
def test_a_row_has_the_same_bits_in_every_bucket(directory, narrow, rows):
    wide = many_rows(directory, rows=rows, seed=rows)
    assert all(same_bits(a, b) for a, b in zip(narrow, wide, strict=True))


def test_a_long_prompt_has_one_table_of_wide_steps(directory):
    """What it will come to is told with its first step; the splits that this does not have are skipped."""
    i32, n = np.int32, 12
    tokens = np.random.default_rng(6).integers(3, 97, n).astype(i32)
    asked = {"sequence": np.zeros(n, i32), "wants_logits": np.ones(n, bool), "pages": np.arange(8, dtype=i32)[None]}
    logits = []
    for keys, shapes in ((0, [StepShape(16, 1)]), (500, [StepShape(16, 4)])):
        backend = open_emulated(directory, rows=16)
        logits.append(backend.step(StepPlan(tokens, np.arange(n, dtype=i32), **asked, keys=keys)).logits)
        assert list(backend._programs) == shapes
    backend.step(
        StepPlan(tokens[:8], np.arange(n, n + 8, dtype=i32), np.zeros(8, i32), np.ones(8, bool), asked["pages"], keys=500)
    )
    assert list(backend._programs)[1:] == [StepShape(8, 1)], "few rows have tables for every length"
    assert same_bits(*logits)


@pytest.mark.slow
def test_wide_steps_are_drawn_from_as_well(directory):
    """Twenty sequences of a token each: what the rule picks from their logits, and the routes that eight-row steps tell."""
    i32, n = np.int32, 20
    tokens = np.random.default_rng(6).integers(3, 97, n).astype(i32)
    pages, asks = np.arange(n, dtype=i32)[:, None], [ask(i) for i in range(n)]
    asked = {"sequence": np.arange(n, dtype=i32), "wants_logits": np.ones(n, bool), "pages": pages}
    backend = open_emulated(directory, rows=32, sampling=True, pages=n, trace=1)
    drawn = backend.step(StepPlan(tokens, np.zeros(n, i32), **asked, sampling=asks))
    logits = backend.step(StepPlan(tokens, np.zeros(n, i32), **asked)).logits
    assert drawn.greedy.tolist() == [pick(logits[i], a, 0) for i, a in enumerate(asks)]
    assert [t.top if t else None for t in drawn.told] == [
        logprobs(logits[i], 0, a.logprobs).top if a.logprobs is not None else None for i, a in enumerate(asks)
    ]
    few = open_emulated(directory, trace=1, pages=n)
    counts = {}
    for i in range(0, n, 8):
        part = slice(i, i + 8)
        plan = StepPlan(tokens[part], np.zeros(len(tokens[part]), i32), np.arange(len(tokens[part]), dtype=i32),
                        np.ones(len(tokens[part]), bool), pages[part])  # fmt: skip
        for layer, _, expert, rows in few.step(plan).routes:
            counts[layer, expert] = counts.get((layer, expert), 0) + rows
    assert {(layer, expert): rows for layer, _, expert, rows in drawn.routes} == counts
