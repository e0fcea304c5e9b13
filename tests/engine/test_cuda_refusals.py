"""What the CUDA backend refuses, and that it does so before it has touched the device."""

from dataclasses import replace
from math import prod

import numpy as np
import pytest
import torch
from checkpoints import make_checkpoint
from rows import open_backend

from engine.backends import options_of
from engine.builder import StepShape
from engine.checkpoint import Weights
from engine.config import load_config
from engine.cuda import backend, memory
from engine.cuda.device import Device
from engine.cuda.memory import bytes_needed, work_arrays
from engine.cuda.weights import PackedWeights, check_supported
from engine.shapes import shape
from engine.tiling import Tiling
from mkviz.errors import MkvizError
from mkviz.policies import POLICIES, make_schedule

H200 = {"name": "NVIDIA H200", "arch": 90, "sms": 132, "shared": 232448, "free": 140_000_000_000}
NO_RING = "; what leaves 48 KiB of the {} bytes of shared memory of a block of NVIDIA H200; or use --backend cpu"


class Untouched:
    """Stands for CuPy; nobody may ask it for anything."""

    def __getattr__(self, name):
        raise AssertionError(f"cupy.{name} before the refusal")


@pytest.fixture
def config(tmp_path):
    make_checkpoint(tmp_path, "cohere2_moe", intermediate_size=48, head_dim=32, storage="bfloat16")
    return load_config(tmp_path)


def refuse(monkeypatch, config, device=(), **options) -> str:
    monkeypatch.setattr(backend, "open_device", lambda: Device(cupy=Untouched(), **H200 | dict(device)))
    with pytest.raises(MkvizError) as error:
        backend.CudaBackend(config, None, **options)
    return str(error.value)


def test_too_little_memory(monkeypatch, config):
    """1,000 pages of 4 layers x 2 KV heads x (K, V) x 64 tokens x 32 x 2 bytes are 65.5 MB."""
    said = refuse(monkeypatch, config, {"free": 60_000_000}, pages=1000)
    assert said.startswith("memory of NVIDIA H200: 0.0") and "KV pages 0.07 GB" in said
    assert said.endswith("0.06 GB free; a shorter --context, fewer --pages, a smaller model, or a larger GPU")


@pytest.mark.parametrize(
    ("free", "wanted", "margin", "pages"),
    [(4e9, 5000, 1 << 30, 1926), (4e9, 1926, 0, 1926), (4e9, 20, 0, 20), (100e9, 10**6, 5e9, 94_000), (1e9, 9, 1 << 30, 1)],
)
def test_pages_that_fit_what_is_free(free, wanted, margin, pages):
    """Of 4 GB a gibibyte is kept: beside a GB of weights 1.926 GB are for pages of a megabyte.  Of 100 GB 5 are kept."""
    arrays, need = {"kv": (np.uint16, (wanted, 500_000))}, {"weights": 1_000_000_000, "KV pages": wanted * 1_000_000}
    memory.fit(arrays, need, int(free))
    assert need.pop("margin", 0) == margin and need == {"weights": 1_000_000_000, "KV pages": pages * 1_000_000}
    assert arrays == {"kv": (np.uint16, (pages, 500_000))}


def test_the_plan_says_what_is_kept_free(monkeypatch, config, capsys):
    """Of 3 GB a gibibyte: 1.9 GB of pages of 65,536 bytes."""
    monkeypatch.setattr(backend.CudaBackend, "_compile", lambda self: 1 / 0)  # what comes next
    with pytest.raises(ZeroDivisionError):
        refuse(monkeypatch, config, {"free": 3_000_000_000}, pages=10**6, fit=True)
    said = capsys.readouterr().err
    pages = int(said.split(" KV pages ")[0].split()[-1].replace(",", ""))
    assert 0 <= 3_000_000_000 - (1 << 30) - pages * 65_536 < 5e6 + 132 * 4 * 1024 * 32
    assert f"{pages:,} KV pages 1.9" in said and "margin 1.07 GB), 3.00 GB free" in said


def test_memory_by_hand(config):
    """Each purpose summed by hand for a model of one layer, as far as it is more than bytes."""
    one = replace(config, layers=config.layers[1:2], max_positions=512)  # MoE, 8 experts, top 3, window 24; heads 4, KV heads 2
    sms, pages, tiling = 132, 10, Tiling.for_tensor_cores(one, 132)
    tiles = -(-one.vocab // tiling.lm_head)
    need = bytes_needed(one, work_arrays(one, pages, 16, sms, tiles), sms, 64)
    matrices = 112 * 64 + (4 + 4) * 32 * 64 + 64 * 128 + 16 * 64 + 8 * 3 * 48 * 64  # head, qkv, o, router, experts; in 16s
    assert need["weights"] == 2 * matrices
    assert need["KV pages"] == pages * 2 * 2 * 64 * 32 * 2
    assert need["rings"] == 132 * 4 * 64 * 32
    words = 512 * 16 * 2 + 8 + 1 + 17 + 5 * 8 + 8 * 8  # RoPE table, abort, stop, go, rows, page table
    words += 2 * 8 * 64 + 8 * 64 + 8 * 4 * 2 * 32 + 2 * 8 * 4 * 2 + 8 * 8  # x, mid, parts, maxima and sums, router logits
    words += 8 * 97 + 2 * 8 * tiles + 16 * 8 + 128 + 132 * 7 * 4  # logits, tiles, greedy, routes, states
    words += 2 * 8 * 16  # experts that rows chose, and their weights
    halves = 8 * 4 * 32 + 4 * 32 * 8 + 8 * 48 * 8 + 1 + 1  # q, attention, expert hidden, no dense, no shared
    tagged = (
        64 + 64 + (4 + 2 * 2) * 16 + 4 * 2 * 32 + 4 * 2 * 2 + 64 + 8 + 3 * 24 + 1 + 1
    )  # one row: x, mid, q k v, parts and ends,
    assert need["activations"] == 4 * words + 2 * halves + 8 * tagged  # attention, router, hidden layers


@pytest.mark.parametrize("trace", [1, 2])
def test_rings_for_two_of_the_largest_steps(trace):
    """Where nothing may be lost, under every policy: a storer of an SM leaves the records of every third of its tasks."""
    opened = object.__new__(backend.CudaBackend)
    opened.config, opened.sms, opened.trace, opened.max_rows = shape("north-mini-code", 8, 32_768), 132, trace, 64
    opened.tiling, opened.buckets = Tiling.for_tensor_cores(opened.config, 132, sampling=True), [1, 8, 16, 32, 64]
    capacity, graph = opened._ring_capacity(), opened.graph_of(StepShape(64, 256)).graph
    share = trace * len(graph) // (132 * 3)
    assert capacity & (capacity - 1) == 0 and 2 * share <= capacity <= 6 * share
    for policy in (p for p in POLICIES if p != "claimed"):
        longest = int(np.diff(make_schedule(graph, 132, policy).order_ptr.astype(int)).max())
        assert 2 * trace * -(-longest // 3) <= capacity, policy


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"trace": 3}, "trace: 3; 0 (off), 1"),
        ({"sms": 133}, "sms: 133; 1 to the 132 of NVIDIA H200"),
        ({"sms": 0}, "sms: 0; 1 to the 132 of NVIDIA H200"),
        ({"sms": -3}, "sms: -3; 1 to the 132 of NVIDIA H200"),
        ({"rows": 24}, "rows: 24; one of 8, 16, 32, 64, 128, 256"),
        ({"ring_capacity": 100}, "ring_capacity: 100; a power of two, at least 4"),
        ({"pages": 0}, "pages: 0; at least 1"),
        ({"pages": -5}, "pages: -5; at least 1"),
        ({"max_steps": 0}, "max_steps: 0; at least 1"),
        ({"poll_budget": 0}, "poll_budget: 0; 1 to 4,294,967,295 polls of a wait"),
        ({"poll_budget": 1 << 32}, "poll_budget: 4294967296; 1 to"),
        ({"policy": "best"}, "policy: 'best'; one of round_robin, layered, balanced, list on the cuda backend"),
        ({"policy": "claimed"}, "policy: 'claimed'; one of round_robin, layered, balanced, list on the cuda backend"),
    ],
)
def test_options(monkeypatch, config, options, said):
    assert refuse(monkeypatch, config, **options).startswith(said)


def test_no_pages_are_not_taken_for_pages_unasked(config):
    """``--pages 0`` is refused, as above; without it there are whole contexts for every request."""
    assert options_of(backend.CudaBackend, config, 3, 0)["pages"] == 0
    assert options_of(backend.CudaBackend, config, 3, None)["pages"] == 3 * -(-config.max_positions // 64)


def test_a_field_that_the_kernel_does_not_know(monkeypatch, config):
    said = refuse(monkeypatch, replace(config, heads=9, kv_heads=1))
    assert said == "query heads per KV head: 9; at most 8; the cpu backend takes this model"


@pytest.mark.parametrize("storage", ["float32", "float16"])
def test_a_checkpoint_that_would_be_rounded(tmp_path, storage):
    """One value that bf16 does not hold, in the last row of the last matrix; refused with nothing on the device."""
    model = make_checkpoint(tmp_path, "llama", storage="bfloat16", num_hidden_layers=1, tie_word_embeddings=True)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.clamp(-1, 1).mul(4).round().div(4))
        model.model.layers[0].mlp.down_proj.weight[-1, -1] = 1 + 2**-8  # halfway between two bf16 numbers
        model.model.norm.weight[0] = 1 + 2**-8  # vectors are kept in f32
    model.to(getattr(torch, storage)).save_pretrained(tmp_path)
    config = load_config(tmp_path)
    with pytest.raises(MkvizError) as error:
        PackedWeights(config, Weights.open(tmp_path, config), Untouched())
    assert str(error.value) == (
        f"{tmp_path / 'model.safetensors'}: tensor model.layers.0.mlp.down_proj.weight is {storage} and has values that "
        "bfloat16 rounds; a checkpoint converted to bfloat16, or the cpu backend in fp32 mode, which takes this one as it is"
    )
    with pytest.raises(MkvizError, match=r"down_proj\.weight is .* that bfloat16 rounds"):
        open_backend(tmp_path, mode="bf16")  # the oracle of the kernel takes what the kernel takes
    open_backend(tmp_path).close()


def test_activations_that_leave_no_ring(monkeypatch, config):
    said = refuse(monkeypatch, replace(config, hidden=16384))
    assert said == "hidden_size: 16384" + NO_RING.format(232448)


def test_a_gpu_without_room_for_any_ring(monkeypatch, config):
    """The fixed part of eight rows, 40 KiB, and three chunks of 16 KiB are 90,112 bytes."""
    for rows in (8, None):
        said = refuse(monkeypatch, config, {"name": "RTX 4090", "arch": 89, "shared": 80_000}, rows=rows)
        assert said == "RTX 4090: 80000 bytes of shared memory for a block; 90112 and what rows need; or use --backend cpu"


def test_wide_steps_that_leave_no_ring(monkeypatch, config):
    """Sums and routing of 64 rows take 38 KiB more than those of eight."""
    said = refuse(monkeypatch, config, {"shared": 138_900}, rows=64)
    assert said == "rows: 64 in one step" + NO_RING.format(138900)
    assert refuse(monkeypatch, config, {"shared": 138_900, "free": 1}, rows=32).startswith("memory of")
    assert refuse(monkeypatch, config, {"shared": 138_900, "free": 1}, rows=None).startswith("memory of")
    said = refuse(monkeypatch, replace(config, hidden=16384), rows=None)
    assert said == "hidden_size: 16384" + NO_RING.format(232448)


def opened_for(device, rows, **changes):
    """A backend as far as what its blocks have room for: North Mini Code's shape on a device with these bytes for a block."""
    opened = object.__new__(backend.CudaBackend)
    opened.config, opened.x_stride = replace(shape("north-mini-code", None, 32_768), **changes), 2048 // 2 + 4
    opened.device = Device(cupy=Untouched(), **H200 | device)
    return opened, opened._buckets(rows)


def test_ring_stages_of_every_bucket():
    """By hand, bytes of 232,448: fixed 79,872 (64 rows), 119,808 (128), 135,168 (256); q of two tasks of eight rows, 68 words a
    head; 49 layers of 104.  What is left is in stages of 16,384."""
    opened, buckets = opened_for({}, 256)
    assert buckets == [1, 8, 16, 32, 64, 128, 256]
    for rows, fixed, stages in ((64, 79_872, 6), (128, 119_808, 4), (256, 135_168, 3)):
        rest = fixed + 2 * 8 * 8 * 68 * 4 + 49 * 104
        assert (232_448 - rest) // 16_384 == stages
        assert opened.layout(rows, rows) == (stages, rest + stages * 16_384)


def test_who_has_kernels_for_more_than_64_rows():
    """Who asks for them, on a GPU with room: a block of sm_80 has 163 KiB."""
    assert opened_for({}, None)[1][-1] == 64
    assert opened_for({}, 128)[1][-1] == 128
    small = {"arch": 80, "shared": 166_912}
    assert opened_for(small, None)[1] == [8, 16, 32]
    with pytest.raises(MkvizError, match="rows: 128 in one step; what leaves 48 KiB of the 166912 bytes"):
        opened_for(small, 256, head_dim=32)


def test_memory_of_wide_and_drawn_steps(config):
    """What more rows and drawing add, by hand: the rows' normed activations and experts; sums, candidates and what is told."""
    tiles = 7

    def arrays(**options):
        return {name: prod(shape) * np.dtype(kind).itemsize
                for name, (kind, shape) in work_arrays(config, 1, 16, 132, tiles, **options).items()}  # fmt: skip

    narrow, drawn = arrays(), arrays(sampling=True)
    for rows in (64, 256):
        wide = arrays(rows=rows)
        assert wide["logits"] == rows // 8 * narrow["logits"] and wide["kv"] == narrow["kv"]
        assert wide["chosen"] == wide["chosen_weight"] == 4 * rows * 16
        assert {n: wide[n] for n in wide.keys() - narrow.keys()} == {"normed": 2 * rows * config.hidden}
    assert {n: drawn[n] for n in drawn.keys() - narrow.keys()} == {
        "sampling": 8 * 48, "told": 16 * 8 * 184, "tile_sums": 8 * 8 * tiles, "part_sums": 8 * 8 * 2 * 64,
        "candidates": 8 * 1024 * 8,
        "weighed": 8 * 1024 * 16, "cursor": 8 * 4,
    }  # fmt: skip
    assert narrow.items() <= drawn.items()


def test_an_architecture_before_ampere(monkeypatch, config, tmp_path):
    monkeypatch.setenv("MKVIZ_HOME", str(tmp_path))
    assert refuse(monkeypatch, config, {"arch": 75}).startswith("GPU architecture sm_75; sm_80 or newer")


def spec(config, **changes):
    return replace(config, layers=tuple(replace(layer, **changes) for layer in config.layers))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: replace(c, hidden=100), "hidden_size: 100; a multiple of 16"),
        (lambda c: replace(c, heads=3, kv_heads=3, head_dim=24), r"heads \* head_dim: 72; a multiple of 16"),
        (lambda c: replace(c, head_dim=24), "head_dim: 24; a multiple of 16, at most 128"),
        (lambda c: replace(c, head_dim=144), "head_dim: 144; a multiple of 16, at most 128"),
        (lambda c: replace(c, heads=9, kv_heads=1), "query heads per KV head: 9; at most 8"),
        (lambda c: spec(c, width=24), "layer 0 dense width: 24; a multiple of 16"),
        (lambda c: replace(c, shared_width=40), "shared expert width: 40; a multiple of 16"),
        (lambda c: replace(c, experts=257), "num_experts: 257; at most 256"),
        (lambda c: replace(c, experts=32, top_k=17), "num_experts_per_tok: 17; at most 16"),
    ],
)
def test_what_the_kernel_cannot_honour_is_refused_by_name(config, change, message):
    check_supported(config)
    with pytest.raises(MkvizError, match=message):
        check_supported(change(config))
