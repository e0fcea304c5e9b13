"""The kernel against transformers in fp32, with transformers' own bf16 run as the measure; the demo model against the CPU."""

import gc

import numpy as np
import pytest
import torch
from cases import CASES, MANY_EXPERTS
from checkpoints import make_checkpoint
from reference import beyond_noise, forward, load, relative, routing_decided, row_errors
from rows import Rows, demo_directory, open_backend, same_bits
from stepping import cut_page, feed, make_plan, open_cuda

from engine.tiling import PAGE

pytestmark = pytest.mark.gpu

LONG, SHORT, SEQUENCES = 8192, 65, 24  # tokens of the long sequence; of the short ones, and how many they are
CONTEXTS = (1, 63, 64, 65, 4095, 4096, 4097, 8192)
LIMIT = 1.5  # our error by that of transformers' bf16 run
EXCLUDED = 0.05  # share of rows whose greedy token rounding may decide


def compare(evidence, test, ours, exact, rounded, length, by_row=False, **where):
    """Error and greedy tokens of all rows of sequences of ``length``; asserts the limits."""
    mine, theirs = row_errors(ours, exact.logits), row_errors(rounded.logits, exact.logits)
    clear, routed = beyond_noise(exact.logits, rounded.logits, 1, by_row=by_row), routing_decided(exact, rounded, length)
    differ = ours.argmax(1) != exact.logits.argmax(1)
    figures = {
        "rows": len(ours), "error": relative(ours, exact.logits), "bf16 error": relative(rounded.logits, exact.logits),
        "median error": float(np.median(mine)), "median bf16 error": float(np.median(theirs)),
        "excluded": 1 - float(clear.mean()), "routing undecided": 1 - float(routed.mean()),
        "greedy differ": int(differ.sum()), "greedy differ beyond noise": int((differ & clear & routed).sum()),
    }  # fmt: skip
    evidence.add(test, **where, **figures)
    assert np.isfinite(ours).all()
    assert figures["error"] <= LIMIT * figures["bf16 error"]
    assert figures["median error"] <= LIMIT * figures["median bf16 error"]
    assert figures["greedy differ beyond noise"] == 0
    assert figures["excluded"] < EXCLUDED


@pytest.fixture(scope="module", params=CASES)
def case(request, tmp_path_factory):
    """(name, directory, backend) of a checkpoint."""
    directory = tmp_path_factory.mktemp(request.param)
    family, settings = CASES[request.param]
    make_checkpoint(directory, family, **settings)
    backend = open_cuda(directory)
    yield request.param, directory, backend
    backend.close()
    gc.collect()


def references(directory, tokens):
    out = []
    for dtype in (torch.float32, torch.bfloat16):
        model = load(directory, dtype)
        out.append(forward(model, tokens))
        del model
        torch.cuda.empty_cache()
    return out


def test_against_transformers(case, evidence):
    """One sequence of 8192 tokens in steps of 8 rows, then its prefixes again as one decode row each, in batches of 1 to 8."""
    name, directory, backend = case
    tokens = np.random.default_rng(0).integers(0, backend.config.vocab, LONG)
    exact, rounded = references(directory, tokens[None])
    ours = feed(backend, tokens)
    compare(evidence, "long", ours, exact, rounded, LONG, case=name)
    for context in CONTEXTS[4:]:  # 32 rows around it: a single row's ratio says little
        near = slice(max(0, context - 16), context + 16)
        mine, theirs = (np.median(row_errors(x[near], exact.logits[near])) for x in (ours, rounded.logits))
        evidence.add("near context", case=name, context=context, error=float(mine), bf16_error=float(theirs))
        assert mine <= LIMIT * theirs, context
    for batch in range(1, len(CONTEXTS) + 1):
        check_decode(backend, tokens, ours, CONTEXTS[-batch:])


def check_decode(backend, tokens, prefilled, contexts):
    """A decode step of the last token of each prefix has the bits that its row had among prefill rows."""
    pages, first = np.full((len(contexts), LONG // PAGE), -1, np.int32), LONG // PAGE
    for i, context in enumerate(contexts):
        last = (context - 1) // PAGE
        pages[i, :last] = np.arange(last)
        pages[i, last] = first + i
        cut_page(backend, last, first + i, (context - 1) % PAGE)
    at = np.array(contexts) - 1
    result = backend.step(make_plan(tokens[at], at, range(len(contexts)), pages))
    for i, context in enumerate(contexts):
        assert same_bits(result.logits[i], prefilled[context - 1]), f"context {context} in a batch of {len(contexts)}"
    assert result.greedy.tolist() == result.logits.argmax(1).tolist()


def test_short_sequences_in_ragged_batches(case, evidence):
    """24 sequences of 65 tokens, eight at a time in steps of 1 to 8 rows of any mixture: contexts 1, 63, 64 and 65."""
    name, directory, backend = case
    tokens = np.random.default_rng(1).integers(0, backend.config.vocab, (SEQUENCES, SHORT))
    exact, rounded = references(directory, tokens)
    parts = [Rows(backend, tokens[i : i + 8].tolist(), seed=i).run(most=6) for i in range(0, SEQUENCES, 8)]
    ours = np.concatenate([logits for part in parts for logits in part])
    compare(evidence, "short", ours, exact, rounded, SHORT, case=name)
    for context in CONTEXTS[:4]:
        at = np.arange(SEQUENCES) * SHORT + context - 1
        mine, theirs = (np.median(row_errors(x[at], exact.logits[at])) for x in (ours, rounded.logits))
        evidence.add("at context", case=name, context=context, error=float(mine), bf16_error=float(theirs))
        assert mine <= LIMIT * theirs, context


def test_many_experts(tmp_path, evidence):
    """200 experts of which each row takes 16: more slots than rows of a batch, and near ties in almost every row."""
    make_checkpoint(tmp_path, *MANY_EXPERTS[:1], **MANY_EXPERTS[1])
    backend = open_cuda(tmp_path)
    tokens = np.random.default_rng(2).integers(0, backend.config.vocab, (8, SHORT))
    exact, rounded = references(tmp_path, tokens)
    ours = np.concatenate(Rows(backend, tokens.tolist(), seed=2).run(most=6))
    error, noise = relative(ours, exact.logits), relative(rounded.logits, exact.logits)
    mine, theirs = (np.median(row_errors(x, exact.logits)) for x in (ours, rounded.logits))
    evidence.add("many experts", rows=len(ours), error=error, bf16_error=noise, median=float(mine), bf16_median=float(theirs))
    assert error <= LIMIT * noise and mine <= LIMIT * theirs


def test_demo_model_against_the_cpu(evidence):
    """500 greedy tokens of the CPU's bf16 mode, teacher-forced on the GPU, with the CPU's own rounding as the measure."""
    directory = demo_directory()
    rounded, exact = open_backend(directory, mode="bf16", sms=16), open_backend(directory, sms=16)
    prompt = np.random.default_rng(7).integers(10, rounded.config.vocab, 20).tolist()
    rows = Rows(rounded, [prompt])
    rows.greedy(480)
    tokens = rows.tokens[0]
    assert len(tokens) == 500
    fp32 = Rows(exact, [tokens]).run()[0]
    bf16 = Rows(rounded, [tokens]).run()[0]
    ours = feed(open_cuda(directory), tokens)
    noise, error, between = relative(bf16, fp32), relative(ours, fp32), relative(ours, bf16)
    clear = beyond_noise(bf16, fp32, 1)
    differ = ours.argmax(1) != bf16.argmax(1)
    evidence.add(
        "demo", rows=500, error=error, cpu_bf16_error=noise, against_cpu_bf16=between, excluded=1 - float(clear.mean()),
        greedy_differ=int(differ.sum()), greedy_differ_beyond_noise=int((differ & clear).sum()),
    )  # fmt: skip
    assert error <= LIMIT * noise and between <= LIMIT * noise
    assert not (differ & clear).any()
    assert 1 - clear.mean() < EXCLUDED
