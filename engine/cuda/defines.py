"""What the kernel is compiled for: a bucket of rows, a level of records, and one model or any."""

from __future__ import annotations

from engine.config import ModelConfig
from engine.cuda import abi, memory

FIXED_SHARED = 17 << 10  # bytes of a block's shared memory besides ring, activations and q, in the kernel for one row
# what those for more rows take beyond it; the build asserts it
MORE_SHARED = {rows: kib << 10 for rows, kib in {1: 0, 8: 23, 16: 33, 32: 42, 64: 61, 128: 100, 256: 115}.items()}


def kernel_defines(experts: int, trace: int, delays: bool = False, qk_norm: bool = False,
                   sampling: bool = False, rows: int = abi.ROWS) -> dict[str, int]:  # fmt: skip
    """What the kernel is compiled for.  Experts count in steps of 32, a lane each, so that models may share one
    that is compiled for none of them alone."""
    lanes, more = -(-max(1, experts) // 32) * 32, {"MK_QK_NORM": int(qk_norm), "MK_SAMPLING": int(sampling)}
    out = {"MK_EXPERTS": lanes, "MK_TRACE": trace, "MK_DELAYS": int(delays), "MK_FIXED_SHARED": fixed_shared(rows)}
    return out | {name: 1 for name, on in more.items() if on} | ({"MK_ROWS": rows} if rows != abi.ROWS else {})


def model_fields(config: ModelConfig) -> dict[str, int]:
    """Fields of ``abi.PARAMS`` that are the model's, and not a step's."""
    c, (moe, _) = config, memory.widths(config)
    return {
        "hidden": c.hidden, "heads": c.heads, "kv_heads": c.kv_heads, "head_dim": c.head_dim, "vocab": c.vocab,
        "experts": c.experts, "top_k": c.top_k, "expert_k16": moe // 16, "shared_k16": c.shared_width // 16,
        "parallel": int(c.parallel), "centre": int(c.norm == "layer"), "interleaved": int(c.rope_style == "interleaved"),
        "router_kind": abi.ROUTERS.index(c.router) if c.router else 0, "renormalise": int(c.renormalise),
        "shared_average": int(c.shared_width > 0 and c.shared_combine == "average"),
    }  # fmt: skip


def model_defines(config: ModelConfig) -> dict[str, int]:
    """For a kernel of this model alone (``Model`` in cuda/model.cuh)."""
    fields = {"routed_experts" if name == "experts" else name: value for name, value in model_fields(config).items()}
    return {f"MK_{name.upper()}": value for name, value in fields.items()} | {
        "MK_BIASES": int(config.attention_bias or config.mlp_bias)
    }


def fixed_shared(bucket: int) -> int:
    return FIXED_SHARED + MORE_SHARED[bucket]
