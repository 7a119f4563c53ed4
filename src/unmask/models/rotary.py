"""Rotary position embedding: pairs of features turned by an angle that grows with the position.

Tables and rotation are float32 whatever the model's dtype, because bfloat16 cannot tell neighbouring positions apart
beyond a few hundred. Knows no frequency scaling: families that need it are refused when their config is read.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn


class Rotary(nn.Module):
    """Cosines and sines by position, in a table that grows with the longest canvas seen."""

    def __init__(self, head_width: int, theta: float) -> None:
        super().__init__()
        self.pairs = head_width // 2
        self.theta = theta
        # Not a buffer: casting the model must leave it in float32.
        self.table = torch.empty(2, 0, head_width)
        self._outgrown: list[Tensor] = []  # a captured graph may still read them

    def forward(self, length: int, *, device: torch.device) -> Float[Tensor, "2 _ d"]:
        """Cosine, and sine with the sign of each half, of the positions below `length`, and perhaps beyond."""
        if self.table.shape[1] < length or self.table.device != device:
            self._outgrown.append(self.table)
            self.table = self._tabulate(1 << (length - 1).bit_length(), device)
        return self.table

    def _tabulate(self, length: int, device: torch.device) -> Float[Tensor, "2 n d"]:
        # The table outlives this call, so it must not be an inference tensor, which gradients cannot pass.
        with torch.inference_mode(False):
            exponents = torch.arange(self.pairs, dtype=torch.float32, device=device) / self.pairs
            angles = torch.arange(length, dtype=torch.float32, device=device)[:, None] / self.theta**exponents
            cos, sin = angles.cos(), angles.sin()
            return torch.stack([torch.cat([cos, cos], dim=-1), torch.cat([-sin, sin], dim=-1)])


def rotate(x: Float[Tensor, "b n h d"], turn: Float[Tensor, "2 _ n 1 d"]) -> None:
    """Turn every head by the angle of its position, in place; feature `i` is paired with feature `i + d/2`."""
    cos, sin = turn
    partner = x.roll(x.shape[-1] // 2, dims=-1)
    if x.dtype == cos.dtype:
        torch.addcmul(x * cos, partner, sin, out=x)
    else:
        x.copy_(torch.addcmul(x * cos, partner, sin))  # float32 throughout, since the table is; rounded once
