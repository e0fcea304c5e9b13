"""Packed weights kept on disk: read instead of packed, gone on with after an interruption, never those of other weights."""

import os
import subprocess
import sys

import numpy as np
import pytest
from checkpoints import make_checkpoint

from engine.checkpoint import Weights
from engine.config import load_config
from engine.cuda.pack_cache import PackCache
from engine.cuda.pack_pieces import pieces
from engine.cuda.weights import PackedWeights
from mkviz.errors import MkvizError


@pytest.fixture
def model(tmp_path, monkeypatch):
    """(directory, config, cache root): a MoE model of all kinds of pieces, and $MKVIZ_PACK_CACHE."""
    directory, root = tmp_path / "model", tmp_path / "cache"
    make_checkpoint(
        directory, "cohere2_moe", num_shared_experts=1, intermediate_size=48, head_dim=32, tie_word_embeddings=False,
        num_hidden_layers=2, layer_types=["full_attention", "sliding_attention"], mlp_layer_types=["dense", "sparse"],
        storage="bfloat16",
    )  # fmt: skip
    monkeypatch.setenv("MKVIZ_PACK_CACHE", str(root))
    return directory, load_config(directory), root


class Counting(Weights):
    """Counts the matrices that are read; raises KeyboardInterrupt at one of them."""

    reads, stop_at = 0, None

    def get(self, name):
        if self._views[name].ndim == 2:
            self.reads += 1
            if self.reads == self.stop_at:
                raise KeyboardInterrupt
        return super().get(name)


def pack(directory, config, stop_at=None):
    weights = Counting.open(directory, config)
    weights.stop_at = stop_at
    try:
        return PackedWeights(config, weights, np).matrices, weights.reads
    except KeyboardInterrupt:
        return None, weights.reads


def same(a, b) -> bool:
    return a.keys() == b.keys() and all(np.array_equal(a[name], b[name]) for name in a)


def test_a_second_start_reads_no_matrix(model, monkeypatch):
    directory, config, root = model
    first, reads = pack(directory, config)
    second, none = pack(directory, config)
    monkeypatch.delenv("MKVIZ_PACK_CACHE")
    plain, again = pack(directory, config)
    assert same(first, plain) and same(second, plain)
    assert reads == again > none == 0
    assert sorted(p.suffix for p in root.rglob("*") if p.is_file()) == [".bin"] * len(plain)


def test_a_shorter_context_takes_the_same_pieces(model):
    """61 GB once, whatever ``--context`` says."""
    directory, config, root = model
    first, _ = pack(directory, config)
    second, reads = pack(directory, config.within(100))
    assert same(first, second) and reads == 0 and len(list(root.iterdir())) == 1


@pytest.mark.parametrize("stop_at", [1, 2, 8, 20, 30])
def test_an_interrupted_start_is_gone_on_with(model, monkeypatch, stop_at):
    """What was packed whole is not packed again, and nothing that was not is taken for it."""
    directory, config, root = model
    nothing, _ = pack(directory, config, stop_at)
    assert nothing is None
    kept = {p.stem for p in root.rglob("*.bin")}
    asked = []
    save = PackCache.save
    monkeypatch.setattr(PackCache, "save", lambda self, piece, w: asked.append(piece.name) or save(self, piece, w))
    resumed, _ = pack(directory, config)
    assert kept | set(asked) == {piece.name for piece in pieces(config)} and not kept & set(asked)
    assert same(resumed, PackedWeights(config, Weights.open(directory, config), np).matrices)


@pytest.mark.parametrize("keep", [0, 2, -2])
def test_a_piece_of_another_length_is_packed_again(model, keep):
    directory, config, root = model
    first, _ = pack(directory, config)
    (path,) = root.rglob("layers.1.up.bin")
    path.write_bytes(path.read_bytes()[:keep])
    second, reads = pack(directory, config)
    assert same(first, second)
    assert reads == 2 * config.experts


def test_other_weights_of_the_same_shapes(model):
    directory, config, root = model
    first, _ = pack(directory, config)
    file = directory / "model.safetensors"
    data, about = bytearray(file.read_bytes()), file.stat()
    half = len(data) // 2
    data[half : half + 1000] = bytes(1000)
    file.write_bytes(data)
    os.utime(file, ns=(about.st_atime_ns, about.st_mtime_ns + 1))
    second, _ = pack(directory, config)
    assert not same(first, second)
    assert len(list(root.iterdir())) == 2


def test_what_a_killed_process_left_is_removed(model):
    directory, config, root = model
    pack(directory, config)
    (folder,) = root.iterdir()
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    for pid in (dead.pid, os.getpid()):
        (folder / f"head.{pid}.part").write_bytes(b"half")
    PackCache(folder)
    assert [p.name for p in folder.glob("*.part")] == [f"head.{os.getpid()}.part"]


def test_a_folder_that_cannot_be_written(model, monkeypatch):
    directory, config, root = model
    root.write_text("a file")
    with pytest.raises(MkvizError, match=r"cache.*: Not a directory; a folder in \$MKVIZ_PACK_CACHE with room"):
        pack(directory, config)


def test_pieces_are_what_is_packed(model):
    """Names and sizes, known before anything is packed, against the arrays."""
    directory, config, _ = model
    packed, _ = pack(directory, config)
    assert {piece.name: piece.elements for piece in pieces(config)} == {name: len(a) for name, a in packed.items()}
