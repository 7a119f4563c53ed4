"""What is known of a window before anybody has looked at the prediction; in one launch where kernels run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from unmask.rules.kernels import kernels_run
from unmask.rules.selection import bits

PLACES = 1024  # of a canvas, that a kernel looks at together


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """About the columns of a window, and about the whole canvas of each row."""

    masked: Bool[Tensor, "b k"]  # open
    standing: Int[Tensor, "b k"]  # tokens, -1 outside a narrow block
    decoded: Bool[Tensor, "b k"]  # filled earlier in this generation
    remaining: Int[Tensor, " b"]  # masks
    total: Int[Tensor, " b"]  # masks there were to begin with


def facts_of(
    tokens: Int[Tensor, "b n"],
    holes: Bool[Tensor, "b n"],
    at: Int[Tensor, "b k"],
    inside: Bool[Tensor, "b k"],
    *,
    mask_id: int,
) -> Facts:
    """The facts about a window whose columns stand `at` these places and belong to the row's block if `inside`."""
    if kernels_run(tokens.device):
        return facts_by_kernel(tokens, holes, at, inside, mask_id=mask_id)
    return plain_facts(tokens, holes, at, inside, mask_id=mask_id)


def plain_facts(
    tokens: Int[Tensor, "b n"],
    holes: Bool[Tensor, "b n"],
    at: Int[Tensor, "b k"],
    inside: Bool[Tensor, "b k"],
    *,
    mask_id: int,
) -> Facts:
    """`facts_of` in plain torch."""
    is_mask = tokens == mask_id
    return Facts(
        masked=is_mask.gather(1, at) & inside,
        standing=tokens.gather(1, at).masked_fill(~inside, -1),
        decoded=(holes & ~is_mask).gather(1, at) & inside,
        remaining=is_mask.sum(-1),
        total=holes.sum(-1),
    )


def facts_by_kernel(
    tokens: Int[Tensor, "b n"],
    holes: Bool[Tensor, "b n"],
    at: Int[Tensor, "b k"],
    inside: Bool[Tensor, "b k"],
    *,
    mask_id: int,
) -> Facts:
    """`facts_of` by a kernel."""
    from unmask.engine import decision_kernels

    kernels: Any = decision_kernels  # a launch is no call that a type checker understands
    (b, k), n = at.shape, tokens.shape[1]
    masked, decoded = (at.new_empty((b, k), dtype=torch.uint8) for _ in range(2))
    standing, (remaining, total) = tokens.new_empty((b, k)), (at.new_empty(b) for _ in range(2))
    # A launch goes to the current device.
    with torch.cuda.device_of(tokens):
        kernels.find_facts[(b,)](
            *(tokens.contiguous(), bits(holes), at.contiguous(), bits(inside)),
            *(masked, standing, decoded, remaining, total),
            *(n, k, mask_id),
            N=PLACES,
            K=columns_together(k),
            num_warps=4,
        )
    return Facts(
        masked=masked.view(torch.bool),
        standing=standing,
        decoded=decoded.view(torch.bool),
        remaining=remaining,
        total=total,
    )


def columns_together(k: int) -> int:
    """How many columns of a window a kernel looks at together: a power of two."""
    return min(PLACES, max(32, 1 << (k - 1).bit_length()))
