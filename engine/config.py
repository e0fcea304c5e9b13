"""ModelConfig: what a checkpoint's config.json means, in one vocabulary for all families.

Every field of the file is either used, checked against the only values that can be honoured, or on the list of fields
that change nothing here.  Anything else is refused by name: a field that is silently ignored would be a wrong model.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from engine import rope
from mkviz.errors import MkvizError

DTYPES = ("bfloat16", "float16", "float32")


@dataclass(frozen=True)
class LayerSpec:
    """One layer: ``attention`` "full" | "sliding", ``rope`` whether it rotates q and k, ``mlp`` "dense" | "moe",
    ``width`` of the dense feed-forward or of one expert."""

    attention: str
    rope: bool
    mlp: str
    width: int


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

    def inv_freq(self) -> np.ndarray:
        """f32[head_dim // 2]: radians per position of each rotated pair."""
        return rope.inv_freq(self.rope_theta, self.head_dim, self.rope_scaling)

    @property
    def rope_scale(self) -> float:
        """Multiplies cos and sin: YaRN's attention factor, otherwise 1."""
        return float((self.rope_scaling or {}).get("attention_factor", 1.0))


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Fields without influence on what is computed here: training, bookkeeping, other programs' switches.
INERT = _words(
    """transformers_version initializer_range attention_dropout use_cache output_router_logits router_aux_loss_coef
    pretraining_tp output_attentions output_hidden_states return_dict chunk_size_feed_forward id2label label2id num_labels
    problem_type _name_or_path name_or_path _attn_implementation attn_implementation tokenizer_class torchscript
    cache_implementation use_parallel_embedding transformers.js_config _commit_hash"""
)

# Fields with one honoured value (per family below): the rest of the code assumes it.
_FIXED = {"hidden_act": "silu", "is_encoder_decoder": False, "add_cross_attention": False, "partial_rotary_factor": 1.0}

_COMMON = """architectures model_type vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads
    num_key_value_heads head_dim max_position_embeddings rope_parameters rope_scaling rope_theta attention_bias
    tie_word_embeddings bos_token_id eos_token_id pad_token_id dtype torch_dtype"""


@dataclass(frozen=True)
class _Family:
    architecture: str
    used: frozenset[str]
    fixed: dict  # field -> its one honoured value
    inert: frozenset[str] = frozenset()

    @classmethod
    def of(cls, architecture: str, used: str, inert: str = "", **fixed) -> _Family:
        return cls(architecture, _words(_COMMON + " " + used), _FIXED | fixed, _words(inert))


FAMILIES = {
    "cohere2_moe": _Family.of(
        "Cohere2MoeForCausalLM",
        """layer_norm_eps rms_norm_eps logit_scale num_experts num_experts_per_tok num_shared_experts
        shared_expert_combination_strategy expert_selection_fn norm_topk_prob sliding_window sliding_window_pattern
        layer_types mlp_layer_types prefix_dense_intermediate_size prefix_dense_sliding_window_pattern
        first_k_dense_replace""",
        rope_scaling=None,  # the reference ignores it for this family and reads rope_parameters alone
        use_qk_norm=False,
        use_parallel_block=True,
        use_gated_activation=True,
        layer_norm_bias=False,
        position_embedding_type="rope_gptj",
        rotary_pct=1.0,
    ),
    "llama": _Family.of("LlamaForCausalLM", "rms_norm_eps mlp_bias", is_llama_config=True, rope_interleaved=False),
    "qwen3": _Family.of("Qwen3ForCausalLM", "rms_norm_eps use_sliding_window sliding_window max_window_layers layer_types"),
    "qwen3_moe": _Family.of(
        "Qwen3MoeForCausalLM",
        """rms_norm_eps moe_intermediate_size num_experts num_local_experts num_experts_per_tok norm_topk_prob
        decoder_sparse_step mlp_only_layers use_sliding_window sliding_window""",
        inert="max_window_layers",  # with a window, every layer of this family slides
    ),
}


class _Fields:
    """Typed reading of config.json; every complaint names the field, its value and what would be right."""

    def __init__(self, values: dict):
        self.values = values

    def refuse(self, name: str, right: str):
        said = f"{name} {self.values[name]!r}" if name in self.values else f"{name} is missing"
        raise MkvizError(f"config.json: {said}", right)

    def given(self, name: str) -> bool:
        return self.values.get(name) is not None

    def integer(self, name: str, default: int | None = None, least: int = 1) -> int:
        value = self.values.get(name)
        value = default if value is None else value
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            self.refuse(name, f"a whole number of {least} or more")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        value = self.values.get(name)
        value = default if value is None else value
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
            self.refuse(name, "a number above 0")
        return float(value)

    def flag(self, name: str, default: bool) -> bool:
        value = self.values.get(name)
        value = default if value is None else value
        if not isinstance(value, bool):
            self.refuse(name, "true or false")
        return value

    def choice(self, name: str, choices: tuple[str, ...], default: str | None = None) -> str:
        value = self.values.get(name)
        value = default if value is None else value
        if value not in choices:
            self.refuse(name, f"one of {', '.join(choices)}")
        return value

    def token(self, name: str, vocab: int) -> int | None:
        value = self.values.get(name)
        if value is None or (value == -1 and name == "pad_token_id"):
            return None
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < vocab:
            self.refuse(name, f"null or a token id below vocab_size {vocab}")
        return value

    def per_layer(self, name: str, count: int, choices: tuple[str, ...]) -> list[str]:
        value = self.values[name]
        if not isinstance(value, list) or len(value) != count or any(v not in choices for v in value):
            self.refuse(name, f"num_hidden_layers {count} entries, each one of {', '.join(choices)}")
        return value


def load_config(directory: str | Path) -> ModelConfig:
    """Read ``config.json`` (and the end tokens of ``generation_config.json``) of a model directory.

    Raises :class:`MkvizError` naming the field and its value when the file is missing, unreadable, of an architecture
    outside :data:`FAMILIES`, or says something that the engine would not honour.
    """
    directory = Path(directory)
    if not directory.is_dir():
        raise MkvizError(f"model {directory}: no such directory", "a directory with config.json, tokenizer.json and weights")
    f = _Fields(read_json(directory / "config.json"))
    kind = f.values.get("model_type")
    if kind not in FAMILIES:
        f.refuse("model_type", f"one of {', '.join(FAMILIES)}")
    family = FAMILIES[kind]
    _check_fields(f, family)
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


def _check_fields(f: _Fields, family: _Family) -> None:
    for name, value in f.values.items():
        if name in family.fixed:
            if value != family.fixed[name] and value is not None:
                f.refuse(name, f"only {json.dumps(family.fixed[name])} is honoured")
        elif name == "quantization_config":
            f.refuse(name, "weights in bfloat16, float16 or float32; dequantise the checkpoint first")
        elif name not in family.used and name not in INERT and name not in family.inert:
            f.refuse(name, f"this field is not known for {f.values['model_type']}; remove it if it changes nothing")
    architectures = f.values.get("architectures")
    if architectures is not None and architectures != [family.architecture]:
        f.refuse("architectures", f"[{family.architecture!r}]")


def _eos(f: _Fields, directory: Path) -> tuple[int, ...]:
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


def _build(f: _Fields, kind: str, eos: tuple[int, ...]) -> ModelConfig:
    cohere = kind == "cohere2_moe"
    vocab, hidden, heads = f.integer("vocab_size"), f.integer("hidden_size"), f.integer("num_attention_heads")
    kv_heads = f.integer("num_key_value_heads", None if kind.startswith("qwen3") else heads)
    if heads % kv_heads:
        f.refuse("num_key_value_heads", f"a divisor of num_attention_heads {heads}")
    head_dim = f.integer("head_dim", 128 if kind in ("cohere2_moe", "qwen3") else hidden // heads)
    if head_dim % 2:
        f.refuse("head_dim", "an even number: RoPE rotates pairs")
    max_positions = f.integer("max_position_embeddings")
    theta, scaling = _rope(f, max_positions)
    layers = _LAYERS[kind](f)
    moe = any(layer.mlp == "moe" for layer in layers)
    experts, top_k, router, renormalise, shared = _moe(f, kind) if moe else (0, 0, "", False, 0)
    layer_norm = cohere and not f.given("rms_norm_eps")
    dtype = f.values.get("dtype") or f.values.get("torch_dtype") or ""
    if dtype and dtype not in DTYPES:
        f.refuse("dtype" if f.values.get("dtype") else "torch_dtype", f"one of {', '.join(DTYPES)}")
    return ModelConfig(
        family=kind, vocab=vocab, hidden=hidden, heads=heads, kv_heads=kv_heads, head_dim=head_dim, layers=layers,
        window=f.integer("sliding_window") if any(layer.attention == "sliding" for layer in layers) else 0,
        parallel=cohere, norm="layer" if layer_norm else "rms",
        eps=f.number("layer_norm_eps", 1e-5) if layer_norm else f.number("rms_norm_eps", 1e-6),
        rope_style="interleaved" if cohere else "half", rope_theta=theta, rope_scaling=scaling,
        attention_bias=f.flag("attention_bias", False), mlp_bias=f.flag("mlp_bias", False), qk_norm=kind.startswith("qwen3"),
        experts=experts, top_k=top_k, router=router, renormalise=renormalise, shared_width=shared,
        shared_combine=f.choice("shared_expert_combination_strategy", ("sum", "average"), "average"),
        logit_scale=f.number("logit_scale", 0.0625 if cohere else 1.0), tied=f.flag("tie_word_embeddings", cohere),
        max_positions=max_positions, eos=eos, bos=f.token("bos_token_id", vocab), pad=f.token("pad_token_id", vocab),
        dtype=dtype,
    )  # fmt: skip


def _rope(f: _Fields, max_positions: int) -> tuple[float, dict | None]:
    """theta and scaling from ``rope_parameters`` (newer files) or ``rope_scaling`` (older); theta inside them wins."""
    field = "rope_scaling" if f.given("rope_scaling") else "rope_parameters"
    if f.given("rope_scaling") and f.given("rope_parameters"):
        f.refuse("rope_scaling", "one of rope_scaling and rope_parameters, not both")
    parameters = f.values.get(field) or {}
    if not isinstance(parameters, dict):
        f.refuse(field, "an object with rope_type and rope_theta")
    inner = _Fields({f"{field}.rope_theta": parameters.get("rope_theta")})
    theta = inner.number(f"{field}.rope_theta") if inner.given(f"{field}.rope_theta") else f.number("rope_theta", 10_000.0)
    if theta <= 1:
        where = field + ".rope_theta" if inner.given(field + ".rope_theta") else "rope_theta"
        raise MkvizError(f"config.json: {where} {theta!r}", "a number above 1")
    return theta, rope.normalise(parameters, field, max_positions)


def _moe(f: _Fields, kind: str) -> tuple[int, int, str, bool, int]:
    """experts, top_k, router, renormalise, shared width."""
    if f.given("num_local_experts") and f.given("num_experts") and f.values["num_local_experts"] != f.values["num_experts"]:
        f.refuse("num_local_experts", f"the same as num_experts, {f.values['num_experts']!r}")
    name = "num_local_experts" if f.given("num_local_experts") else "num_experts"
    experts, top_k = f.integer(name), f.integer("num_experts_per_tok")
    if top_k > experts:
        f.refuse("num_experts_per_tok", f"at most {name} {experts}")
    if kind == "qwen3_moe":
        return experts, top_k, "softmax_all", f.flag("norm_topk_prob", False), 0
    sigmoid = f.choice("expert_selection_fn", ("softmax", "sigmoid"), "softmax") == "sigmoid"
    shared = f.integer("num_shared_experts", 0, least=0) * f.integer("intermediate_size")
    # A softmax over the chosen sums to one already; norm_topk_prob only concerns the sigmoid.
    return experts, top_k, "sigmoid" if sigmoid else "softmax_chosen", sigmoid and f.flag("norm_topk_prob", True), shared


_ATTENTION = {"full_attention": "full", "sliding_attention": "sliding"}


def _layers_cohere2_moe(f: _Fields) -> tuple[LayerSpec, ...]:
    count, prefix = f.integer("num_hidden_layers"), f.integer("first_k_dense_replace", 0, least=0)
    prefix_pattern, pattern = f.integer("prefix_dense_sliding_window_pattern", 1), f.integer("sliding_window_pattern", 4)
    if f.given("layer_types"):
        attention = f.per_layer("layer_types", count, tuple(_ATTENTION))
    else:  # the dense prefix has a pattern of its own, and the rest starts counting anew
        periods = [(i, prefix_pattern) for i in range(prefix)] + [(i, pattern) for i in range(count - prefix)]
        attention = ["sliding_attention" if (i + 1) % period else "full_attention" for i, period in periods[:count]]
    if f.given("mlp_layer_types"):
        mlp = f.per_layer("mlp_layer_types", count, ("dense", "sparse"))
    else:
        mlp = ["dense" if i < prefix else "sparse" for i in range(count)]
    width = f.integer("intermediate_size")
    dense_width = f.integer("prefix_dense_intermediate_size", width)
    return tuple(
        LayerSpec(
            attention=_ATTENTION[a],
            rope=a == "sliding_attention" or (m == "dense" and prefix_pattern == 1),
            mlp="dense" if m == "dense" else "moe",
            width=dense_width if m == "dense" else width,
        )
        for a, m in zip(attention, mlp, strict=True)
    )


def _layers_llama(f: _Fields) -> tuple[LayerSpec, ...]:
    return (LayerSpec("full", True, "dense", f.integer("intermediate_size")),) * f.integer("num_hidden_layers")


def _layers_qwen3(f: _Fields) -> tuple[LayerSpec, ...]:
    count, width = f.integer("num_hidden_layers"), f.integer("intermediate_size")
    slides, first = f.flag("use_sliding_window", False), f.integer("max_window_layers", 28, least=0)
    if f.given("layer_types"):
        attention = f.per_layer("layer_types", count, tuple(_ATTENTION))
        if "sliding_attention" in attention and not slides:
            f.refuse("layer_types", "sliding_attention needs use_sliding_window true")
    else:
        attention = ["sliding_attention" if slides and i >= first else "full_attention" for i in range(count)]
    return tuple(LayerSpec(_ATTENTION[a], True, "dense", width) for a in attention)


def _layers_qwen3_moe(f: _Fields) -> tuple[LayerSpec, ...]:
    attention = "sliding" if f.flag("use_sliding_window", False) else "full"
    step, dense = f.integer("decoder_sparse_step", 1), f.values.get("mlp_only_layers") or []
    if not isinstance(dense, list):
        f.refuse("mlp_only_layers", "a list of layer numbers")
    experts = f.values.get("num_local_experts") or f.values.get("num_experts")
    return tuple(
        LayerSpec(attention, True, "moe", f.integer("moe_intermediate_size"))
        if i not in dense and experts and (i + 1) % step == 0
        else LayerSpec(attention, True, "dense", f.integer("intermediate_size"))
        for i in range(f.integer("num_hidden_layers"))
    )


_LAYERS = {
    "cohere2_moe": _layers_cohere2_moe,
    "llama": _layers_llama,
    "qwen3": _layers_qwen3,
    "qwen3_moe": _layers_qwen3_moe,
}
