"""The functions of `rules/selection.py`, each in one launch."""

from __future__ import annotations

from types import NotImplementedType
from typing import Any

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from unmask.rules.kernels import triton_selection
from unmask.rules.kernels.serving import serves

_KERNELS: Any = triton_selection  # a launch is no call that a type checker understands
_AT_ONCE = 1024  # positions that one program picks
_MINE, _OTHERS = 32, 64  # positions whose ranks one program finds, and those it compares them with at a time


def kept(
    values: Float[Tensor, "*positions"], where: Bool[Tensor, "*positions"], other: float
) -> Float[Tensor, "*positions"] | NotImplementedType:
    if not serves(values):
        return NotImplemented
    values = values.detach().expand_as(where).contiguous()
    out = torch.empty_like(values)
    with torch.cuda.device_of(values):  # a launch goes to the current device
        _KERNELS.keep_values[(-(-values.numel() // _AT_ONCE),)](
            *(values, bits(where), out, other, values.numel()), W=_AT_ONCE, num_warps=4
        )
    return out


def can_occur(
    tokens: Int[Tensor, "b k"], logits: Float[Tensor, "b k v"], masked: Bool[Tensor, "b k"]
) -> Bool[Tensor, "b k"] | NotImplementedType:
    """An id outside the vocabulary cannot occur."""
    if not serves(logits):
        return NotImplemented
    logits = logits.detach()
    logits = logits if logits.stride(-1) == 1 else logits.contiguous()
    _, k, v = logits.shape
    out = logits.new_empty(masked.shape, dtype=torch.uint8)
    with torch.cuda.device_of(logits):
        _KERNELS.find_possible[(-(-out.numel() // _AT_ONCE),)](
            *(logits, tokens.contiguous(), bits(masked), out, logits.stride(0), logits.stride(1), k, out.numel(), v),
            W=_AT_ONCE,
            num_warps=4,
        )
    return out.view(torch.bool)


def rank_of(score: Float[Tensor, "b k"], masked: Bool[Tensor, "b k"]) -> Int[Tensor, "b k"] | NotImplementedType:
    """NaN and -inf come last of the open ones."""
    return _compared(score, masked, None) if serves(score) else NotImplemented


def best_scored(
    score: Float[Tensor, "b k"], masked: Bool[Tensor, "b k"], count: Int[Tensor, " b"]
) -> Bool[Tensor, "b k"] | NotImplementedType:
    return _compared(score, masked, count).view(torch.bool) if serves(score) else NotImplemented


def bits(values: Bool[Tensor, "*shape"]) -> Shaped[Tensor, "*shape"]:
    """Truth values as a kernel reads them."""
    if values.dtype != torch.bool:
        raise TypeError(f"expected truth values, got {values.dtype}")
    return values.contiguous().view(torch.uint8)


def _compared(score: Tensor, masked: Tensor, count: Tensor | None) -> Tensor:
    score, (b, k) = score.detach().expand_as(masked).contiguous(), masked.shape
    ends = torch.finfo(score.dtype)
    out = score.new_empty((b, k), dtype=torch.long if count is None else torch.uint8)
    with torch.cuda.device_of(score):
        _KERNELS.compare_positions[(b, -(-k // _MINE))](
            *(score, bits(masked), out if count is None else count.expand(b).contiguous(), out, k),
            LOWEST=ends.min,
            HIGHEST=ends.max,
            COUNTED=count is not None,
            MINE=_MINE,
            OTHERS=_OTHERS,
            num_warps=4,
        )
    return out
