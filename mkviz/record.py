"""Record: the 32 bytes that one executed task leaves, and what they become after decoding.

The truth of the layout is ``RECORD``; the C struct in ``cuda/abi.h`` is checked against it by a test that compiles.
"""

from __future__ import annotations

import numpy as np

RECORD = np.dtype(
    {
        "names": ["claim", "ready", "begin", "seq", "end", "publish", "task", "tail"],
        "formats": ["<u4"] * 8,
        "offsets": [0, 4, 8, 12, 16, 20, 24, 28],
        "itemsize": 32,
    }
)
"""As in device memory.  ``claim``: low word of the global timer (ns); ``ready``, ``begin``, ``end``, ``publish``: SM cycles
since claim, saturating; ``seq``: index in the ring's life + 1 (0: never written); ``task``: 22 bits of task id, then the low 10
bits of the step above them; ``tail``: last wait (12 bits), ring fill (4), flags (8), lap (8), from the low bit up."""

TASK_BITS, STEP_BITS = 22, 10
TASK_MASK, STEP_MASK = (1 << TASK_BITS) - 1, (1 << STEP_BITS) - 1
NO_WAIT = 0xFFF  # last_wait of a task that has no waits

# flags, 8 bits: kind in the low four, then marks
KIND_TASK, KIND_SKIPPED, KIND_PHASES = 0, 1, 2  # a task; a slot without work; the level-2 companion record
KIND_MASK = 0x0F
FLAG_SATURATED = 0x10  # a delta did not fit 32 bits
FLAG_COVERED = 0x20  # no release of its own: publish is its last store or its end
FLAG_BYTES_LAST = 0x40  # what the task waited for last was bytes, not a counter (ready..begin is starved)

LIVE = np.dtype(
    {
        "names": ["head", "step", "task", "state", "since", "counter", "target", "anchor_ns", "anchor_cycles", "anchor_step"],
        "formats": ["<u8", "<u8", "<u4", "<u4", "<u8", "<u4", "<u4", "<u8", "<u8", "<u8"],
        "offsets": [0, 8, 16, 20, 24, 32, 36, 40, 48, 56],
        "itemsize": 128,
    }
)
"""The live line of a role warp, a cache line of its own.  ``head``: records written in the ring's life, stored with release
after the record; ``step``: full number of the step it is in; ``task`` (``NO_TASK``: none), ``state``, ``since`` (ns) and, while
waiting, ``counter`` and ``target``; the last anchor: the same instant in global ns and SM cycles, and the step."""
NO_TASK = 0xFFFFFFFF
STATES = ("idle", "claimed", "waiting", "running", "storing")

EVENT = np.dtype([
    ("step", "<i8"), ("claim", "<i8"), ("ready", "<i8"), ("begin", "<i8"), ("end", "<i8"), ("publish", "<i8"),
    ("task", "<u4"), ("sm", "<u2"), ("last_wait", "<u2"), ("role", "u1"), ("fill", "u1"), ("flags", "u1"), ("pad", "u1"),
])  # fmt: skip
"""A decoded record: integer ns on the trace's clock, the full step number, SM and role from the ring's table.
``last_wait`` indexes the task's own waits (``NO_WAIT``: none).  This is what drains, traces, analyses and views pass around."""


def pack_tail(last_wait: int, fill: int, flags: int, lap: int) -> int:
    return (last_wait & 0xFFF) | (fill & 0xF) << 12 | (flags & 0xFF) << 16 | (lap & 0xFF) << 24
