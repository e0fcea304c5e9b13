"""transformers as the reference: a checkpoint in fp32 and in bf16, and what its rounding noise leaves undecided."""

from dataclasses import dataclass

import numpy as np
import torch
from transformers import AutoModelForCausalLM

SHORT_CONTEXT = 32  # rows; in a longer one no single row weighs much


@dataclass
class Forward:
    """``logits`` f32[rows, vocab]; ``routers`` {layer: f32[rows, experts]}: router logits of the MoE layers; ``top_k``."""

    logits: np.ndarray
    routers: dict[int, np.ndarray]
    top_k: int


def load(directory, dtype):
    how = {"attn_implementation": "eager", "experts_implementation": "eager"}
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=dtype, **how).eval()
    return model.to("cuda" if torch.cuda.is_available() else "cpu")


def forward(model, tokens: np.ndarray) -> Forward:
    """``tokens`` i64[sequences, length]; rows of the result are sequence by sequence."""
    routers, hooks = {}, []
    for name, module in model.named_modules():
        if name.endswith("mlp.gate"):
            layer = int(name.split(".")[2])

            def keep(_, inputs, output, layer=layer):
                routers[layer] = output[0].float().cpu().numpy()

            hooks.append(module.register_forward_hook(keep))
    with torch.no_grad():
        logits = model(torch.tensor(tokens, device=model.device), use_cache=False).logits
    for hook in hooks:
        hook.remove()
    top_k = getattr(model.config, "num_experts_per_tok", 0) if routers else 0
    return Forward(logits.float().cpu().numpy().reshape(-1, logits.shape[-1]), routers, top_k)


def relative(got: np.ndarray, want: np.ndarray) -> float:
    """Norm of the difference by the norm of what is wanted."""
    return float(np.linalg.norm((got - want).astype(np.float64)) / np.linalg.norm(want.astype(np.float64)))


def row_errors(got: np.ndarray, want: np.ndarray) -> np.ndarray:
    """f64[rows]: the same, row by row."""
    return np.linalg.norm(got - want, axis=1) / np.linalg.norm(want, axis=1)


def beyond_noise(exact: np.ndarray, rounded: np.ndarray, k: int, sigmas: float = 2, by_row=False) -> np.ndarray:
    """bool[rows]: whether the k-th largest value of a row leads the next by more than rounding noise.

    Noise is that of transformers' own bf16 run, for each column by itself: the standard deviation that the median of the
    differences tells (a row whose experts changed is no measure of rounding), of the two values together.  ``by_row``: and
    of each row by how far off it is as a whole: where few keys decide, rounding weighs much in some rows.
    """
    noise = np.median(np.abs(rounded - exact), axis=0) / 0.6745  # of a normal distribution
    order = np.argpartition(-exact, [k - 1, k], axis=1)
    rows, first, second = np.arange(len(exact)), order[:, k - 1], order[:, k]
    off = np.linalg.norm(rounded - exact, axis=1)
    more = off / np.median(off) if by_row else 1
    return exact[rows, first] - exact[rows, second] > sigmas * more * np.hypot(noise[first], noise[second])


def routing_decided(exact: Forward, rounded: Forward, length: int) -> np.ndarray:
    """bool[rows]: whether every choice of experts is beyond rounding noise, in sequences of ``length`` rows.

    Where it is not, transformers' own bf16 run may compute another function, and in a short context the rows that attend to
    such a row as well.
    """
    out = np.ones(len(exact.logits), bool)
    for layer, router in exact.routers.items():
        if exact.top_k < router.shape[1]:
            out &= beyond_noise(router, rounded.routers[layer], exact.top_k)
    early = out.reshape(-1, length)[:, :SHORT_CONTEXT]
    early[:] = np.logical_and.accumulate(early, axis=1)
    return out
