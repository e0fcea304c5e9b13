"""The CPU interpreter against transformers: logits and greedy tokens of all four families, whatever the mixture of rows."""

import numpy as np
import pytest
import torch
from checkpoints import ODD, make_checkpoint, make_odd
from rows import Rows, demo_directory, open_backend
from transformers import AutoModelForCausalLM, AutoTokenizer

from engine.plan import StepPlan
from mkviz.errors import MkvizError

NOISE = 4e-6  # of the largest logit: what fp32 sums in another order may differ by (about 1e-6 for these models)


def reference(model, tokens) -> np.ndarray:
    with torch.no_grad():
        return model(torch.tensor([tokens])).logits[0].numpy()


def assert_close(ours: np.ndarray, model, tokens, noise=NOISE):
    theirs = reference(model, tokens)
    scale = np.abs(theirs).max()
    assert ours.shape == theirs.shape
    assert np.abs(ours - theirs).max() <= noise * scale, f"{np.abs(ours - theirs).max() / scale:.2e} of the largest logit"


def assert_greedy(tokens, prompt: int, model):
    """Each token after the prompt is what the reference picks there, or ties with it within the noise."""
    theirs = reference(model, tokens)[prompt - 1 : -1]
    behind = theirs.max(1) - theirs[np.arange(len(theirs)), tokens[prompt:]]
    assert np.all(behind <= 2 * NOISE * np.abs(theirs).max())
    assert np.count_nonzero(behind) <= 1, "more than one near tie: choose another seed"


def prompts(rng, vocab: int, lengths) -> list[list[int]]:
    return [rng.integers(0, vocab, n).tolist() for n in lengths]


@pytest.mark.parametrize("name", ODD)
def test_logits_and_greedy_tokens(tmp_path, name):
    model = make_odd(tmp_path, name)
    rows = Rows(open_backend(tmp_path), prompts(np.random.default_rng(1), model.config.vocab_size, (70, 9, 33)))
    for tokens, logits in zip(rows.tokens, rows.run(), strict=True):
        assert_close(logits, model, tokens)
    assert rows.mixed > 3

    for tokens, new in zip(rows.tokens, rows.greedy(64), strict=True):
        assert len(new) == 64
        assert_greedy(tokens, len(tokens) - 64, model)


@pytest.mark.parametrize("window", [None, 24, 256, 300])
def test_context_lengths_around_pages_and_splits(tmp_path, window):
    """Ragged contexts that end around a page, one split, two splits; windows inside a split and across two boundaries."""
    family, settings = ("cohere2_moe", {"sliding_window": window}) if window else ("llama", {})
    model = make_checkpoint(tmp_path, family, max_position_embeddings=1024, **settings)
    tokens = np.random.default_rng(2).integers(0, model.config.vocab_size, 600).tolist()
    theirs = reference(model, tokens)
    scale = np.abs(theirs).max()
    for lengths in ([1, 63, 64, 65, 128, 129], [255, 256, 257], [511, 512, 513, 600]):
        rows = Rows(open_backend(tmp_path), [tokens[:n] for n in lengths])
        rows.run(most=40)
        for n, logits in zip(lengths, rows.logits, strict=True):
            assert np.abs(logits - theirs[:n]).max() <= NOISE * scale, n


def test_one_decode_row_at_each_boundary(tmp_path):
    """Contexts of exactly these lengths, the last key written by the row that first reads it."""
    model = make_checkpoint(tmp_path, "cohere2_moe", sliding_window=70, max_position_embeddings=1024)
    tokens = np.random.default_rng(3).integers(0, model.config.vocab_size, 520).tolist()
    theirs = reference(model, tokens)
    rows = Rows(open_backend(tmp_path), [tokens])
    for end in (1, 63, 64, 65, 127, 128, 129, 191, 192, 193, 255, 256, 257, 258, 319, 320, 321, 511, 512, 513, 514):
        while rows.done[0] < end - 1:
            rows.step([min(61, end - 1 - rows.done[0])])
        rows.step([1])
    assert np.abs(rows.logits[0] - theirs[:514]).max() <= NOISE * np.abs(theirs).max()


@pytest.mark.parametrize("batch", range(1, 9))
def test_ragged_batches(tmp_path, batch):
    model = make_checkpoint(tmp_path, "qwen3_moe", norm_topk_prob=True)
    rng = np.random.default_rng(batch)
    rows = Rows(open_backend(tmp_path), prompts(rng, model.config.vocab_size, rng.integers(1, 90, batch)), seed=batch)
    for tokens, logits in zip(rows.tokens, rows.run(), strict=True):
        assert_close(logits, model, tokens)


def test_prefill_rows_beside_decode_rows(tmp_path):
    """Sequence 0 decodes while sequences 1 and 2 are prefilled in chunks, and all of them end up right."""
    model = make_checkpoint(tmp_path, "cohere2_moe", sliding_window=24, num_shared_experts=1)
    rows = Rows(open_backend(tmp_path), prompts(np.random.default_rng(5), model.config.vocab_size, (30, 40, 100)))
    rows.step([12, 0, 0])
    for i in range(9):
        rows.step([1, 17 if i < 2 else 0, 11])
    rows.step([9, 6, 1])
    assert rows.mixed == 10
    assert rows.done == [30, 40, 100]
    for tokens, logits in zip(rows.tokens, rows.logits, strict=True):
        assert_close(logits, model, tokens)


def test_demo_model_200_greedy_tokens():
    directory = demo_directory()
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager").eval()
    tokenizer = AutoTokenizer.from_pretrained(directory)
    chat = [{"role": "user", "content": "Write a Python function that reverses a list."}]
    prompt = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)
    model.generation_config.eos_token_id = None  # on to the 200th
    theirs = model.generate(torch.tensor([prompt]), max_new_tokens=200, do_sample=False, pad_token_id=0)[0].tolist()
    (ours,) = Rows(open_backend(directory, sms=16), [prompt]).greedy(200)
    assert ours == theirs[len(prompt) :]


def test_rows_without_logits_change_nothing(tmp_path):
    """A prefill that asks for the last row's logits only gives the same row."""
    model = make_checkpoint(tmp_path, "llama")
    backend = open_backend(tmp_path)
    tokens = np.random.default_rng(6).integers(0, model.config.vocab_size, 20)
    last = np.arange(20) == 19
    pages = np.array([[3]], np.int32)
    i32 = np.int32
    result = backend.step(StepPlan(tokens.astype(i32), np.arange(20, dtype=i32), np.zeros(20, i32), last, pages))
    theirs = reference(model, tokens.tolist())[-1]
    assert np.abs(result.logits[-1] - theirs).max() <= NOISE * np.abs(theirs).max()
    assert result.greedy.tolist() == [-1] * 19 + [int(theirs.argmax())]


def test_a_row_beyond_the_context_is_refused(tmp_path):
    make_checkpoint(tmp_path, "llama", max_position_embeddings=64)
    one = np.zeros(1, np.int32)
    with pytest.raises(MkvizError, match=r"position 64; below the model's context of 64"):
        open_backend(tmp_path).step(StepPlan(one, one + 64, one, one == 0, np.zeros((1, 2), np.int32)))
