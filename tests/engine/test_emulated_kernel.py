"""The kernel on a CPU against the interpreter in bf16 mode, which rounds where the kernel rounds, and against itself."""

import numpy as np
import pytest
from checkpoints import make_checkpoint
from emulated import open_emulated
from rows import Rows, open_backend, same_bits

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


@pytest.fixture(scope="module", params=MODELS)
def directory(request, tmp_path_factory):
    directory = tmp_path_factory.mktemp(request.param, numbered=False)
    family, settings = MODELS[request.param]
    make_checkpoint(directory, family, **_TINY | settings)
    return directory


@pytest.fixture(scope="module")
def expected(directory):
    """The interpreter's logits of PROMPTS."""
    backend = open_backend(directory, mode="bf16")
    logits = Rows(backend, PROMPTS, seed=1).run(most=6)
    backend.close()
    return logits


def test_logits_are_the_interpreters(directory, expected):
    """Prompt rows and decode rows mixed.  Both round alike: 6e-8 of the logits apart, but for a rounding that another
    libm's exp may turn.  fp32 is 4e-3 away."""
    ours = Rows(open_emulated(directory), PROMPTS, seed=1).run(most=6)
    for mine, theirs in zip(ours, expected, strict=True):
        assert np.linalg.norm(mine - theirs) < 5e-4 * np.linalg.norm(theirs)


def test_no_turn_of_warps_and_no_batch_changes_a_bit(directory):
    logits = Rows(open_emulated(directory), PROMPTS, seed=1).run(most=6)
    other = Rows(open_emulated(directory, sms=3, seed=7, trace=1), PROMPTS, seed=2).run(most=4)
    assert all(same_bits(a, b) for a, b in zip(logits, other, strict=True))
