"""Bytes of a decode step, worked by hand from the shapes' published sizes."""

import numpy as np
import pytest

import mkviz.step_bytes
from engine.bench.step_bytes import step_bytes
from engine.builder import StepShape, build_graph
from engine.shapes import shape
from engine.tiling import SPLIT, Tiling
from mkviz.protocols import Row, StepInfo

# North Mini Code, elements: QKV (32 + 2 * 4) * 128 * 2048 and O 2048 * 4096 of a layer
QKV, O_PROJ, ROUTER = 10_485_760, 8_388_608, 262_144
EXPERT = 3 * 768 * 2048  # 4,718,592
DENSE = 3 * 3072 * 2048  # 18,874,368
HEAD = 262_144 * 2048  # 536,870,912
ALWAYS = 49 * (QKV + O_PROJ) + 48 * ROUTER + DENSE + HEAD  # 1,493,172,224: 2.986 GB


def test_north_mini_at_batch_1():
    """6.61 GB of weights and (13 n + 36 min(n, 4096)) * 2,048 bytes of KV: 7.13 GB at 8K."""
    config = shape("north-mini-code")
    for n in (1, 128, 4095, 4096, 4097, 8192, 262_144):
        counted = step_bytes(config, [n], 48 * 8)
        assert counted.weights == 2 * (ALWAYS + 48 * 8 * EXPERT) == 6_610_223_104
        assert counted.kv == (13 * n + 36 * min(n, 4096)) * 2048
        assert counted.embedding == 4096
    assert round(step_bytes(config, [8192], 48 * 8).total / 1e9, 2) == 7.13


def test_north_mini_at_batch_8_with_the_experts_that_were_touched():
    """At 8K vLLM's step touched 51.92 experts a layer: 30.70 GB by another count of the same things."""
    counted = step_bytes(shape("north-mini-code"), [8192] * 8, 48 * 51.92)
    assert counted.weights == pytest.approx(2 * (ALWAYS + 48 * 51.92 * EXPERT))
    assert counted.embedding == 8 * 4096
    assert round(counted.total / 1e9, 1) == 30.7


def test_rows_of_several_lengths_each_read_their_own():
    counted = step_bytes(shape("north-mini-code"), [1, 5000], 0)
    assert counted.kv == (13 * 5001 + 36 * 4097) * 2048


def test_llama_1b():
    """1.236 G parameters, all read, the tied embedding as the head; K and V of 8 heads of 64 in 16 layers: 32 KiB a key."""
    counted = step_bytes(shape("llama-3.2-1b"), [128])
    layer = 2048 * 2048 * 2 + 2 * 512 * 2048 + 3 * 8192 * 2048
    assert counted.weights == 2 * (16 * layer + 128_256 * 2048) == 2_471_493_632
    assert counted.kv == 128 * 32_768


@pytest.mark.parametrize(
    ("rows", "keys"), [(8, [1, 300, 700]), (16, [1, 300, 700, 64, 1000]), (64, [900 - 20 * i for i in range(35)])]
)
def test_a_graph_counts_the_keys_of_each_row_of_a_task(rows, keys):
    """One attention task has two rows of a step of up to 16, eight of one of 64; each row's pages are read by themselves."""
    config = shape("llama-3.2-1b", 2)
    built = build_graph(config, StepShape(rows, 4), Tiling.for_tensor_cores(config, 132))
    graph, (first, end, _, split) = built.graph, built.args.T
    longest = [max(keys[a:b], default=0) for a, b in zip(first.tolist(), end.tolist(), strict=True)]
    ran = (graph.op == graph.ops.index("attention")) & (split * SPLIT < np.array(longest))
    info = StepInfo(0, 0, 0, 100, [Row(i, i, n - 1, 5, "decode") for i, n in enumerate(keys)])
    read = mkviz.step_bytes.step_bytes(graph, info)[ran].sum()
    assert read == pytest.approx(step_bytes(config, keys).kv, rel=1e-3)  # bytes of a task are whole
