"""Packed weights: their order against the PTX ISA, the kernel's product emulated lane by lane, and what each task reads."""

import copy
import ctypes

import ml_dtypes
import numpy as np
import pytest
import torch
from checkpoints import make_checkpoint
from packed import MODELS, packed_model

from engine.checkpoint import Weights
from engine.config import load_config
from engine.cuda import abi
from engine.cuda.pack import fragments, gate_up, pair_rows
from engine.cuda.weights import PackedWeights

CHUNK_K16 = abi.CHUNK // abi.FRAGMENT


def bf16(values) -> np.ndarray:
    return np.asarray(values, np.float32).astype(ml_dtypes.bfloat16)


# -- the layouts of the PTX ISA, "Matrix Fragments for mma.m16n8k16" with .bf16, written out element by element


def a_element(lane: int, i: int) -> tuple[int, int]:
    """(row, column) of element a_i of a lane, 0 <= i < 8."""
    group, thread = lane >> 2, lane % 4
    return group + (0 if i in (0, 1, 4, 5) else 8), 2 * thread + (i & 1) + (0 if i < 4 else 8)


def b_element(lane: int, i: int) -> tuple[int, int]:
    """(row, column) of element b_i of a lane, 0 <= i < 4."""
    return 2 * (lane % 4) + (i & 1) + (0 if i < 2 else 8), lane >> 2


def c_element(lane: int, i: int) -> tuple[int, int]:
    """(row, column) of element c_i of a lane, 0 <= i < 4."""
    return (lane >> 2) + (0 if i < 2 else 8), 2 * (lane % 4) + (i & 1)


def gather(registers: np.ndarray, element, shape: tuple[int, int]) -> np.ndarray:
    """The matrix that the lanes' registers [..., 32, n] hold."""
    where = [np.ravel_multi_index(element(lane, i), shape) for lane in range(32) for i in range(registers.shape[-1])]
    assert sorted(where) == list(range(shape[0] * shape[1]))
    out = np.empty((*registers.shape[:-2], shape[0] * shape[1]), registers.dtype)
    out[..., where] = registers.reshape(*registers.shape[:-2], -1)
    return out.reshape(*registers.shape[:-2], *shape)


def unpack(packed: np.ndarray, k: int) -> np.ndarray:
    """u16[rows, k] of u16 in fragment order."""
    tiles = gather(packed.reshape(-1, k // 16, 32, 8), a_element, (16, 16))
    return tiles.transpose(0, 2, 1, 3).reshape(-1, k)


def test_lanes_worked_by_hand():
    """Row r, column k of a 16 x 32 matrix holds 100 r + k: lanes of both fragments as the PTX ISA says."""
    packed = fragments((100 * np.arange(16)[:, None] + np.arange(32)).astype(np.uint16), np).reshape(2, 32, 8)
    #                                  row g          row g + 8       row g, k + 8    row g + 8, k + 8
    assert packed[0, 0].tolist() == [0, 1, 800, 801, 8, 9, 808, 809]
    assert packed[0, 5].tolist() == [102, 103, 902, 903, 110, 111, 910, 911]
    assert packed[0, 31].tolist() == [706, 707, 1506, 1507, 714, 715, 1514, 1515]
    assert packed[1, 0].tolist() == [16, 17, 816, 817, 24, 25, 824, 825]
    assert packed[1, 14].tolist() == [320, 321, 1120, 1121, 328, 329, 1128, 1129]


def test_rows_are_padded_with_zeros():
    w = np.arange(1, 1 + 21 * 48, dtype=np.uint16).reshape(21, 48)
    back = unpack(fragments(w, np), 48)
    assert back.shape == (32, 48)
    assert np.array_equal(back[:21], w) and not back[21:].any()


@pytest.mark.parametrize("interleaved", [False, True])
def test_pair_rows(interleaved):
    """Two heads of 32: each block of 16 rows holds the first elements of eight pairs, then their second elements."""
    order = pair_rows(2, 32, interleaved, np).reshape(2, 2, 16)
    if interleaved:
        assert order[0, 0].tolist() == [0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15]
        assert order[1, 1].tolist() == [48, 50, 52, 54, 56, 58, 60, 62, 49, 51, 53, 55, 57, 59, 61, 63]
    else:
        assert order[0, 0].tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23]
        assert order[1, 1].tolist() == [40, 41, 42, 43, 44, 45, 46, 47, 56, 57, 58, 59, 60, 61, 62, 63]


def test_gate_and_up_share_a_block():
    gate, up = np.arange(24, dtype=np.uint16)[:, None] * np.ones(3, np.uint16), 100 + np.arange(24, dtype=np.uint16)[:, None]
    rows = gate_up(gate, up * np.ones(3, np.uint16), np)[:, 0].tolist()
    assert rows[:18] == [0, 1, 2, 3, 4, 5, 6, 7, 100, 101, 102, 103, 104, 105, 106, 107, 8, 9]
    assert rows[-8:] == [116, 117, 118, 119, 120, 121, 122, 123]


# -- the product as the kernel takes it


def kernel_product(w: np.ndarray, x: np.ndarray) -> np.ndarray:
    """f32[rows, 8]: W [rows, k] · x [k, 8], both bf16, through fragments, chunks and the eight math warps."""
    packed = fragments(w.view(np.uint16), np)
    k = w.shape[1]
    a = gather(packed.reshape(-1, k // 16, 32, 8), a_element, (16, 16)).view(ml_dtypes.bfloat16).astype(np.float32)
    b = x.astype(np.float32).reshape(k // 16, 16, 8)
    out = []
    for block in a:
        part = np.zeros((abi.MATH_WARPS, 16, 8), np.float32)
        for first in range(0, k // 16, CHUNK_K16):
            for warp in range(abi.MATH_WARPS):
                for f in range(first + 4 * warp, min(first + 4 * warp + 4, k // 16)):
                    part[warp] += block[f] @ b[f]
        tile = part[0]
        for warp in range(1, abi.MATH_WARPS):
            tile = tile + part[warp]
        out.append(tile)
    return np.concatenate(out)[: len(w)]


@pytest.mark.parametrize(("rows", "k"), [(16, 16), (16, 48), (40, 512), (97, 528), (16, 576), (33, 1040), (24, 2560)])
def test_product_against_float64(rows, k):
    rng = np.random.default_rng(rows + k)
    w, x = bf16(rng.normal(size=(rows, k))), bf16(rng.normal(size=(k, 8)))
    exact = w.astype(np.float64) @ x.astype(np.float64)
    assert np.abs(kernel_product(w, x) - exact).max() < 2e-6 * k**0.5 * np.abs(exact).max()


# -- what the tasks of a graph read


@pytest.fixture(scope="module", params=MODELS)
def model(request, tmp_path_factory):
    return packed_model(request.param, tmp_path_factory.mktemp(request.param))


def read(address: int, count: int, packed: PackedWeights) -> np.ndarray:
    """u16[count] at an address, which must lie inside one packed matrix."""
    ends = [(a.ctypes.data, a.ctypes.data + a.nbytes) for a in packed.matrices.values()]
    assert any(first <= address and address + 2 * count <= end for first, end in ends), "read beyond the packed weights"
    return np.ctypeslib.as_array(ctypes.cast(int(address), ctypes.POINTER(ctypes.c_uint16)), (count,))


def rows_of(task, packed: PackedWeights, address: int | None = None, k16: int | None = None) -> np.ndarray:
    """u16[16 * blocks, k]: what the loader streams for a task."""
    k16 = int(task["k16"] if k16 is None else k16)
    count = int(task["blocks"]) * k16 * 256
    return unpack(read(int(task["weight"]) if address is None else address, count, packed), 16 * k16)


def check_rows(got: np.ndarray, want: np.ndarray) -> None:
    """Equal, and zero where the matrix has ended."""
    want = want.view(np.uint16)
    assert np.array_equal(got[: len(want)], want) and not got[len(want) :].any()


def shares(gate: np.ndarray, up: np.ndarray, first: int, count: int) -> np.ndarray:
    """Rows first .. first + count of gate and up, eight of one and then eight of the other."""
    return np.concatenate([m[r : r + 8] for r in range(first, first + count, 8) for m in (gate, up)])


def check_task(task, name: str, layer: int, config, checkpoint, packed) -> None:
    at, (a, b, c) = f"layers.{layer}.", (int(task[x]) for x in "abc")

    def w(matrix: str) -> np.ndarray:
        return checkpoint.get(at + matrix)

    if name == "qkv":
        matrix, head = ("q", a) if a < config.heads else ("k", a - config.heads)
        if head >= config.kv_heads and matrix == "k":
            matrix, head = "v", head - config.kv_heads
        rows = w(matrix)[head * config.head_dim :][: config.head_dim]
        first, second = (rows[0::2], rows[1::2]) if config.rope_style == "interleaved" else np.split(rows, 2)
        assert c - b == (config.head_dim // 2 if config.qk_norm else 8)
        check_rows(rows_of(task, packed), shares(first, second, b, c - b))
    elif name == "expert_up":
        for e in range(config.experts):
            gate, up = w(f"experts.{e}.gate"), w(f"experts.{e}.up")
            check_rows(rows_of(task, packed, int(task["weight"] + e * task["stride"])), shares(gate, up, a, b))
    elif name == "expert_down":
        for e in range(config.experts):
            got = rows_of(task, packed, int(task["weight"] + e * task["stride"]))
            check_rows(got, w(f"experts.{e}.down")[a : a + b])
        assert int(task["tail"]) * 16 == config.shared_width
        check_rows(rows_of(task, packed, int(task["weight2"]), int(task["tail"])), w("shared.down")[a : a + b])
    elif name in ("shared_up", "dense_up"):
        prefix = "shared." if name == "shared_up" else ""
        check_rows(rows_of(task, packed), shares(w(prefix + "gate"), w(prefix + "up"), a, b))
    elif name == "lm_head":
        check_rows(rows_of(task, packed), checkpoint.get("head")[a : a + b])
    else:
        matrix = {"o_proj": "o", "router": "router", "dense_down": "down"}[name]
        check_rows(rows_of(task, packed), w(matrix)[a : a + b])


def test_every_task_reads_its_rows(model):
    config, checkpoint, packed, built, _, program = model
    checked = {}
    for task in program.tasks:
        name, layer = built.graph.ops[task["op"]], int(built.graph.layer[task["id"]])
        if name in ("embed", "attention", "merge", "pick"):
            assert task["weight"] == 0
            continue
        # the slots of a layer differ in nothing that this looks at
        key = (name, layer, *(int(task[x]) for x in ("a", "b", "c", "weight", "stride", "weight2", "k16", "blocks", "tail")))
        if key not in checked:
            checked[key] = check_task(task, name, layer, config, checkpoint, packed)
    seen = {key[0] for key in checked}
    assert {"qkv", "o_proj", "lm_head", "dense_up", "dense_down"} <= seen
    assert config.family != "cohere2_moe" or {"router", "expert_up", "expert_down", "shared_up"} <= seen


def test_the_embedding_is_packed_once_when_tied(model):
    config, checkpoint, packed, *_ = model
    assert (packed.address("embed") == packed.address("head")) == config.tied
    check_rows(unpack(packed.matrices["embed"], config.hidden), checkpoint.get("embed"))


@pytest.mark.parametrize("storage", ["float32", "float16"])
def test_other_dtypes_are_packed_when_bf16_holds_their_values(tmp_path, storage):
    """The same numbers, once in a bf16 file and once in a wider one: the same packed bits."""
    family, settings = MODELS["llama"]
    model = make_checkpoint(tmp_path / "narrow", family, **settings | {"num_hidden_layers": 1})
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.clamp_(-8, 8)  # where float16 holds all bf16 numbers but the smallest
            parameter[parameter.abs() < 1e-3] = 0
    packed = []
    for name, dtype in (("narrow", torch.bfloat16), ("wide", getattr(torch, storage))):
        copy.deepcopy(model).to(dtype).save_pretrained(tmp_path / name)
        config = load_config(tmp_path / name)
        checkpoint = Weights.open(tmp_path / name, config)
        assert checkpoint.dtypes == (str(dtype).removeprefix("torch."),)
        packed.append(PackedWeights(config, checkpoint, np).matrices)
    assert all(np.array_equal(packed[0][name], packed[1][name]) for name in packed[0])


def test_bytes_needed_are_the_bytes_of_the_matrices(model):
    config, _, packed, *_ = model
    matrices = {id(a): a.nbytes for a in packed.matrices.values()}
    assert PackedWeights.bytes_needed(config) == sum(matrices.values())


def test_layers_name_norms_and_biases(model):
    config, checkpoint, _, _, _, program = model
    size = {"norm": config.hidden, "norm2": config.hidden, "o_bias": config.hidden, "down_bias": config.hidden}
    for i, layer in enumerate(program.layers):
        for name in ("norm", "norm2", "o_bias", "gate_bias", "up_bias", "down_bias"):
            full = f"layers.{i}.{name}"
            if full not in checkpoint:
                assert layer[name] == 0
                continue
            count = size.get(name, config.layers[i].width)
            got = np.ctypeslib.as_array(ctypes.cast(int(layer[name]), ctypes.POINTER(ctypes.c_float)), (count,))
            assert np.array_equal(got, checkpoint.get(full).astype(np.float32))
        if config.qk_norm:
            got = np.ctypeslib.as_array(
                ctypes.cast(int(layer["head_norm"]), ctypes.POINTER(ctypes.c_float)), (2, config.head_dim)
            )
            want = [checkpoint.get(f"layers.{i}.{m}_norm").astype(np.float32) for m in "qk"]
            assert np.array_equal(got, want) and not np.array_equal(*want)
        else:
            assert layer["head_norm"] == 0
        if config.attention_bias:
            width = (config.heads + 2 * config.kv_heads) * config.head_dim
            got = np.ctypeslib.as_array(ctypes.cast(int(layer["qkv_bias"]), ctypes.POINTER(ctypes.c_float)), (width,))
            want = np.concatenate([checkpoint.get(f"layers.{i}.{m}_bias").astype(np.float32) for m in "qkv"])
            assert np.array_equal(got, want)
        spec = config.layers[i]
        assert layer["rope"] == spec.rope and layer["routed"] == (spec.mlp == "moe")
        assert layer["window"] == (config.window if spec.attention == "sliding" else 0)
        assert layer["splits"] == (3 if spec.attention == "sliding" else 4)  # 300 keys touch at most 3 splits of 256
