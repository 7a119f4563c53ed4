"""How far rows have moved since their caches were last refreshed, by their last hidden states.

Only open positions count: what was committed has changed by itself, but the state of a mask changes because its context
did. Everything stays on the device.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor


class Drift:
    """The states of every row at its last refresh."""

    def __init__(self, tolerated: float) -> None:
        self.tolerated = tolerated  # mean of 1 - cosine
        self._states: Tensor | None = None  # (b, n, w)

    def keep(self, rows: Int[Tensor, " r"]) -> None:
        """Forget every row but these."""
        if self._states is not None:
            self._states = self._states[rows]

    def renew(self, states: Float[Tensor, "r n w"], rows: Int[Tensor, " r"] | None) -> Bool[Tensor, " r"]:
        """Note what a refresh computed for these rows (None: all); none of them has drifted."""
        if rows is None:
            self._states = states.clone()  # the next pass may compute where they lie
        else:
            assert self._states is not None  # the first refresh is of all rows
            self._states[rows, : states.shape[1]] = states  # no longer than the longest of these rows
        return states.new_zeros(states.shape[0], dtype=torch.bool)

    def exceeded(
        self,
        states: Float[Tensor, "r q w"],
        queries: Int[Tensor, "r q"],
        at: Int[Tensor, "r k"],
        masked: Bool[Tensor, "r k"],
        rows: Int[Tensor, " r"] | None,
    ) -> Bool[Tensor, " r"]:
        """Which of these rows (None: all) have drifted too far, by the states that a pass computed for `queries`."""
        assert self._states is not None
        places = torch.arange(states.shape[0], device=states.device) if rows is None else rows
        now = states.gather(1, (at - queries[:, :1])[:, :, None].expand(-1, -1, states.shape[2]))
        moved = 1.0 - F.cosine_similarity(now.float(), self._states[places[:, None], at].float(), dim=-1)
        return moved.where(masked, 0.0).sum(-1) > self.tolerated * masked.sum(-1)
