"""Weights: the tensors of a model directory, memory-mapped and checked whole before anything is computed.

Nothing is copied: ``get`` gives views into the mapped safetensors files, in the dtype they are stored in.
"""

from __future__ import annotations

import hashlib
import json
import math
import mmap
import re
from dataclasses import dataclass
from pathlib import Path

import ml_dtypes
import numpy as np

from engine.config import ModelConfig, read_json
from mkviz.errors import MkvizError

_DTYPES = {"F32": np.dtype(np.float32), "F16": np.dtype(np.float16), "BF16": np.dtype(ml_dtypes.bfloat16)}
_MAX_HEADER = 100_000_000  # bytes; the format's own limit
_SLICE = 1 << 24  # bytes
_FETCH = "fetch the file again"
_BUFFERS = re.compile(r"model\.(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq")


@dataclass(frozen=True)
class _Tensor:
    """A stored tensor: its name there, its file, dtype name, shape, and byte range from the start of the file."""

    name: str
    file: Path
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


class Weights:
    """The weights of a model by canonical name: "embed", "head" (the embedding when tied), "norm", and per layer i
    "layers.{i}." + norm, norm2 (sequential blocks), q, k, v, o (+ _bias), q_norm, k_norm, router, gate, up, down (+ _bias)
    of a dense feed-forward, experts.{e}.gate|up|down, shared.gate|up|down.

    Matrices are [outputs, inputs], row-major.  ``source_bytes`` is the size of all tensors served, ``parameters`` the
    number of their elements.
    """

    def __init__(self, views: dict[str, np.ndarray], sources: dict[str, _Tensor], maps: dict[Path, mmap.mmap]):
        self._views, self._sources, self._maps = views, sources, maps
        used = {t.name: t for t in sources.values()}.values()  # parts of a fused tensor share it
        self.source_bytes = sum(t.end - t.begin for t in used)
        self.parameters = sum(math.prod(t.shape) for t in used)

    @classmethod
    def open(cls, directory: str | Path, config: ModelConfig) -> Weights:
        """Map the safetensors files of ``directory`` and check every name, shape and dtype against ``config``.

        Raises :class:`MkvizError` naming file and tensor when a file is missing, truncated or corrupt, when a tensor is
        missing, has another shape or a dtype other than float32, float16, bfloat16, or belongs to no part of the model.
        """
        tensors, listing = _read_directory(Path(directory))
        plan = _plan(config, tensors)
        _check(tensors, plan, listing, config)
        maps: dict[Path, mmap.mmap] = {}
        views: dict[str, np.ndarray] = {}
        for name, part in plan.items():
            views[name] = _view(maps, tensors[part.source])[part.index]
        if config.tied:
            views["head"] = views["embed"]
            _check_head(maps, tensors)
        return cls(views, {name: tensors[part.source] for name, part in plan.items()}, maps)

    def get(self, name: str) -> np.ndarray:
        """The tensor as a read-only view of the file; float32, float16 or ``ml_dtypes.bfloat16``."""
        return self._views[name]

    def require_bf16(self) -> None:
        """For who computes with bf16 matrices: raise :class:`MkvizError` naming the first one with a value that bf16 does not
        hold, which would be rounded in silence.  float32 and float16 files pass when all their values are bf16 numbers."""
        for name, view in self._views.items():
            if view.ndim == 2 and view.dtype != _DTYPES["BF16"] and not _holds_bf16(view):
                source = self._sources[name]
                raise MkvizError(
                    f"{source.file}: tensor {source.name} is {view.dtype.name} and has values that bfloat16 rounds",
                    "a checkpoint converted to bfloat16, or the cpu backend in fp32 mode, which takes this one as it is",
                )

    def release(self) -> None:
        """Give back the memory of mapped pages; what is read again comes from the files again."""
        for mapped in self._maps.values():
            mapped.madvise(mmap.MADV_DONTNEED)

    @property
    def fingerprint(self) -> str:
        """Tells this checkpoint from any other, by sizes and times of its files and the place of every tensor in them."""
        digest = hashlib.sha256()
        for file in sorted(self._maps):
            about = file.stat()
            digest.update(repr((file.name, about.st_size, about.st_mtime_ns)).encode())
        for name, t in self._sources.items():
            digest.update(repr((name, t.name, t.file.name, t.dtype, t.shape, t.begin)).encode())
        return digest.hexdigest()

    def __contains__(self, name: str) -> bool:
        return name in self._views

    def __iter__(self):
        return iter(self._views)

    @property
    def dtypes(self) -> tuple[str, ...]:
        """The dtypes in use, sorted."""
        return tuple(sorted({view.dtype.name for view in self._views.values()}))


@dataclass(frozen=True)
class _Part:
    """A canonical tensor: the stored tensor it comes from, that tensor's shape, and the index of its part of a fused one."""

    source: str
    shape: tuple[int, ...]
    index: tuple = ()


def _plan(config: ModelConfig, stored) -> dict[str, _Part]:
    """Canonical name -> part, for every tensor that the config asks for.  ``stored`` tells fused experts from single ones."""
    out = {
        "embed": _Part("model.embed_tokens.weight", (config.vocab, config.hidden)),
        "norm": _Part("model.norm.weight", (config.hidden,)),
    }
    if not config.tied:
        out["head"] = _Part("lm_head.weight", (config.vocab, config.hidden))
    for i in range(len(config.layers)):
        parts = _attention(config, f"model.layers.{i}.") | _mlp(config, i, f"model.layers.{i}.mlp.", stored)
        out |= {f"layers.{i}.{name}": part for name, part in parts.items()}
    return out


def _linear(name: str, source: str, rows: int, columns: int, bias: bool = False) -> dict[str, _Part]:
    out = {name: _Part(source + ".weight", (rows, columns))}
    if bias:
        out[name + "_bias"] = _Part(source + ".bias", (rows,))
    return out


def _gated(name: str, source: str, width: int, hidden: int, bias: bool = False) -> dict[str, _Part]:
    return (
        _linear(name + "gate", source + "gate_proj", width, hidden, bias)
        | _linear(name + "up", source + "up_proj", width, hidden, bias)
        | _linear(name + "down", source + "down_proj", hidden, width, bias)
    )


def _attention(config: ModelConfig, source: str) -> dict[str, _Part]:
    """Attention and the norms of one layer."""
    hidden, bias = config.hidden, config.attention_bias
    q, kv = config.heads * config.head_dim, config.kv_heads * config.head_dim
    out = {"norm": _Part(source + "input_layernorm.weight", (hidden,))}
    if not config.parallel:
        out["norm2"] = _Part(source + "post_attention_layernorm.weight", (hidden,))
    out |= _linear("q", source + "self_attn.q_proj", q, hidden, bias)
    out |= _linear("k", source + "self_attn.k_proj", kv, hidden, bias)
    out |= _linear("v", source + "self_attn.v_proj", kv, hidden, bias)
    out |= _linear("o", source + "self_attn.o_proj", hidden, q, bias)
    if config.qk_norm:
        out |= {name: _Part(f"{source}self_attn.{name}.weight", (config.head_dim,)) for name in ("q_norm", "k_norm")}
    return out


def _mlp(config: ModelConfig, layer: int, source: str, stored) -> dict[str, _Part]:
    """The dense feed-forward of one layer, or its router and experts in either of the stored forms."""
    hidden, width = config.hidden, config.layers[layer].width
    if config.layers[layer].mlp == "dense":
        return _gated("", source, width, hidden, config.mlp_bias)
    out = _linear("router", source + "gate", config.experts, hidden)
    fused = source + "experts.gate_up_proj"  # [E, 2I, H], gate rows first; beside it down_proj [E, H, I]
    for e in range(config.experts):
        if fused in stored:
            shape = (config.experts, 2 * width, hidden)
            out[f"experts.{e}.gate"] = _Part(fused, shape, (e, slice(0, width)))
            out[f"experts.{e}.up"] = _Part(fused, shape, (e, slice(width, 2 * width)))
            out[f"experts.{e}.down"] = _Part(source + "experts.down_proj", (config.experts, hidden, width), (e,))
        else:
            out |= _gated(f"experts.{e}.", f"{source}experts.{e}.", width, hidden)
    if config.shared_width:
        out |= _gated("shared.", source + "shared_experts.", config.shared_width, hidden)
    return out


def _check(tensors: dict[str, _Tensor], plan: dict[str, _Part], listing: Path, config: ModelConfig) -> None:
    for part in plan.values():
        if part.source not in tensors:
            raise MkvizError(f"{listing}: tensor {part.source} is missing", f"config.json asks for it, shape {part.shape}")
        found = tensors[part.source]
        if found.shape != part.shape:
            raise MkvizError(f"{found.file}: tensor {part.source} has shape {found.shape}", f"config.json says {part.shape}")
        if found.dtype not in _DTYPES:
            raise MkvizError(f"{found.file}: tensor {part.source} is stored as {found.dtype}", "one of " + ", ".join(_DTYPES))
    used = {part.source for part in plan.values()}
    for name, tensor in tensors.items():
        if name not in used and not _BUFFERS.fullmatch(name) and not (config.tied and name == "lm_head.weight"):
            raise MkvizError(
                f"{tensor.file}: tensor {name} {tensor.shape} has no place in this {config.family} model",
                "a config.json that belongs to these weights",
            )


def _check_head(maps: dict[Path, mmap.mmap], tensors: dict[str, _Tensor]) -> None:
    """A stored head beside tied embeddings must be the embedding itself."""
    embed, head = tensors["model.embed_tokens.weight"], tensors.get("lm_head.weight")
    if head is None:
        return
    same = head.shape == embed.shape and head.dtype == embed.dtype
    if not same or not _equal(_bytes(maps, head), _bytes(maps, embed)):
        raise MkvizError(
            f"{head.file}: lm_head.weight differs from model.embed_tokens.weight",
            "tie_word_embeddings false in config.json",
        )


def _equal(a: np.ndarray, b: np.ndarray) -> bool:
    """Compared in slices, because NumPy compares into an array as long as they are."""
    return all(np.array_equal(a[at : at + _SLICE], b[at : at + _SLICE]) for at in range(0, len(a), _SLICE))


def _holds_bf16(matrix: np.ndarray) -> bool:
    """Whether every value is a bf16 number; a row at a time, so that a large matrix costs no memory."""
    return all(np.array_equal(row.astype(_DTYPES["BF16"]).astype(row.dtype), row, equal_nan=True) for row in matrix)


def _bytes(maps: dict[Path, mmap.mmap], tensor: _Tensor) -> np.ndarray:
    if tensor.file not in maps:
        with open(tensor.file, "rb") as file:
            maps[tensor.file] = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    return np.frombuffer(maps[tensor.file], np.uint8, tensor.end - tensor.begin, tensor.begin)


def _view(maps: dict[Path, mmap.mmap], tensor: _Tensor) -> np.ndarray:
    view = _bytes(maps, tensor).view(_DTYPES[tensor.dtype]).reshape(tensor.shape)
    return view if view.flags.aligned else view.copy()  # writers pad the header to 8 bytes; a file may still do without


def _read_directory(directory: Path) -> tuple[dict[str, _Tensor], Path]:
    """Every stored tensor by name, and the file that lists them (for messages)."""
    single, index = directory / "model.safetensors", directory / "model.safetensors.index.json"
    if single.exists():
        return _read_header(single), single
    if not index.exists():
        raise MkvizError(f"{directory}: no weights", "model.safetensors, or shards with model.safetensors.index.json")
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map or not all(isinstance(v, str) for v in weight_map.values()):
        raise MkvizError(f"{index}: weight_map is missing or malformed", "an object that maps tensor names to file names")
    tensors: dict[str, _Tensor] = {}
    for file in sorted(set(weight_map.values())):
        if Path(file).name != file:
            raise MkvizError(f"{index}: file {file!r}", "a plain file name beside the index")
        if not (directory / file).exists():
            raise MkvizError(f"{directory / file}: no such file", f"{index.name} names this shard; {_FETCH}")
        for name, tensor in _read_header(directory / file).items():
            if weight_map.get(name) != file:
                raise MkvizError(f"{tensor.file}: tensor {name} is not in {index.name} for this shard", _FETCH)
            tensors[name] = tensor
    for name, file in weight_map.items():
        if name not in tensors:
            raise MkvizError(
                f"{directory / file}: tensor {name} is missing", f"{index.name} says this shard holds it; {_FETCH}"
            )
    return tensors, index


def _read_header(file: Path) -> dict[str, _Tensor]:
    """Parse a safetensors file: u64 header length, JSON header, then tensor bytes without gaps to the end of the file."""

    def corrupt(why: str) -> MkvizError:
        return MkvizError(f"{file}: {why}", _FETCH)

    try:
        size = file.stat().st_size
        with open(file, "rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            if size < 8 or not 0 < length <= min(size - 8, _MAX_HEADER):
                raise corrupt(f"not a safetensors file, or cut short ({size} bytes, header of {length} bytes)")
            header = json.loads(stream.read(length))
    except OSError as e:
        raise MkvizError(f"{file}: not readable ({e.strerror})", "a readable file") from None
    except (UnicodeDecodeError, json.JSONDecodeError) as e:
        raise corrupt(f"header is not JSON ({e})") from None
    if not isinstance(header, dict):
        raise corrupt("header is not a JSON object")
    header.pop("__metadata__", None)

    start, tensors = 8 + length, {}
    for name, entry in header.items():
        try:
            dtype, shape, (begin, end) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
            whole = all(type(n) is int and n >= 0 for n in (*shape, begin, end)) and type(dtype) is str
        except (KeyError, TypeError, ValueError):
            whole = False
        if not whole:
            raise corrupt(f"tensor {name}: malformed header entry")
        if dtype in _DTYPES and end - begin != math.prod(shape) * _DTYPES[dtype].itemsize:
            raise corrupt(f"tensor {name}: {end - begin} bytes for shape {shape} of {dtype}")
        tensors[name] = _Tensor(name, file, dtype, shape, start + begin, start + end)
    at = start
    for name, tensor in sorted(tensors.items(), key=lambda item: (item[1].begin, item[1].end)):
        if tensor.end > size:
            raise corrupt(f"tensor {name} ends at byte {tensor.end}, the file at {size}: cut short")
        if tensor.begin != at or tensor.end < tensor.begin:
            raise corrupt(f"tensor {name} begins at byte {tensor.begin}, the one before it ends at {at}")
        at = tensor.end
    if at != size:
        raise corrupt(f"{size - at} bytes follow the last tensor")
    return tensors
