"""Where a block lies in the whole canvas, and work over the canvas that keeps little in memory at once."""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from unmask.types import StepView

POSITIONS_AT_ONCE = 128  # at a vocabulary of 126,464 one float64 copy is 130 MB


def block_positions(view: StepView, length: int) -> Int[Tensor, "b k"]:
    """Absolute position of each column; columns past the end of the canvas, never open, point to its last position."""
    columns = torch.arange(view.masked.shape[1], device=view.masked.device)
    return (view.start[:, None] + columns).clamp(max=length - 1)


def block_attention(attention: Float[Tensor, "b n n"], at: Int[Tensor, "b k"]) -> Float[Tensor, "b k n"]:
    """The rows of the map in which the block's positions are the queries."""
    return attention.gather(1, at[..., None].expand(-1, -1, attention.shape[-1]))


def among(block_rows: Shaped[Tensor, "b k n"], at: Int[Tensor, "b k"]) -> Shaped[Tensor, "b k k"]:
    """The columns in which the block's positions are the keys."""
    return block_rows.gather(2, at[:, None, :].expand(-1, at.shape[1], -1))


def over_positions(figure: Callable[..., Tensor], *logits: Float[Tensor, "b n v"]) -> Float[Tensor, "b n *figures"]:
    """`figure` of every position's logits, computed a few positions at a time."""
    parts = zip(*(part.split(POSITIONS_AT_ONCE, dim=1) for part in logits), strict=True)
    return torch.cat([figure(*part) for part in parts], dim=1)
