"""`engine/observe.py`'s `window_state` in one launch."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from unmask.engine.kernels import triton_decision
from unmask.engine.observe import WindowState
from unmask.rules.kernels.selection import bits
from unmask.rules.kernels.serving import next_power

_KERNELS: Any = triton_decision  # a launch is no call that a type checker understands
POSITIONS = 1024  # of a canvas, that a kernel looks at together


def window_state(
    tokens: Int[Tensor, "b n"],
    holes: Bool[Tensor, "b n"],
    at: Int[Tensor, "b k"],
    inside: Bool[Tensor, "b k"],
    *,
    mask_id: int,
) -> WindowState:
    (b, k), n = at.shape, tokens.shape[1]
    masked, decoded = (at.new_empty((b, k), dtype=torch.uint8) for _ in range(2))
    standing, (remaining, total) = tokens.new_empty((b, k)), (at.new_empty(b) for _ in range(2))
    with torch.cuda.device_of(tokens):  # a launch goes to the current device
        _KERNELS.find_state[(b,)](
            *(tokens.contiguous(), bits(holes), at.contiguous(), bits(inside)),
            *(masked, standing, decoded, remaining, total),
            *(n, k, mask_id),
            N=POSITIONS,
            K=columns_together(k),
            num_warps=4,
        )
    flags = {"masked": masked.view(torch.bool), "decoded": decoded.view(torch.bool)}
    return WindowState(**flags, tokens=standing, remaining=remaining, total=total)


def columns_together(k: int) -> int:
    """How many columns of a window a kernel looks at together: a power of two."""
    return min(POSITIONS, max(32, next_power(k)))
