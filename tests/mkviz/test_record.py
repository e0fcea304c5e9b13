"""The layout of records and live lines, against offsets written out by hand."""

import numpy as np
import pytest

from mkviz.record import EVENT, LIVE, NO_WAIT, RECORD, STATES, TASK_MASK, pack_tail


def test_record_is_two_16_byte_halves_at_the_designed_offsets():
    assert RECORD.itemsize == 32
    offsets = {name: RECORD.fields[name][1] for name in RECORD.names}
    assert offsets == {"claim": 0, "ready": 4, "begin": 8, "seq": 12, "end": 16, "publish": 20, "task": 24, "tail": 28}
    assert all(RECORD.fields[name][0] == np.dtype("<u4") for name in RECORD.names)


def test_live_line_is_one_cache_line():
    assert LIVE.itemsize == 128
    offsets = {name: LIVE.fields[name][1] for name in LIVE.names}
    assert offsets == {
        "head": 0, "step": 8, "task": 16, "state": 20, "since": 24, "counter": 32, "target": 36,
        "anchor_ns": 40, "anchor_cycles": 48, "anchor_step": 56,
    }  # fmt: skip
    assert len(STATES) == 5


def test_task_ids_and_steps_share_a_word():
    assert TASK_MASK == 0x3FFFFF  # 22 bits, the other 10 are the step's
    assert EVENT["step"] == np.int64 and EVENT["claim"] == np.int64


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ((NO_WAIT, 0, 0, 0), 0x00000FFF),
        ((1, 0xF, 0, 0), 0x0000F001),
        ((0, 0, 0x31, 0), 0x00310000),
        ((0, 0, 0, 0xFE), 0xFE000000),
        ((0x123, 0x4, 0x56, 0x178), 0x78564123),  # a lap is kept modulo 256
    ],
)
def test_tail_packs_from_the_low_bit_up(fields, word):
    assert pack_tail(*fields) == word
