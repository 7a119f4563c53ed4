"""Small things that most decisions about positions need, each in one launch where kernels serve; see `kernels`.

The result is the same, bit for bit, with kernels and without.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from unmask.rules.kernels import kernels_serve

_AT_ONCE = 1024  # positions that one program picks
_MINE, _OTHERS = 32, 64  # positions whose ranks one program finds, and those it compares them with at a time


def kept(
    values: Float[Tensor, "*positions"], where: Bool[Tensor, "*positions"], other: float
) -> Float[Tensor, "*positions"]:
    """The values there, and another elsewhere."""
    return kept_by_kernel(values, where, other) if kernels_serve(values) else values.where(where, other)


def can_occur(
    tokens: Int[Tensor, "b k"], logits: Float[Tensor, "b k v"], masked: Bool[Tensor, "b k"]
) -> Bool[Tensor, "b k"]:
    """Open positions whose token is not ruled out by a logit of -inf; what closed positions hold does not matter."""
    if kernels_serve(logits):
        return possible_by_kernel(tokens, logits, masked)
    readable = tokens.long().where(masked, 0)
    return masked & (logits.gather(-1, readable[..., None]).squeeze(-1) != -torch.inf)


def kept_by_kernel(
    values: Float[Tensor, "*positions"], where: Bool[Tensor, "*positions"], other: float
) -> Float[Tensor, "*positions"]:
    """What `kept` gives."""
    kernels = _kernels()
    values = values.detach().expand_as(where).contiguous()
    out = torch.empty_like(values)
    with torch.cuda.device_of(values):  # a launch goes to the current device
        kernels.keep_values[(-(-values.numel() // _AT_ONCE),)](
            *(values, bits(where), out, other, values.numel()), W=_AT_ONCE, num_warps=4
        )
    return out


def possible_by_kernel(
    tokens: Int[Tensor, "b k"], logits: Float[Tensor, "b k v"], masked: Bool[Tensor, "b k"]
) -> Bool[Tensor, "b k"]:
    """What `can_occur` gives; a token that is none cannot occur."""
    kernels = _kernels()
    logits = logits.detach()
    logits = logits if logits.stride(-1) == 1 else logits.contiguous()
    _, k, v = logits.shape
    out = logits.new_empty(masked.shape, dtype=torch.uint8)
    with torch.cuda.device_of(logits):
        kernels.find_possible[(-(-out.numel() // _AT_ONCE),)](
            *(logits, tokens.contiguous(), bits(masked), out, logits.stride(0), logits.stride(1), k, out.numel(), v),
            W=_AT_ONCE,
            num_warps=4,
        )
    return out.view(torch.bool)


def rank_by_kernel(score: Float[Tensor, "b k"], masked: Bool[Tensor, "b k"]) -> Int[Tensor, "b k"]:
    """Each position's place by descending score: open ones first, NaN and -inf last of them, ties to the lowest."""
    return _compared(score, masked, None)


def best_by_kernel(
    score: Float[Tensor, "b k"], masked: Bool[Tensor, "b k"], count: Int[Tensor, " b"]
) -> Bool[Tensor, "b k"]:
    """The open positions whose rank is below the count of their row."""
    return _compared(score, masked, count).view(torch.bool)


def bits(values: Bool[Tensor, "*shape"]) -> Shaped[Tensor, "*shape"]:
    """Truth values as a kernel reads them."""
    if values.dtype != torch.bool:
        raise TypeError(f"expected truth values, got {values.dtype}")
    return values.contiguous().view(torch.uint8)


def _compared(score: Tensor, masked: Tensor, count: Tensor | None) -> Tensor:
    kernels = _kernels()
    score, (b, k) = score.detach().expand_as(masked).contiguous(), masked.shape
    ends = torch.finfo(score.dtype)
    out = score.new_empty((b, k), dtype=torch.long if count is None else torch.uint8)
    with torch.cuda.device_of(score):
        kernels.compare_positions[(b, -(-k // _MINE))](
            *(score, bits(masked), out if count is None else count.expand(b).contiguous(), out, k),
            LOWEST=ends.min,
            HIGHEST=ends.max,
            COUNTED=count is not None,
            MINE=_MINE,
            OTHERS=_OTHERS,
            num_warps=4,
        )
    return out


def _kernels() -> Any:
    """A launch is no call that a type checker understands."""
    from unmask.rules import selection_kernels

    return selection_kernels
