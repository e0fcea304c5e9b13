"""Sampling ops of the CPU interpreter: the twins of SAMPLE and PICK on a GPU (the rule is :mod:`engine.pick`'s).

Here every row is picked in full: what the kernel keeps candidates for, and leaves to the host where they do not reach, is a
search over the whole vocabulary.
"""

from __future__ import annotations

import numpy as np
from numba import cfunc

from engine.cpu.atomics import bits_from_f32
from engine.cpu.binding import load_binding
from engine.cpu.compiled import inner
from engine.cpu.math import exp
from engine.cpu.ops import SIGNATURE, row_count
from engine.cpu.words import f32, f64, i32, i64, u64

DRAWN, TOLD = 1, 2  # of a row's mode: by chance; with log-probabilities
_ZERO, _ONE, _LOW = np.uint64(0), np.uint64(1), np.uint64(0xFFFFFFFF)


@inner()
def _weigh(logit, top, temperature):
    x = (logit - top) / temperature
    if not x >= np.float32(-28):
        return _ZERO
    return np.uint64(exp(x) * np.float32(1 << 40))


@inner()
def _key(logit, token):
    """The rule's order as a u64: the larger logit first, then the lower id."""
    bits = np.uint64(bits_from_f32(logit + np.float32(0)))  # -0 equals 0
    bits = ~bits & _LOW if bits >> np.uint64(31) else bits | np.uint64(0x80000000)
    return (bits << np.uint64(32)) | (~np.uint64(token) & _LOW)


@inner()
def _times(a, b):
    """(high, low) of u64 · u64."""
    half = np.uint64(32)
    a0, a1, b0, b1 = a & _LOW, a >> half, b & _LOW, b >> half
    middle = a1 * b0 + (a0 * b0 >> half)
    other = a0 * b1 + (middle & _LOW)
    return a1 * b1 + (middle >> half) + (other >> half), a * b


@inner()
def _draw(seed, position, choice):
    c0, c1, c2, c3, half = np.uint64(position), np.uint64(choice), _ZERO, _ZERO, np.uint64(32)
    k0, k1 = np.uint64(seed) & _LOW, np.uint64(seed) >> half
    for _ in range(10):
        a, b = np.uint64(0xD2511F53) * c0, np.uint64(0xCD9E8D57) * c2
        c0, c1, c2, c3 = (b >> half) ^ c1 ^ k0, b & _LOW, (a >> half) ^ c3 ^ k1, a & _LOW
        k0, k1 = (k0 + np.uint64(0x9E3779B9)) & _LOW, (k1 + np.uint64(0xBB67AE85)) & _LOW
    return (c1 << half) | c0


@inner()
def _sum(logits, top, temperature, least, floor, counted):
    """Of the tokens of key ``least`` or more and weight ``floor`` or more: their weights, or how many they are."""
    total = _ZERO
    for i in range(logits.shape[0]):
        w = _weigh(logits[i], top, temperature)
        if w >= floor and w > _ZERO and _key(logits[i], i) >= least:
            total += _ONE if counted else w
    return total


@inner()
def _cut(logits, top, temperature, need, counted):
    """Key of the last token of the shortest beginning, in the rule's order, whose weights (or numbers) sum up to ``need``."""
    least = _ZERO
    for bit in range(63, -1, -1):
        probe = least | (_ONE << np.uint64(bit))
        if _sum(logits, top, temperature, probe, _ONE, counted) >= need:
            least = probe
    return least


@cfunc(SIGNATURE, cache=True)
def sample(binding, scratch, serial, layer, slot, tile, first, end, part, parts):
    """Weights of every ``parts``-th tile of the LM head, of rows that are drawn or asked for log-probabilities."""
    b = load_binding(binding)
    worked = 0
    for r in range(first, min(end, row_count(b))):
        mode = i64(b.ask, (b.rows, 6))[r, 0]
        if mode == 0:
            continue
        worked = 1
        logits, tile_max = f32(b.logits, (b.rows, b.vocab))[r], f32(b.tile_max, (b.rows, b.head_tiles))[r]
        temperature, top, model = np.float32(f64(b.ask_share, (b.rows, 2))[r, 0]), tile_max[0], _ZERO
        for t in range(b.head_tiles):
            top = max(top, tile_max[t])
        for t in range(part, b.head_tiles, parts):
            total = _ZERO
            for i in range(t * b.head_tile, min((t + 1) * b.head_tile, b.vocab)):
                if not (logits[i] < np.float32(np.inf)):
                    i32(b.bad, (b.rows,))[r] = 1
                if mode & DRAWN:
                    total += _weigh(logits[i], top, temperature)
                if mode & TOLD:
                    model += _weigh(logits[i], top, np.float32(1))
            u64(b.tile_sums, (b.rows, b.head_tiles))[r, t] = total
        u64(b.model_sums, (b.rows, b.sample_parts))[r, part] = model
    return worked


@inner()
def _drawn(b, r, position, greedy):
    """The token of row r, whose greedy one is known; -1 where it has no largest logit."""
    ask = i64(b.ask, (b.rows, 6))[r]
    logits = f32(b.logits, (b.rows, b.vocab))[r]
    top = logits[greedy]
    if i32(b.bad, (b.rows,))[r] or not top > np.float32(-np.inf):
        return -1
    if ask[0] & TOLD:
        total = _ZERO
        for part in range(b.sample_parts):
            total += u64(b.model_sums, (b.rows, b.sample_parts))[r, part]
        u64(b.told, (b.rows,))[r] = total
    if not ask[0] & DRAWN:
        return greedy
    share = f64(b.ask_share, (b.rows, 2))[r]
    temperature, floor, least, total = np.float32(share[0]), np.uint64(ask[2]), _ZERO, _ZERO
    for t in range(b.head_tiles):
        total += u64(b.tile_sums, (b.rows, b.head_tiles))[r, t]
    if ask[1] and _sum(logits, top, temperature, _ZERO, _ONE, True) >= np.uint64(ask[1]):
        least = _cut(logits, top, temperature, np.uint64(ask[1]), True)
        total = _sum(logits, top, temperature, least, _ONE, False)
    if share[1] < 1:
        need = np.uint64(np.ceil(share[1] * np.float64(total)))
        least = max(least, _cut(logits, top, temperature, min(max(need, _ONE), total), False))
    total = _sum(logits, top, temperature, least, floor, False)
    left, _ = _times(_draw(ask[3], position, ask[4]), total)
    for i in range(b.vocab):
        w = _weigh(logits[i], top, temperature)
        if w >= floor and w > _ZERO and _key(logits[i], i) >= least:
            if w > left:
                return i
            left -= w
    return -1


@cfunc(SIGNATURE, cache=True)
def pick(binding, scratch, serial, layer, slot, tile, first, end, _c, _d):
    """Greedy token: the best of the tiles' best, the lowest id among equals; or the one that a row asks for."""
    b = load_binding(binding)
    wants, greedy = i32(b.wants, (b.rows,)), i32(b.greedy, (b.rows,))
    tile_max, tile_arg = f32(b.tile_max, (b.rows, b.head_tiles)), i32(b.tile_arg, (b.rows, b.head_tiles))
    worked = 0
    for r in range(first, min(end, row_count(b))):
        if wants[r]:
            worked, best = 1, 0
            for t in range(1, b.head_tiles):
                if tile_max[r, t] > tile_max[r, best]:
                    best = t
            greedy[r] = tile_arg[r, best]
            if i64(b.ask, (b.rows, 6))[r, 0]:
                greedy[r] = _drawn(b, r, i32(b.position, (b.rows,))[r], np.int64(greedy[r]))
    return worked
