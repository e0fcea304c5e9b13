"""The numpy twins of the structs in ``cuda/abi.h``; :func:`assertions` is the C++ that checks one against the other."""

from __future__ import annotations

import numpy as np

from mkviz.record import LIVE, RECORD

CHUNK, CHUNK_K16, FRAGMENT = 16384, 32, 512  # bytes, k16 fragments, bytes
ROWS = 8  # columns of a tensor-core tile
BUCKETS = (8, 16, 32, 64, 128, 256)  # rows of a step that a kernel is compiled for, besides that for one row
USUAL_ROWS = 64  # of the widest of them, where nobody asks for more: the speed of those beyond has not been measured
MATH_WARPS, FEEDERS, STORERS = 8, 3, 4
WARPS = MATH_WARPS + 1 + FEEDERS + STORERS
ROLES = ("loader", "feeder", "math", *(f"storer {i}" for i in range(STORERS)))
CANDIDATES, MAX_TOLD = 1024, 20  # tokens of a row among which top_k and top_p cut; told beside the picked one
DRAWN, TOLD_BIT = 1, 2  # Sampling.mode
HEAD_BLOCKS = 8  # 16-row blocks of the largest head
MAX_TOP_K = 16
NO_COUNTER = 0xFFFFFFFF
ROUTERS = ("sigmoid", "softmax_chosen", "softmax_all")  # Params.router_kind


def _struct(*fields: tuple) -> np.dtype:
    """A packed struct; fields are (name, type) or (name, type, count)."""
    return np.dtype([f if len(f) == 2 else (f[0], f[1], (f[2],)) for f in fields])


def _words(names: str, kind: str) -> list[tuple[str, str]]:
    return [(name, kind) for name in names.split()]


TASK = _struct(
    *_words("id op layer slot tile a b c d k16 blocks tail", "<u4"), *_words("weight stride weight2", "<u8"),
    *_words("waits raises", "<u4"), ("wait", "<u4", 2), ("need", "<u4", 2), ("wait_arrivals", "<u4", 2), ("raise", "<u4", 2),
    *_words("order routed storer next", "<u4"),
)  # fmt: skip
LAYER = _struct(
    *_words("norm norm2 qkv_bias o_bias gate_bias up_bias down_bias", "<u8"),
    *_words("rope window splits routed qkv_counter qkv_arrivals router_counter router_arrivals qkv_step pad0", "<u4"),
    ("head_norm", "<u8"),
)  # fmt: skip
SAMPLING = _struct(
    ("mode", "<u4"), ("temperature", "<f4"), *_words("top_k tops", "<u4"), ("top_p", "<f8"), *_words("min_weight seed", "<u8"),
    *_words("choice pad", "<u4"),
)  # fmt: skip
TOLD = _struct(
    ("weight", "<u8"), *_words("top logit", "<f4"), *_words("count pad", "<u4"), ("token", "<u4", MAX_TOLD),
    ("logits", "<f4", MAX_TOLD),
)  # fmt: skip
ROLE_STATE = _struct(*_words("task state counter target", "<u4"))
ABORT = _struct(*_words("word sm role task counter value target step", "<u4"))
PARAMS = _struct(
    *_words("tasks task_ptr layers counters abort stop go embed head final_norm rope_table token position first sequence wants "
            "page_table kv x mid q part_out part_max part_sum attention router_logits expert_hidden dense_hidden shared_hidden "
            "logits tile_max tile_arg greedy routes records live limit states", "<u8"),
    *_words("hidden heads kv_heads head_dim experts top_k expert_k16 dense_k16 shared_k16 vocab layer_count rows table_width "
            "splits head_tiles ring_capacity epoch steps step_low poll_budget parallel centre interleaved router_kind "
            "renormalise shared_average stages x_stride picked_counter picked_arrivals step_high delay_seed", "<u4"),
    *_words("eps logit_scale attention_scale", "<f4"), ("held", "<u4"),
    *_words("head_scratch sampling told tile_sums part_sums candidates weighed cursor", "<u8"),
    *_words("head_tile sample_parts tag pad0", "<u4"), *_words("normed storer_first chosen chosen_weight", "<u8"),
)  # fmt: skip

STRUCTS = {
    "Task": TASK, "Layer": LAYER, "RoleState": ROLE_STATE, "Abort": ABORT, "Params": PARAMS, "Sampling": SAMPLING,
    "Told": TOLD, "Record": RECORD, "Live": LIVE,
}  # fmt: skip


def route_slots(bucket: int) -> int:
    """Slots of a layer in the routes table of the kernel for ``bucket`` rows."""
    return 128 if bucket <= ROWS else 256


def assertions() -> str:
    """C++ that compiles only where ``abi.h`` has the sizes, offsets and constants of this file."""
    # older NVRTC knows no offsetof in any spelling but that of the compiler inside it
    lines = ['#include "abi.h"', "#define at(S, f) __INTADDR__(&((S*)0)->f)"]
    for name, dtype in STRUCTS.items():
        lines.append(f'static_assert(sizeof({name}) == {dtype.itemsize}, "size of {name}");')
        for field, (_, offset, *_) in dtype.fields.items():
            if not field.startswith(("pad", "unused")):
                lines.append(f'static_assert(at({name}, {field}) == {offset}, "{name}.{field}");')
    for name, value in (("CHUNK", CHUNK), ("CHUNK_K16", CHUNK_K16), ("FRAGMENT", FRAGMENT), ("NO_COUNTER", NO_COUNTER),
                        ("MAX_TOP_K", MAX_TOP_K), ("CANDIDATES", CANDIDATES), ("MAX_TOLD", MAX_TOLD), ("DRAWN", DRAWN),
                        ("TOLD", TOLD_BIT)):  # fmt: skip
        lines.append(f'static_assert({name} == {value}u, "{name}");')
    return "\n".join(lines) + "\n"
