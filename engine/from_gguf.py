"""GGUF to a model directory: safetensors in bfloat16, config.json, tokenizer and chat template.

Covers the ``llama`` architecture with a byte-level BPE vocabulary, which is what SmolLM2 is.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np
import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from mkviz.errors import MkvizError

_LAYER_NAMES = {
    "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}  # fmt: skip
_NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_CONTROL, _USER_DEFINED = 3, 4  # GGUF token types: special tokens, and added ones that are text


def require_gguf() -> None:
    """Raises :class:`MkvizError` unless the ``gguf`` package (extra ``gguf``) can be imported."""
    try:
        import gguf  # noqa: F401
    except ImportError:
        raise MkvizError("the gguf package is not installed", "pip install 'mkviz[gguf]'") from None


def convert(source: Path, directory: Path, progress: Callable[[int, int], None] = lambda done, total: None) -> None:
    """Write the model of the GGUF file ``source`` into ``directory`` (which exists), weights rounded to bfloat16.

    ``progress(done, total)`` counts tensors.  Raises :class:`MkvizError` for another architecture or vocabulary, an
    unknown tensor, or a file that is no GGUF.
    """
    require_gguf()
    import gguf

    try:
        reader = gguf.GGUFReader(source)
    except (OSError, ValueError, IndexError, KeyError) as e:
        raise MkvizError(f"{source}: not readable as GGUF ({e})", "fetch the file again") from None
    facts = {key: field.contents() for key, field in reader.fields.items()}
    for key, right in (("general.architecture", "llama"), ("tokenizer.ggml.model", "gpt2"), ("tokenizer.ggml.pre", "smollm")):
        if facts.get(key) != right:
            raise MkvizError(f"{source}: {key} {facts.get(key)!r}", f"only {right!r} is converted")
    config = _config(facts, tied=not any(t.name == "output.weight" for t in reader.tensors))
    tensors = {_name(t.name, source): t for t in reader.tensors}

    def values(name: str) -> np.ndarray:
        out = gguf.quants.dequantize(tensors[name].data, tensors[name].tensor_type)
        heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}.get(name.split(".")[-2])
        return out if heads is None else _half_split(out, heads)

    shapes = {name: tuple(int(n) for n in reversed(t.shape)) for name, t in tensors.items()}
    _write_safetensors(directory / "model.safetensors", shapes, values, progress)
    special = {
        f"{role}_token": facts["tokenizer.ggml.tokens"][facts[key]]
        for role, key in _ROLES.items()
        if key in facts
    }  # fmt: skip
    _tokenizer(facts).save(str(directory / "tokenizer.json"))
    ids = {key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
    for file, content in (
        ("config.json", config),
        ("generation_config.json", ids),
        ("tokenizer_config.json", _tokenizer_config(facts, special)),
    ):
        (directory / file).write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


_ROLES = {
    "bos": "tokenizer.ggml.bos_token_id", "eos": "tokenizer.ggml.eos_token_id", "unk": "tokenizer.ggml.unknown_token_id",
    "pad": "tokenizer.ggml.padding_token_id",
}  # fmt: skip


def _config(facts: dict, tied: bool) -> dict:
    def single(key: str) -> float:
        return float(str(np.float32(facts[key])))  # the shortest decimal of the stored float32: 1e-05, not 9.9999997e-06

    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": len(facts["tokenizer.ggml.tokens"]),
        "hidden_size": facts["llama.embedding_length"],
        "intermediate_size": facts["llama.feed_forward_length"],
        "num_hidden_layers": facts["llama.block_count"],
        "num_attention_heads": facts["llama.attention.head_count"],
        "num_key_value_heads": facts["llama.attention.head_count_kv"],
        "head_dim": facts["llama.rope.dimension_count"],
        "hidden_act": "silu",
        "max_position_embeddings": facts["llama.context_length"],
        "rms_norm_eps": single("llama.attention.layer_norm_rms_epsilon"),
        "rope_parameters": {"rope_type": "default", "rope_theta": single("llama.rope.freq_base")},
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": tied,
        **{f"{role}_token_id": facts.get(key) for role, key in _ROLES.items() if role != "unk"},
        "dtype": "bfloat16",
    }


def _name(name: str, source: Path) -> str:
    """blk.3.attn_q.weight -> model.layers.3.self_attn.q_proj.weight"""
    stem, _, kind = name.rpartition(".")
    parts = stem.split(".")
    if kind == "weight" and stem in _NAMES:
        return f"{_NAMES[stem]}.weight"
    if kind == "weight" and len(parts) == 3 and parts[0] == "blk" and parts[2] in _LAYER_NAMES:
        return f"model.layers.{parts[1]}.{_LAYER_NAMES[parts[2]]}.weight"
    raise MkvizError(f"{source}: tensor {name} is not known", "a plain llama model")


def _half_split(weight: np.ndarray, heads: int) -> np.ndarray:
    """GGUF orders q and k rows for interleaved pairs (2i, 2i+1); the directory's form pairs i with i + D/2."""
    rows, columns = weight.shape
    return weight.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)


def _write_safetensors(file: Path, shapes: dict, values: Callable[[str], np.ndarray], progress) -> None:
    """One tensor after the other, so that only one is ever unpacked in memory."""
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for name, shape in shapes.items():
        end = at + 2 * math.prod(shape)
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [at, end]}
        at = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(file, "wb") as out:
        out.write(len(text).to_bytes(8, "little") + text)
        for done, (name, shape) in enumerate(shapes.items(), 1):
            tensor = values(name)
            if tensor.shape != shape:
                raise MkvizError(f"tensor {name} unpacks to shape {tensor.shape}", f"the file says {shape}")
            out.write(tensor.astype(ml_dtypes.bfloat16).tobytes())
            progress(done, len(shapes))


def _tokenizer(facts: dict) -> tokenizers.Tokenizer:
    tokens, kinds = facts["tokenizer.ggml.tokens"], facts["tokenizer.ggml.token_type"]
    merges = [tuple(merge.split(" ")) for merge in facts["tokenizer.ggml.merges"]]
    out = tokenizers.Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges))
    out.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    out.decoder = decoders.ByteLevel()
    added = [(token, kind) for token, kind in zip(tokens, kinds, strict=True) if kind in (_CONTROL, _USER_DEFINED)]
    for token, kind in added:
        out.add_tokens([tokenizers.AddedToken(token, special=kind == _CONTROL, normalized=False)])
    return out


def _tokenizer_config(facts: dict, special: dict[str, str]) -> dict:
    out = {"tokenizer_class": "PreTrainedTokenizerFast", **special, "clean_up_tokenization_spaces": False}
    out["model_max_length"] = facts["llama.context_length"]
    if "tokenizer.chat_template" in facts:
        out["chat_template"] = facts["tokenizer.chat_template"]
    return out
