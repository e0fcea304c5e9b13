"""Palette: which colour an op has, everywhere and always, and how image frames become colours.

Eight hues by Okabe and Ito, told apart by people with any common colour blindness, then the same hues lighter and darker.
Well-known ops have fixed places, others one that follows from their name, so that an op keeps its colour between runs,
sources and sessions.  Waiting is grey and never a hue.
"""

from __future__ import annotations

import zlib

import numpy as np

HUES = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#8A6FDF")
WAIT = "#8d949e"
CAUSES = {  # of SM time and of a step's: waiting and handing over in greys, loss in hues.  "filled" is work of other ops, "its
    # bytes" what a step reads at full speed; they are never in one plot
    "compute": HUES[0], "filled": HUES[4], "publish": HUES[2], "wait": WAIT, "hop": "#5d6673", "starved": HUES[1],
    "overhead": HUES[3], "tail": HUES[5], "unknown": HUES[6], "its bytes": HUES[4],
}  # fmt: skip

# of the ops people know: neighbours in time are far apart, kin share a hue (8 and 16 places on it is lighter and darker)
_PLACES = {
    "qkv": 0, "attention": 1, "merge": 9, "o": 2, "o_proj": 2, "router": 3, "pick": 11, "expert_up": 4, "shared_up": 20,
    "dense_up": 12, "gate_up": 4, "up": 4, "expert_down": 5, "shared_down": 21, "dense_down": 13, "down": 5, "lm_head": 7,
    "head": 7, "embed": 6, "norm": 22, "top_k": 19, "sample": 17,
}  # fmt: skip

IDLE = 255  # palette index of "nothing", transparent
WAIT_BASE, WAIT_LEVELS = 232, 16
WAIT_WINS = 4  # times as much wait as work, from which on a pixel shows the wait


def _mix(colour: str, other: str, amount: float) -> str:
    a, b = (np.array([int(c[i : i + 2], 16) for i in (1, 3, 5)]) for c in (colour, other))
    return "#" + "".join(f"{round(v):02x}" for v in a + (b - a) * amount)


COLOURS = (*HUES, *(_mix(h, "#ffffff", 0.45) for h in HUES), *(_mix(h, "#000000", 0.4) for h in HUES))


def op_colours(ops: tuple[str, ...]) -> list[str]:
    """A colour per op, which follows from its name.

    A name that clashes with one already placed moves on to the next free colour; well-known names are placed first.  Only
    beyond 24 ops do two share one.
    """
    places: dict[str, int] = {}
    for op in sorted(ops, key=lambda op: (op not in _PLACES, op)):
        first = _PLACES.get(op, zlib.crc32(op.encode()) % len(COLOURS))
        nearest = ((first + shift) % len(COLOURS) for shift in range(len(COLOURS)))
        places[op] = next((place for place in nearest if place not in places.values()), first)
    return [COLOURS[places[op]] for op in ops]


def ramp(stops: tuple[str, ...], n: int) -> list[str]:
    """``n`` colours evenly along the given stops."""
    at = np.linspace(0, len(stops) - 1, n)
    return [_mix(stops[int(t)], stops[min(int(t) + 1, len(stops) - 1)], t - int(t)) for t in at]


def ink(colour: str) -> str:
    """Black or white, whichever reads better on ``colour`` (relative luminance of WCAG 2)."""
    parts = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
    return "#ffffff" if 0.2126 * red + 0.7152 * green + 0.0722 * blue < 0.18 else "#10141a"


LAYER_STOPS = ("#1d3b6f", "#3a6a9b", "#6f9fa6", "#b3b27d", "#f0c645", "#fbe9a0")  # dark blue to light yellow, as cividis runs
SHARE_STOPS = ("#fff3d6", "#f7c872", "#e8902d", "#b85a12", "#6e3209")  # little to much


def _alpha(colour: str, alpha: float) -> str:
    return f"{colour}{round(255 * alpha):02x}"


# of the strips, which show no ops: SMs in the tail, by themselves and paler above those that wait; how full the ring is; what
# is read, on a light page and on a dark one
TAIL, RING, READS = HUES[5], HUES[2], (HUES[0], HUES[4])
TAIL_ABOVE = _alpha(TAIL, 0.28)
STATES = tuple(  # of a request, on a light page and on a dark one
    {"queued": WAIT, "prefill": HUES[1], "decode": decode, "preempted": HUES[5]} for decode in (HUES[0], HUES[4])
)


def image_palette(colours: list[str]) -> tuple[list[str], int]:
    """256 colours for an image of classes, and how many levels each class has.

    Index ``k * levels + level`` is class k, the more opaque the higher the level; from WAIT_BASE on come the levels of waiting.
    """
    levels = max(1, min(12, WAIT_BASE // max(1, len(colours))))
    out = ["#00000000"] * 256
    for k, colour in enumerate(colours[:WAIT_BASE]):
        for level in range(levels):
            out[k * levels + level] = _alpha(colour, 0.3 + 0.7 * (level + 1) / levels)
    for level in range(WAIT_LEVELS):
        out[WAIT_BASE + level] = _alpha(WAIT, 0.06 + 0.44 * (level + 1) / WAIT_LEVELS)
    return out, levels


def image_index(grid: np.ndarray, busy: np.ndarray, wait: np.ndarray, levels: int) -> np.ndarray:
    """u8 palette indices: the dominant class, as opaque as the pixel is busy, or the wait where that is much more.

    A little work in a long wait still shows its colour, faintly: what ran matters more than that most lanes waited.
    """
    level = np.clip(np.ceil(busy * levels) - 1, 0, levels - 1).astype(np.uint8)
    out = np.where(grid == 255, np.uint8(IDLE), grid * np.uint8(levels) + level)
    waits = (wait > WAIT_WINS * busy) | ((grid == 255) & (wait > 0))
    wait_level = np.clip(np.ceil(wait * WAIT_LEVELS) - 1, 0, WAIT_LEVELS - 1).astype(np.uint8)
    return np.where(waits, WAIT_BASE + wait_level, out).astype(np.uint8)


def share_palette() -> list[str]:
    """256 colours for an image of shares: index 0..254 is 0 to 1, 255 is nothing."""
    return [*ramp(SHARE_STOPS, 255), "#00000000"]


def share_index(share: np.ndarray, known: np.ndarray) -> np.ndarray:
    """u8 palette indices of shares 0..1; 255 where ``known`` is false."""
    return np.where(known, np.clip(np.round(share * 254), 0, 254), IDLE).astype(np.uint8)
