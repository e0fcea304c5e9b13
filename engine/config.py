"""ModelConfig: what a checkpoint's config.json means, in one vocabulary for all families.

Every field of the file is either used, checked against the only values that can be honoured, or on the list of fields
that change nothing here.  Anything else is refused by name: a field that is silently ignored would be a wrong model.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from engine import rope
from engine.families import FAMILIES, Family, words
from engine.fields import Fields
from engine.layers import LayerSpec
from mkviz.errors import MkvizError

DTYPES = ("bfloat16", "float16", "float32")
MOST_LAYERS = 4096


@dataclass(frozen=True)
class ModelConfig:
    """A decoder-only transformer, normalised so that consumers need no family names.

    ``window``: keys that a sliding layer sees, the current one included (0: no sliding layer).
    ``parallel``: x + attention(n) + mlp(n) with one norm, else the two in sequence with a norm each.
    ``norm``: "rms" | "layer" (mean removed, no bias).  ``rope_style``: "interleaved" (pairs 2i, 2i+1) | "half" (i, i+D/2).
    ``rope_scaling``: None or the parameters with defaults filled in.  ``router``: "sigmoid" and "softmax_chosen" weigh the
    chosen experts by their own logits, "softmax_all" takes the softmax over all experts first; "" when no layer is MoE.
    ``renormalise``: divide the weights of the chosen by their sum.  ``shared_width``: all shared experts together (0: none),
    combined with the routed ones by ``shared_combine`` "sum" | "average" ((routed + shared) / 2).
    ``dtype``: what config.json says of the weights ("" if nothing).
    """

    family: str
    vocab: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    layers: tuple[LayerSpec, ...]
    window: int
    parallel: bool
    norm: str
    eps: float
    rope_style: str
    rope_theta: float
    rope_scaling: dict | None
    attention_bias: bool
    mlp_bias: bool
    qk_norm: bool
    experts: int
    top_k: int
    router: str
    renormalise: bool
    shared_width: int
    shared_combine: str
    logit_scale: float
    tied: bool
    max_positions: int
    eos: tuple[int, ...]
    bos: int | None
    pad: int | None
    dtype: str

    def within(self, context: int | None) -> ModelConfig:
        """The same model with its context cut to ``context`` tokens (None: as it is)."""
        if context is None:
            return self
        if not 2 <= context <= self.max_positions:
            raise MkvizError(f"context: {context}", f"2 to {self.max_positions} tokens, what the model was made for")
        return replace(self, max_positions=context)

    def inv_freq(self) -> np.ndarray:
        """f32[head_dim // 2]: radians per position of each rotated pair."""
        return rope.inv_freq(self.rope_theta, self.head_dim, self.rope_scaling)

    @property
    def rope_scale(self) -> float:
        """Multiplies cos and sin: YaRN's attention factor, otherwise 1."""
        return float((self.rope_scaling or {}).get("attention_factor", 1.0))


# Fields without influence on what is computed here: training, bookkeeping, other programs' switches.
INERT = words(
    """transformers_version initializer_range attention_dropout use_cache output_router_logits router_aux_loss_coef
    pretraining_tp output_attentions output_hidden_states return_dict chunk_size_feed_forward id2label label2id num_labels
    problem_type _name_or_path name_or_path _attn_implementation attn_implementation tokenizer_class torchscript
    cache_implementation use_parallel_embedding transformers.js_config _commit_hash"""
)

# Fields with one honoured value (a family may fix more): the rest of the code assumes it.
FIXED = {"hidden_act": "silu", "is_encoder_decoder": False, "add_cross_attention": False, "partial_rotary_factor": 1.0}

# Fields that are read for every family.
COMMON = words(
    """architectures model_type vocab_size hidden_size num_hidden_layers num_attention_heads num_key_value_heads head_dim
    intermediate_size max_position_embeddings rope_parameters rope_scaling rope_theta attention_bias tie_word_embeddings
    bos_token_id eos_token_id pad_token_id dtype torch_dtype"""
)


def load_config(directory: str | Path) -> ModelConfig:
    """Read ``config.json`` (and the end tokens of ``generation_config.json``) of a model directory.

    Raises :class:`MkvizError` naming the field and its value when the file is missing, unreadable, of an architecture
    outside :data:`engine.families.FAMILIES`, or says something that the engine would not honour.
    """
    directory = Path(directory)
    if not directory.is_dir():
        raise MkvizError(f"model {directory}: no such directory", "a directory with config.json, tokenizer.json and weights")
    values = read_json(directory / "config.json")
    kind = values.get("model_type")
    if kind not in FAMILIES:
        Fields(values).refuse("model_type", f"one of {', '.join(FAMILIES)}")
    f = Fields(values, FAMILIES[kind].defaults)
    _check_fields(f, FAMILIES[kind])
    return _build(f, kind, _eos(f, directory))


def read_json(path: Path) -> dict:
    """A JSON object from a file of a model directory; :class:`MkvizError` naming the file otherwise."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise MkvizError(f"{path}: no such file", f"a model directory holds {path.name}") from None
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as e:
        raise MkvizError(f"{path}: not readable as JSON ({e})", "fetch the file again") from None
    if not isinstance(values, dict):
        raise MkvizError(f"{path}: holds a {type(values).__name__}", "a JSON object")
    return values


def _check_fields(f: Fields, family: Family) -> None:
    for name, value in f.values.items():
        if name in (fixed := FIXED | family.fixed):
            if value != fixed[name] and value is not None:
                f.refuse(name, f"only {json.dumps(fixed[name])} is honoured")
        elif name == "quantization_config":
            f.refuse(name, "weights in bfloat16, float16 or float32; dequantise the checkpoint first")
        elif name not in COMMON | INERT | family.fields | family.inert:
            f.refuse(name, f"this field is not known for {f.values['model_type']}; remove it if it changes nothing")
    architectures = f.values.get("architectures")
    if architectures is not None and architectures != [family.architecture]:
        f.refuse("architectures", f"[{family.architecture!r}]")


def _eos(f: Fields, directory: Path) -> tuple[int, ...]:
    """End tokens: generation_config.json, where it names any, has the word over config.json."""
    vocab = f.integer("vocab_size")
    path, value = directory / "generation_config.json", None
    if path.exists():
        value = read_json(path).get("eos_token_id")
    if value is None:
        path, value = directory / "config.json", f.values.get("eos_token_id")
    ids = [] if value is None else value if isinstance(value, list) else [value]
    for i in ids:
        if isinstance(i, bool) or not isinstance(i, int) or not 0 <= i < vocab:
            raise MkvizError(f"{path.name}: eos_token_id {value!r}", f"token ids below vocab_size {vocab}")
    return tuple(dict.fromkeys(ids))


def _build(f: Fields, kind: str, eos: tuple[int, ...]) -> ModelConfig:
    vocab, hidden, heads = f.integer("vocab_size"), f.integer("hidden_size"), f.integer("num_attention_heads")
    if f.integer("num_hidden_layers") > MOST_LAYERS:  # before a spec is made of each
        f.refuse("num_hidden_layers", f"at most {MOST_LAYERS}")
    own = FAMILIES[kind].build(f)
    kv_heads = f.integer("num_key_value_heads", heads)
    if heads % kv_heads:
        f.refuse("num_key_value_heads", f"a divisor of num_attention_heads {heads}")
    if hidden < heads and f.defaults.get("head_dim") is None and not f.given("head_dim"):
        f.refuse("num_attention_heads", f"at most hidden_size {hidden}, or a head_dim")
    head_dim = f.integer("head_dim", hidden // heads)
    if head_dim % 2:
        f.refuse("head_dim", "an even number: RoPE rotates pairs")
    max_positions = f.integer("max_position_embeddings")
    theta, scaling = _rope(f, max_positions)
    dtype = f.values.get("dtype") or f.values.get("torch_dtype") or ""
    if dtype and dtype not in DTYPES:
        f.refuse("dtype" if f.values.get("dtype") else "torch_dtype", f"one of {', '.join(DTYPES)}")
    if f.given("torch_dtype") and f.values["torch_dtype"] != dtype:  # the older name of the same
        f.refuse("torch_dtype", f"the same as dtype {dtype!r}, or one of the two alone")
    common = {
        "family": kind, "vocab": vocab, "hidden": hidden, "heads": heads, "kv_heads": kv_heads, "head_dim": head_dim,
        "window": f.integer("sliding_window") if any(layer.attention == "sliding" for layer in own["layers"]) else 0,
        "parallel": False, "norm": "rms", "eps": own.get("eps") or f.number("rms_norm_eps", 1e-6),
        "rope_style": "half", "rope_theta": theta, "rope_scaling": scaling,
        "attention_bias": f.flag("attention_bias", False), "mlp_bias": False, "qk_norm": False, "experts": 0, "top_k": 0,
        "router": "", "renormalise": False, "shared_width": 0, "shared_combine": "average",
        "logit_scale": f.number("logit_scale", 1.0), "tied": f.flag("tie_word_embeddings", False),
        "max_positions": max_positions, "eos": eos, "bos": f.token("bos_token_id", vocab),
        "pad": f.token("pad_token_id", vocab), "dtype": dtype,
    }  # fmt: skip
    return ModelConfig(**common | own)


def _rope(f: Fields, max_positions: int) -> tuple[float, dict | None]:
    """theta and scaling from ``rope_parameters`` (newer files) or ``rope_scaling`` (older); theta inside them wins."""
    field = "rope_scaling" if f.given("rope_scaling") else "rope_parameters"
    if f.given("rope_scaling") and f.given("rope_parameters"):
        f.refuse("rope_scaling", "one of rope_scaling and rope_parameters, not both")
    parameters = f.values.get(field) or {}
    if not isinstance(parameters, dict):
        f.refuse(field, "an object with rope_type and rope_theta")
    inner = Fields({f"{field}.rope_theta": parameters.get("rope_theta")})
    theta = inner.number(f"{field}.rope_theta") if inner.given(f"{field}.rope_theta") else f.number("rope_theta", 10_000.0)
    if theta <= 1:
        where = field + ".rope_theta" if inner.given(field + ".rope_theta") else "rope_theta"
        raise MkvizError(f"config.json: {where} {theta!r}", "a number above 1")
    return theta, rope.normalise(parameters, field, max_positions)
