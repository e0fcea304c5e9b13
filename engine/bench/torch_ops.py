"""The ops of a decode step as torch offers them: attention of one query and the experts of a few rows in several ways, of which
the fastest is chosen by measurement.

Shapes: ``q`` [rows, heads, head_dim]; ``k``, ``v`` [rows, kv_heads, keys, head_dim]; ``n`` [rows, hidden]; ``chosen`` i64 and
``weight`` [rows, top_k]; ``up`` [experts, 2 * width, hidden] (gate rows, then up rows); ``down`` [experts, hidden, width].
"""

from __future__ import annotations

from functools import cache

import torch
from torch.nn import functional as F

# -- attention


def sdpa(q, k, v):
    return F.scaled_dot_product_attention(q[:, :, None], k, v, enable_gqa=True)[:, :, 0]


def sdpa_grouped(q, k, v):
    """The heads that share K and V as queries of one head: nothing masks, so that they need not be in order."""
    grouped = q.view(q.shape[0], k.shape[1], -1, q.shape[2])
    return F.scaled_dot_product_attention(grouped, k, v).reshape(q.shape)


def products(q, k, v):
    grouped = q.view(q.shape[0], k.shape[1], -1, q.shape[2])
    scores = (grouped @ k.transpose(-1, -2)).float() * q.shape[2] ** -0.5
    return (scores.softmax(-1).to(v.dtype) @ v).reshape(q.shape)


@cache
def _flex():
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention, dynamic=False)


def flex(q, k, v):
    return _flex()(q[:, :, None], k, v, enable_gqa=True)[:, :, 0]


ATTENTION = {"sdpa": sdpa, "sdpa grouped": sdpa_grouped, "products": products, "flex": flex}

# -- experts


def gathered(n, chosen, weight, up, down):
    """The chosen experts' matrices are copied side by side, then batched products."""
    expert, x = chosen.reshape(-1), n.repeat_interleave(chosen.shape[1], 0)
    hidden = gated(torch.bmm(up[expert], x[:, :, None])[:, :, 0]) * weight.reshape(-1, 1)
    out = torch.bmm(down[expert], hidden[:, :, None])[:, :, 0]
    return out.view(*chosen.shape, -1).sum(1)


def matvec(n, chosen, weight, up, down):
    """Sums that read the chosen experts' matrices where they lie, once the compiler has drawn the gather into them."""
    expert, x = chosen.reshape(-1), n.repeat_interleave(chosen.shape[1], 0)
    hidden = gated((up[expert] * x[:, None]).sum(-1)) * weight.reshape(-1, 1)
    out = (down[expert] * hidden[:, None]).sum(-1)
    return out.view(*chosen.shape, -1).sum(1)


def grouped(n, chosen, weight, up, down):
    """torch's grouped product over the rows in the order of their experts."""
    product = getattr(F, "grouped_mm", None) or torch._grouped_mm
    expert = chosen.reshape(-1)
    order = expert.argsort(stable=True)
    ends = (expert[:, None] == torch.arange(len(up), device=n.device)).sum(0).cumsum(0).to(torch.int32)
    hidden = gated(product(n[order // chosen.shape[1]], up.transpose(1, 2), offs=ends)) * weight.reshape(-1, 1)[order]
    out = product(hidden, down.transpose(1, 2), offs=ends)
    return torch.empty_like(out).index_copy(0, order, out).view(*chosen.shape, -1).sum(1)


EXPERTS = {"gathered": gathered, "grouped": grouped, "matvec": matvec}


def gated(y):
    gate, up = y.chunk(2, -1)
    return F.silu(gate) * up


def rotated(y, cos, sin, interleaved: bool):
    """RoPE of y [rows, heads, head_dim] by cos and sin f32[head_dim / 2]."""
    one, two = (y[..., 0::2].float(), y[..., 1::2].float()) if interleaved else y.float().chunk(2, -1)
    a, b = one * cos - two * sin, two * cos + one * sin
    return (torch.stack((a, b), -1).flatten(-2) if interleaved else torch.cat((a, b), -1)).to(y.dtype)


def chosen_experts(logits, kind: str, top_k: int, renormalise: bool):
    """(chosen i64, weight f32), each [rows, top_k], of a router's logits f32[rows, experts]."""
    top, chosen = logits.topk(top_k, -1)
    if kind == "sigmoid":
        weight = top.sigmoid()
    elif kind == "softmax_chosen":
        weight = top.softmax(-1)
    else:
        weight = logits.softmax(-1).gather(-1, chosen)
    return chosen, weight / weight.sum(-1, keepdim=True) if renormalise else weight
