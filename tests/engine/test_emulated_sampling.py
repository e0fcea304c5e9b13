"""SAMPLE and PICK of the kernel, on a CPU, against the rule of engine/pick.py: token by token, or left to the host."""

import ctypes

import numpy as np
import pytest
from emulated import compile_host

from engine.cuda import abi
from engine.cuda.asks import sampling_of, told_of
from engine.cuda.backend import kernel_defines
from engine.pick import COLDEST, HOTTEST, logprobs, pick, weigh
from engine.sampling import SamplingParams

HOST = -1  # a row that is left to the host


class Picker:
    """Rows of f32[rows, vocab] logits, a request each, through the device's tasks."""

    def __init__(self, logits: np.ndarray, asks: list[SamplingParams], tile: int = 128, parts: int = 4):
        self.rows, self.vocab = logits.shape
        self.tiles = -(-self.vocab // tile)
        padded = np.full((self.rows, self.tiles * tile), -np.inf, np.float32)
        padded[:, : self.vocab] = logits
        self.arrays = {
            "logits": np.ascontiguousarray(logits), "tile_max": padded.reshape(self.rows, self.tiles, tile).max(2),
            "sampling": np.array([sampling_of(a) for a in asks]), "told": np.zeros(self.rows, abi.TOLD),
            "tile_sums": np.full((self.rows, self.tiles), 2**60, np.uint64),
            "part_sums": np.full((self.rows, 2, parts), 2**60, np.uint64),
            "candidates": np.full((self.rows, abi.CANDIDATES, 2), 77, np.uint32),
            "weighed": np.full((self.rows, abi.CANDIDATES, 2), 99, np.uint64), "cursor": np.zeros(self.rows, np.uint32),
        }  # fmt: skip
        self.params = np.zeros(1, abi.PARAMS)
        for name, array in self.arrays.items():
            self.params[name] = array.ctypes.data
        for name, value in {"rows": self.rows, "vocab": self.vocab, "head_tiles": self.tiles, "head_tile": tile,
                            "sample_parts": parts}.items():  # fmt: skip
            self.params[name] = value

    def __call__(self, position: int) -> list[int]:
        """The token of each row r at position + r."""
        library = compile_host("emulator.cpp", kernel_defines(32, 0, sampling=True))
        picked = np.zeros(self.rows, np.int32)
        library.emulate_picks(ctypes.c_void_p(self.params.ctypes.data), position, ctypes.c_void_p(picked.ctypes.data))
        assert not self.arrays["cursor"].any(), "ready for the next step"
        return picked.tolist()


FILTERS = [
    {}, {"temperature": 0.3}, {"min_p": 0.05}, {"min_p": 1.0}, {"top_k": 1}, {"top_k": 40}, {"top_k": 7, "top_p": 0.8},
    {"top_p": 0.9}, {"top_p": 0.5, "min_p": 0.1}, {"top_p": 1e-12}, 
    {"temperature": 2.5, "top_k": 150, "top_p": 0.99, "min_p": 0.01}, {"temperature": 1e-40},
    {"temperature": 1e300, "top_k": 3},
]  # fmt: skip


@pytest.mark.parametrize(("vocab", "tile", "parts"), [(97, 16, 4), (1031, 16, 7), (5000, 48, 64), (70_000, 128, 16)])
def test_picks_are_those_of_the_rule(vocab, tile, parts):
    rng = np.random.default_rng(vocab)
    logits = rng.normal(0, 3, (len(FILTERS), vocab)).astype(np.float32)
    asks = [SamplingParams(**{"temperature": 0.8} | f, seed=int(rng.integers(2**63)), choice=i) for i, f in enumerate(FILTERS)]
    picker = Picker(logits, asks, tile, parts)
    left = 0
    for position in (0, 1, 900):
        for row, (ask, token) in enumerate(zip(asks, picker(position), strict=True)):
            want = pick(logits[row], ask, position + row)
            left += token == HOST
            assert token in (want, HOST), (ask, position)
            assert token == want or ask.top_k > 100 or ask.top_p < 1, f"no need to leave {ask} to the host"
    assert left <= len(FILTERS)  # of 39: nuclei of these flat logits may be larger than the candidates reach


def test_ties_infinities_and_zeros():
    """Equal logits by id, -0 as 0, minus infinity never; against the rule, over all filters."""
    rng = np.random.default_rng(3)
    values = np.array([0.0, -0.0, 1.0, 1.5, 2.0, -3.0, -40.0, -np.inf], np.float32)
    logits = values[rng.integers(0, len(values), (len(FILTERS), 300))]
    asks = [SamplingParams(**{"temperature": 1.0} | f, seed=i) for i, f in enumerate(FILTERS)]
    picker = Picker(logits, asks, 16, 5)
    for position in range(8):
        want = [pick(row, ask, position + i) for i, (row, ask) in enumerate(zip(logits, asks, strict=True))]
        assert picker(position) == want


def test_a_peaked_row_never_needs_the_host():
    """Logits as a language model's: a few tokens hold nearly all, in a vocabulary whose first tiles hold the likely ones."""
    rng = np.random.default_rng(5)
    logits = (rng.gumbel(0, 2.0, (8, 32_000)) - 2.5 * np.log(np.arange(32_000) + 1)).astype(np.float32)
    asks = [SamplingParams(temperature=t, top_p=p, top_k=k, seed=9) for t in (0.7, 1.0) for p, k in
            ((0.95, 0), (0.9, 50), (0.99, 0), (1.0, 100))]  # fmt: skip
    picker = Picker(logits, asks, 128, 64)
    for position in range(4):
        assert picker(position) == [pick(row, ask, position + i) for i, (row, ask) in enumerate(zip(logits, asks, strict=True))]


def test_rows_that_ask_for_nothing_stay_greedy():
    logits = np.random.default_rng(1).normal(0, 3, (3, 500)).astype(np.float32)
    asks = [SamplingParams(), SamplingParams(temperature=1.0, seed=4), SamplingParams(top_k=5)]
    assert Picker(logits, asks)(0) == [int(logits[0].argmax()), pick(logits[1], asks[1], 1), int(logits[2].argmax())]


@pytest.mark.parametrize("tops", [0, 3, 20])
def test_log_probabilities(tops):
    logits = np.random.default_rng(tops).normal(0, 4, (4, 3000)).astype(np.float32)
    logits[3] = np.round(logits[3])  # ties among those that are told
    asks = [SamplingParams(logprobs=tops), SamplingParams(temperature=1.0, logprobs=tops, seed=1),
            SamplingParams(temperature=0.4, top_k=30, top_p=0.9, logprobs=tops, seed=2),
            SamplingParams(temperature=1.5, top_k=9, logprobs=tops, seed=3)]  # fmt: skip
    picker = Picker(logits, asks, 64, 3)
    for row, (ask, token) in enumerate(zip(asks, picker(5), strict=True)):
        assert token == (pick(logits[row], ask, 5 + row) if ask.temperature else int(logits[row].argmax()))
        assert told_of(picker.arrays["told"][row]) == logprobs(logits[row], token, tops)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_logits_without_a_largest_are_left_to_the_host(bad):
    logits = np.random.default_rng(2).normal(0, 3, (3, 400)).astype(np.float32)
    logits[0, 399] = logits[2, 17] = bad
    asks = [SamplingParams(temperature=1.0), SamplingParams(temperature=1.0), SamplingParams(logprobs=2)]
    assert Picker(logits, asks, 16)(0) == [HOST, pick(logits[1], asks[1], 1), HOST]


def test_more_candidates_than_there_is_room_for():
    """1,100 equal tokens at the top: no threshold parts them, so a cut among them is the host's; a draw from all is not."""
    logits = np.full((2, 4000), -5, np.float32)
    logits[:, 1000:2100] = 3
    asks = [SamplingParams(temperature=1.0, top_k=5), SamplingParams(temperature=1.0, min_p=0.5)]
    assert Picker(logits, asks)(0) == [HOST, pick(logits[1], asks[1], 1)]


@pytest.mark.parametrize(
    "kind", [{"top_k": 20, "logprobs": 20}, {"top_p": 0.5, "logprobs": 3}, {"top_p": 0.97}, {"top_p": 0.9, "min_p": 0.4}]
)
@pytest.mark.parametrize("spread", [1.0, 0.05, 0.0])
def test_more_candidates_than_registers_hold(kind, spread):
    """Three tiles hold 384 likely tokens, so that a threshold by the tiles' maxima leaves more than 192 candidates: the largest
    of them say it all, or most of them are needed, or all are equal."""
    rng = np.random.default_rng(8)
    logits = rng.normal(0, 1, (2, 70_000)).astype(np.float32)
    logits[:, 256:640] = rng.normal(20, spread, (2, 384))
    asks = [SamplingParams(**{"temperature": 0.8, "seed": i} | kind) for i in range(2)]
    picker = Picker(logits, asks, 128, 16)
    for position in range(4):
        assert picker(position) == [pick(row, ask, position + i) for i, (row, ask) in enumerate(zip(logits, asks, strict=True))]
        for row, ask in zip(range(2), asks, strict=True):
            if ask.logprobs:
                token = pick(logits[row], ask, position + row)
                assert told_of(picker.arrays["told"][row]) == logprobs(logits[row], token, ask.logprobs)


@pytest.mark.parametrize(
    "temperature", [COLDEST, 1e-20, 1e-18, 1e-12, 0.1, 0.3, 0.7, 0.8, 1.0, 1.3, 1.9999999, 2.5, 100.0, 1e12, HOTTEST]
)
def test_weights_to_the_last_bit(temperature):
    """The device divides by a reciprocal, with corrections; the rule divides."""
    t = np.float32(temperature)
    rng = np.random.default_rng(int(t.view(np.uint32)))
    library = compile_host("emulator.cpp", kernel_defines(32, 0, sampling=True))
    for top in np.array([0, -7.3, 19.8], np.float32):
        with np.errstate(over="ignore", under="ignore"):
            below = [rng.uniform(0, 30, 40_000).astype(np.float32) * t, rng.exponential(1, 20_000).astype(np.float32) * t,
                     np.float32(10) ** rng.uniform(-45, 38, 5_000).astype(np.float32), [0, np.inf, 1e-45, 3e38]]  # fmt: skip
            logits = (top - np.concatenate(below, dtype=np.float32)).astype(np.float32)
            ids, weights = weigh(logits, temperature)
        assert top or len(np.unique(weights)) > 10_000
        want, sampled, picked = np.zeros((3, len(logits)), np.uint64)
        want[ids] = weights
        at = [ctypes.c_void_p(a.ctypes.data) for a in (logits, sampled, picked)]
        library.emulate_weights(at[0], len(logits), ctypes.c_float(top), ctypes.c_float(t), at[1], at[2])
        assert np.array_equal(picked, want) and np.array_equal(sampled, want)
