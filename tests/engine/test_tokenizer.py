"""Tokenizer against transformers on the same files, and the streaming detokeniser against whole decoding."""

import json
import random
import shutil
import threading
import time
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

import engine
from engine.tokenizer import Tokenizer
from mkviz.errors import MkvizError

DEMO = Path(engine.__file__).parent / "demo_model"
TOKEN = {"__type": "AddedToken", "normalized": False, "lstrip": False, "rstrip": False, "single_word": False}
TEXTS = [
    "",
    "def reverse(s):\n    return s[::-1]\n",
    "ünïcode 漢字 \N{FAMILY} 🙂👩‍👩‍👧 x = 1234567\t\r\n  ",
    "<|START_OF_TURN_TOKEN|><|USER_TOKEN|>hi<|END_OF_TURN_TOKEN|> <PAD> <not_a_token>",
    "\ufffd broken \ufffd\ufffd",
]


@pytest.fixture(scope="module")
def demo():
    return Tokenizer.open(DEMO)


def reference(directory):
    """transformers over the same tokenizer.json and tokenizer_config.json."""
    return PreTrainedTokenizerFast.from_pretrained(directory)


@pytest.fixture
def model(tmp_path):
    """A byte-level tokenizer of its own, small enough to rewrite; ``write(**config)`` stores it."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {c: i for i, c in enumerate(["<pad>", "<s>", "</s>", *alphabet, "he", "ll"])}
    backend = tokenizers.Tokenizer(models.BPE(vocab, [("h", "e"), ("l", "l")]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()

    def write(**config):
        backend.save(str(tmp_path / "tokenizer.json"))
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
        return tmp_path

    write.backend, write.directory = backend, tmp_path
    return write


@pytest.mark.parametrize("text", TEXTS)
def test_demo_model_agrees_with_transformers(demo, text):
    ids = demo.encode(text)
    theirs = reference(DEMO)
    assert ids == theirs.encode(text)
    assert demo.decode(ids, skip_special=False) == theirs.decode(ids) == text
    assert demo.decode(ids) == theirs.decode(ids, skip_special_tokens=True)


def test_demo_model_names(demo):
    assert demo.special["eos_token"] == "<|END_OF_TURN_TOKEN|>" and demo.eos == (9,)
    assert demo.vocab == 8192


def test_tokens_around_a_prompt_are_those_of_tokenizer_json(model):
    directory = model(bos_token="<s>", eos_token=TOKEN | {"content": "</s>"}, add_bos_token=True, add_eos_token=True)
    assert Tokenizer.open(directory).encode("he") == reference(directory).encode("he") == [259]
    model.backend.post_processor = tokenizers.processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", 1)])
    directory = model(bos_token="<s>", eos_token="</s>", add_bos_token=False)
    assert Tokenizer.open(directory).encode("he") == reference(directory).encode("he") == [1, 259]
    assert Tokenizer.open(directory).encode("he", special=False) == [259]


@pytest.mark.parametrize("form", ["object", "string"])
def test_tokens_known_only_to_the_config(model, form):
    n = model.backend.get_vocab_size()
    token = {"content": "<|new|>", "special": True, "normalized": False, "lstrip": False, "rstrip": False}
    listed = {str(n): token if form == "object" else "<|new|>", str(n + 1): token | {"content": "<tool>", "special": False}}
    mine = Tokenizer.open(model(added_tokens_decoder=listed))
    ids = mine.encode("he<|new|>ll<tool>")
    assert n in ids and n + 1 in ids and mine.vocab == n + 2
    assert mine.decode(ids) == "hell<tool>"
    assert mine.decode(ids, skip_special=False) == "he<|new|>ll<tool>"


def test_named_tokens_of_the_vocabulary_become_special(model):
    directory = model(eos_token="</s>", additional_special_tokens=["<s>", TOKEN | {"content": "<pad>"}])
    mine, theirs = Tokenizer.open(directory), reference(directory)
    text = "<s>he</s>ll<pad>"
    assert mine.encode(text) == theirs.encode(text)
    assert mine.encode(text)[0] == 1 and mine.decode(mine.encode(text)) == "hell"


def test_a_name_outside_the_vocabulary_gets_no_id(model):
    mine = Tokenizer.open(model(pad_token="[PAD]", eos_token="</s>"))
    assert mine.vocab == model.backend.get_vocab_size()


def test_truncation_left_in_the_file_does_not_cut_prompts(model):
    model.backend.enable_truncation(4)
    model.backend.enable_padding(length=100)
    assert Tokenizer.open(model()).decode(Tokenizer.open(model()).encode("hello there")) == "hello there"


def stream(tokenizer, ids, **kw):
    d = tokenizer.detokenizer(**kw)
    return [d.push(i) for i in ids] + [d.flush()]


@pytest.mark.parametrize("text", TEXTS)
def test_stream_of_text(demo, text):
    pieces = stream(demo, demo.encode(text), skip_special=False)
    assert "".join(pieces) == text
    if "\ufffd" not in text:
        assert not any("\ufffd" in piece for piece in pieces)  # never half a character


@settings(max_examples=150, deadline=None)
@given(st.lists(st.integers(0, 8191), max_size=60), st.booleans())
def test_stream_of_any_tokens_equals_decoding_them(ids, skip):
    tokenizer = Tokenizer.open(DEMO) if not CACHE else CACHE[0]
    CACHE[:] = [tokenizer]
    assert "".join(stream(tokenizer, ids, skip_special=skip)) == tokenizer.decode(ids, skip)


CACHE: list[Tokenizer] = []


@settings(max_examples=100, deadline=None)
@given(st.data(), st.booleans())
def test_stream_of_tokens_that_are_hardly_text(data, skip):
    """Halves of characters, and tokens that are not shown among them."""
    tokenizer = CACHE[0] if CACHE else Tokenizer.open(DEMO)
    CACHE[:] = [tokenizer]
    halves = [i for i in range(tokenizer.vocab) if "\ufffd" in tokenizer.decode([i])]
    ids = data.draw(st.lists(st.sampled_from([*halves, *[i for i in range(8) if i not in halves]]), max_size=60))
    assert "".join(stream(tokenizer, ids, skip_special=skip)) == tokenizer.decode(ids, skip)


def test_a_long_run_of_no_text_costs_as_much_a_token_as_a_short_one(demo, monkeypatch):
    half = next(i for i in range(demo.vocab) if demo.decode([i]) == "\ufffd")
    decode, most = demo.decode, []
    monkeypatch.setattr(demo, "decode", lambda ids, *more: (most.append(len(ids)), decode(ids, *more))[1])
    d = demo.detokenizer()
    assert len("".join(d.push(half) for _ in range(500))) >= 496 and max(most) <= 8


CONTINUING = st.sampled_from([0x80, 0xBF, 0x9F, 0xE4, 0xBD, 0xA0, 0xF0, 0x98, 0xED, 0xC3, 0xFF, 0x61])


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=40) | st.lists(CONTINUING, max_size=40).map(bytes))
def test_stream_of_any_bytes_equals_lossy_utf8(data):
    """Byte by byte through a byte-level vocabulary; Python's own decoder is the reference."""
    alphabet = dict(zip(BYTES, BYTE_CHARS, strict=True))
    backend = tokenizers.Tokenizer(models.BPE({c: b for b, c in alphabet.items()}, []))
    backend.decoder = decoders.ByteLevel()
    tokenizer = Tokenizer(backend, {}, {})
    d, out = tokenizer.detokenizer(), ""
    for n, byte in enumerate(data, 1):
        out += d.push(byte)
        whole = data[:n].decode("utf-8", errors="replace")
        assert whole.startswith(out)
        # everything before the replacement characters at the end is out already
        assert len(out) >= len(whole.rstrip("\ufffd"))
        assert len(whole) - len(out) <= 4  # nothing is waited for longer than a character may take
    assert out + d.flush() == data.decode("utf-8", errors="replace")


# The byte-level alphabet: printable latin-1 stands for itself, other bytes for characters from 256 on.
BYTES = [*range(33, 127), *range(161, 173), *range(174, 256)]
BYTE_CHARS = [chr(b) for b in BYTES]
OTHERS = [b for b in range(256) if b not in BYTES]
BYTE_CHARS += [chr(256 + i) for i in range(len(OTHERS))]
BYTES += OTHERS


def test_stream_with_byte_fallback_and_leading_spaces():
    """A SentencePiece-like vocabulary: ▁ for a space, the first one stripped, and one token per byte for rare characters."""
    pieces = ["<unk>", *(f"<0x{b:02X}>" for b in range(256)), "▁", "▁he", "llo", "a", "▁a"]
    backend = tokenizers.Tokenizer(models.BPE({p: i for i, p in enumerate(pieces)}, [], unk_token="<unk>", byte_fallback=True))
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer = Tokenizer(backend, {}, {})
    rng = random.Random(0)
    for _ in range(200):
        ids = []
        for _ in range(rng.randrange(12)):
            if rng.random() < 0.5:
                ids += [1 + b for b in rng.choice("é漢🙂ü").encode()]
            else:
                ids.append(rng.randrange(257, len(pieces)))
        parts = stream(tokenizer, ids)
        assert "".join(parts) == tokenizer.decode(ids)
        assert not any("\ufffd" in part for part in parts)


def refused(directory, *words, **kw):
    with pytest.raises(MkvizError) as caught:
        Tokenizer.open(directory, **kw)
    message = str(caught.value)
    assert "\n" not in message
    for word in words:
        assert word in message, message


def test_refuses_missing_file(tmp_path):
    refused(tmp_path, str(tmp_path / "tokenizer.json"), "no such file")


@pytest.mark.parametrize("text", ["{", "{}", "[]"])
def test_refuses_corrupt_file(tmp_path, text):
    (tmp_path / "tokenizer.json").write_text(text)
    refused(tmp_path, "tokenizer.json", "not a tokenizer")


def test_refuses_more_tokens_than_the_model_has():
    refused(DEMO, "up to 8191", "vocab_size 8000", vocab=8000)
    assert Tokenizer.open(DEMO, vocab=8192).vocab == 8192


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"eos_token": "<|nowhere|>"}, ["eos_token '<|nowhere|>'"]),
        ({"eos_token": 7}, ["eos_token 7"]),
        ({"added_tokens_decoder": {"5": "<s>"}}, ["added_tokens_decoder.5", "'<s>'", "id 1"]),
        ({"added_tokens_decoder": ["<s>"]}, ["added_tokens_decoder", "malformed"]),
        ({"added_tokens_decoder": {"5": {"special": True}}}, ["added_tokens_decoder.5"]),
        ({"chat_template": 5}, ["chat_template"]),
    ],
)
def test_refuses_config(model, config, words):
    refused(model(**config), "tokenizer_config.json", *words)


def test_refuses_lone_surrogates(demo):
    with pytest.raises(MkvizError, match="half a character at position 2"):
        demo.encode("ab\ud800")


def test_other_threads_run_while_a_long_text_is_encoded(demo):
    """Else every stream of a server would stand still for as long as somebody's prompt takes to read."""
    begun, ended, turns = threading.Event(), threading.Event(), 0

    def encode():
        begun.set()
        demo.encode("ab " * 200_000)
        ended.set()

    thread = threading.Thread(target=encode)
    thread.start()
    begun.wait()
    while not ended.is_set():
        turns += 1
        time.sleep(0.001)
    thread.join()
    assert turns > 10  # a thread that lets nobody run leaves one or two, before it begins and after its end


def test_works_without_tokenizer_config(tmp_path):
    shutil.copy(DEMO / "tokenizer.json", tmp_path)
    mine = Tokenizer.open(tmp_path)
    assert mine.decode(mine.encode("x = 1")) == "x = 1"
    assert (mine.eos, mine.special, mine.chat_templates) == ((), {}, {})
