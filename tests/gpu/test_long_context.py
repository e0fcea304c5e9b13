"""Contexts of 128K and 256K tokens, in models of one and three layers, against transformers in fp32."""

import gc

import numpy as np
import pytest
import torch
from checkpoints import make_checkpoint
from reference import Forward, load, relative
from rows import same_bits
from stepping import cut_page, make_plan, open_cuda
from test_numerics import LIMIT, compare

from engine.tiling import PAGE, SPLIT

pytestmark = pytest.mark.gpu

LENGTH = 262_144
AROUND = 64  # rows on either side of 128K, and before the end
CONTEXTS = (LENGTH // 2 - 1, LENGTH // 2, LENGTH // 2 + 1, LENGTH - 63, LENGTH - 1, LENGTH)
PREFILL = 64  # rows of a step
CHUNK = 256  # tokens that transformers reads at once
_COMMON = {"vocab_size": 1031, "max_position_embeddings": LENGTH, "storage": "bfloat16", "spread": 1.5, "sharp": 2.5,
           "hidden_size": 256, "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 128}  # fmt: skip
CASES = {
    "cohere": ("cohere2_moe", _COMMON | {
        "num_hidden_layers": 3, "layer_types": ["full_attention", "sliding_attention", "full_attention"],
        "mlp_layer_types": ["dense", "sparse", "sparse"], "prefix_dense_intermediate_size": 512, "intermediate_size": 64,
        "sliding_window": 4096, "num_experts": 8, "num_experts_per_tok": 8}),
    "llama": ("llama", _COMMON | {
        "num_hidden_layers": 1, "num_key_value_heads": 2, "intermediate_size": 512,
        "rope_parameters": {"rope_type": "llama3", "rope_theta": 5e5, "factor": 32.0, "low_freq_factor": 1.0,
                            "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}}),
}  # fmt: skip


def near() -> np.ndarray:
    """Positions whose logits are compared."""
    return np.r_[LENGTH // 2 - AROUND : LENGTH // 2 + AROUND, LENGTH - 2 * AROUND : LENGTH]


def read(model, tokens: np.ndarray) -> Forward:
    """transformers' logits at ``near()``, a chunk at a time with its own cache."""
    wanted, out, cache = near(), [], None
    with torch.no_grad():
        for at in range(0, len(tokens), CHUNK):
            part = torch.tensor(tokens[None, at : at + CHUNK], device=model.device)
            keep = wanted[(wanted >= at) & (wanted < at + CHUNK)] - at
            told = model(part, past_key_values=cache, use_cache=True, logits_to_keep=CHUNK if len(keep) else 1)
            cache = told.past_key_values
            if at % (32 * CHUNK) == 0:
                torch.cuda.empty_cache()  # a growing cache leaves a hole of each size that it had
            if len(keep):
                out.append(told.logits[0, keep].float().cpu().numpy())
    return Forward(np.concatenate(out), {}, 0)


def feed(backend, tokens: np.ndarray) -> np.ndarray:
    """Ours, after a prompt in steps of 64 causal rows."""
    out, wanted, pages = [], np.isin(np.arange(len(tokens)), near()), np.arange(len(tokens) // PAGE, dtype=np.int32)[None]
    for at in range(0, len(tokens), PREFILL):
        part = slice(at, at + PREFILL)
        result = backend.step(make_plan(tokens[part], range(at, at + PREFILL), pages=pages, wants=wanted[part]))
        if wanted[part].any():
            out.append(result.logits[wanted[part]])
    return np.concatenate(out)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("case", CASES)
def test_long_contexts_against_transformers(case, tmp_path, evidence):
    family, settings = CASES[case]
    make_checkpoint(tmp_path, family, **settings)
    tokens = np.random.default_rng(3).integers(0, settings["vocab_size"], LENGTH)
    references = []
    for dtype in (torch.float32, torch.bfloat16):
        references.append(read(load(tmp_path, dtype), tokens))
        gc.collect()
        torch.cuda.empty_cache()
    exact, rounded = references
    backend = open_cuda(tmp_path, pages=LENGTH // PAGE + len(CONTEXTS) + 1, rows=PREFILL)
    ours = feed(backend, tokens)
    compare(evidence, "long context", ours, *references, len(ours), by_row=True, case=case)
    for name, part in (("128K", slice(0, 2 * AROUND)), ("256K", slice(2 * AROUND, None))):
        error, noise = (relative(x[part], exact.logits[part]) for x in (ours, rounded.logits))
        evidence.add("around", case=case, context=name, error=error, bf16_error=noise)
        assert error <= LIMIT * noise
    rows_of = {position: i for i, position in enumerate(near().tolist())}
    pages, first = np.full((len(CONTEXTS), LENGTH // PAGE), -1, np.int32), LENGTH // PAGE
    for i, context in enumerate(CONTEXTS):
        last = (context - 1) // PAGE
        pages[i, :last], pages[i, last] = np.arange(last), first + i
        cut_page(backend, last, first + i, (context - 1) % PAGE)
    for rows in ([0], [4], [5], [1, 5], range(len(CONTEXTS))):  # one row has a kernel of its own
        at = np.array(CONTEXTS)[rows] - 1
        result = backend.step(make_plan(tokens[at], at, range(len(at)), pages[rows]))
        for got, position in zip(result.logits, at.tolist(), strict=True):
            assert same_bits(got, ours[rows_of[position]]), f"context {position + 1} in a batch of {len(at)}"
    check_that_splits_count(backend, tokens, exact.logits, rounded.logits, ours)
    backend.close()


def check_that_splits_count(backend, tokens, exact, rounded, ours):
    """Without a quarter of the splits the same comparison fails: their keys are attended to."""
    zeros, lost, at = LENGTH // PAGE + len(CONTEXTS), 256 * SPLIT // PAGE, LENGTH - PREFILL
    backend.zero_pages([zeros])
    pages = np.arange(LENGTH // PAGE, dtype=np.int32)[None].copy()
    pages[0, 512 : 512 + lost] = zeros
    without = backend.step(make_plan(tokens[at:], range(at, LENGTH), pages=pages)).logits
    last = slice(-PREFILL, None)
    error, mine, noise = (relative(x[last], exact[last]) for x in (without, ours, rounded))
    print(f"error without a quarter of the splits {error:.4f}, with all {mine:.4f}, of transformers in bf16 {noise:.4f}")
    assert error > LIMIT * noise
