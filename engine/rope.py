"""Rotary position embedding: the forms a config may ask for, and the frequencies they mean.

The arithmetic follows the usual reference order in float32 (numbers that are Python floats there stay float64 here), because
an angle is position × frequency: one rounding step of difference grows with the position.
"""

from __future__ import annotations

import math

import numpy as np

from mkviz.errors import MkvizError

# What each form may carry besides its type and rope_theta.
_KEYS = {
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
    "yarn": ("factor", "attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim",
             "original_max_position_embeddings", "truncate"),
}  # fmt: skip
_OPTIONAL = {"attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate"}


def normalise(parameters: dict, field: str, max_positions: int) -> dict | None:
    """The scaling of a ``rope_parameters`` or ``rope_scaling`` object with every default filled in; None for plain RoPE.

    ``field`` names the object in messages.  Raises :class:`MkvizError` for a form or key that is not honoured.
    """
    kind = parameters.get("rope_type", parameters.get("type", "default"))
    if kind not in _KEYS:
        raise MkvizError(f"config.json: {field}.rope_type {kind!r}", f"one of {', '.join(_KEYS)} is honoured")
    if parameters.get("partial_rotary_factor", 1.0) != 1.0:
        value = parameters["partial_rotary_factor"]
        raise MkvizError(f"config.json: {field}.partial_rotary_factor {value!r}", "only 1.0, all of the head, is honoured")
    known = {"rope_type", "type", "rope_theta", "partial_rotary_factor", *_KEYS[kind]}
    for key, value in parameters.items():
        if key not in known:
            right = f"the {kind} form takes {', '.join(_KEYS[kind]) or 'no parameter but rope_theta'}"
            raise MkvizError(f"config.json: {field}.{key} {value!r} is not known", right)
    if kind == "default":
        return None

    out = {"rope_type": kind}
    for key in _KEYS[kind]:
        value = parameters.get(key)
        if value is None and key == "original_max_position_embeddings":
            value = max_positions
        if value is None and key == "factor" and kind == "yarn":
            value = max_positions / (parameters.get("original_max_position_embeddings") or max_positions)
        if value is None and key in _OPTIONAL:
            continue
        if key == "truncate":
            if not isinstance(value, bool):
                raise MkvizError(f"config.json: {field}.truncate {value!r}", "true or false")
        elif isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
            raise MkvizError(f"config.json: {field}.{key} {value!r}", f"the {kind} form needs a number above 0")
        out[key] = value
    if kind == "llama3" and out["high_freq_factor"] <= out["low_freq_factor"]:
        raise MkvizError(
            f"config.json: {field}.high_freq_factor {out['high_freq_factor']!r}",
            f"a number above low_freq_factor, {out['low_freq_factor']!r}",
        )
    if kind == "yarn":
        _finish_yarn(out)
    return out


def _finish_yarn(out: dict) -> None:
    """Fill in YaRN's defaults and fold the mscale pair into ``attention_factor``."""

    def mscale(weight: float) -> float:
        return 1.0 if out["factor"] <= 1 else 0.1 * weight * math.log(out["factor"]) + 1.0

    pair = out.pop("mscale", None), out.pop("mscale_all_dim", None)
    out.setdefault("attention_factor", mscale(pair[0]) / mscale(pair[1]) if all(pair) else mscale(1.0))
    out.setdefault("beta_fast", 32)
    out.setdefault("beta_slow", 1)
    out.setdefault("truncate", True)


def inv_freq(theta: float, head_dim: int, scaling: dict | None) -> np.ndarray:
    """f32[head_dim // 2]: radians per position of each pair; ``scaling`` as :func:`normalise` returns it."""
    powers = np.float32(theta) ** (np.arange(0, head_dim, 2).astype(np.float32) / np.float32(head_dim))
    plain = np.float32(1) / powers
    if scaling is None:
        return plain
    factor = np.float32(scaling["factor"])
    if scaling["rope_type"] == "linear":
        return plain / factor
    if scaling["rope_type"] == "llama3":
        return _llama3(plain, scaling)
    keep = np.float32(1) - _ramp(theta, head_dim, scaling)
    return np.float32(1) / (factor * powers) * (np.float32(1) - keep) + plain * keep


def _llama3(plain: np.ndarray, scaling: dict) -> np.ndarray:
    """Long wavelengths are stretched by the factor, short ones kept, those between blended."""
    context, factor = scaling["original_max_position_embeddings"], np.float32(scaling["factor"])
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    wavelength = np.float32(2 * math.pi) / plain
    long, short = wavelength > context / low, wavelength < context / high
    share = (np.float32(context) / wavelength - np.float32(low)) / np.float32(high - low)
    blend = (np.float32(1) - share) * plain / factor + share * plain
    return np.where(long, plain / factor, np.where(short, plain, blend)).astype(np.float32)


def _ramp(theta: float, head_dim: int, scaling: dict) -> np.ndarray:
    """f32[head_dim // 2]: YaRN's share of interpolation, 0 for the fastest pairs and 1 for the slowest."""

    def pair_turning(times: float) -> float:  # the (fractional) pair that turns so often over the original context
        context = scaling["original_max_position_embeddings"]
        return head_dim * math.log(context / (times * 2 * math.pi)) / (2 * math.log(theta))

    low, high = pair_turning(scaling["beta_fast"]), pair_turning(scaling["beta_slow"])
    if scaling["truncate"]:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    if low == high:
        high += 0.001
    pairs = np.arange(head_dim // 2, dtype=np.float32)
    return np.clip((pairs - np.float32(low)) / np.float32(high - low), 0, 1)
