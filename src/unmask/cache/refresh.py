"""When the cache of a row is refreshed: every few blocks, or when the row's states have drifted too far."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unmask.cache.base import RowState


@dataclass(frozen=True, slots=True)
class EveryBlocks:
    """A refresh in the first pass of every `count`-th block."""

    count: int

    def due(self, row: RowState) -> bool:
        return row.block_step == 0 and row.spans_before % self.count == 0


@dataclass(frozen=True, slots=True)
class OnDrift:
    """A refresh when the states of open positions are further than `tolerated` from those of the last refresh."""

    tolerated: float  # mean of 1 - cosine

    def due(self, row: RowState) -> bool:
        return row.stale


Refresh: TypeAlias = EveryBlocks | OnDrift


class DriftStates:
    """The states of every cache slot at its last refresh.

    Only open positions count. The state of a committed position changes with its token; the state of a mask changes
    only because its context does. Everything stays on the device.
    """

    def __init__(self, tolerated: float, *, slots: int, length: int) -> None:
        self.tolerated, self.slots, self.length = tolerated, slots, length
        self._states: Tensor | None = None  # (slots, length, w)

    def renew(self, slots: Int[Tensor, " r"], states: Float[Tensor, "r n w"]) -> None:
        """Note what a refresh computed for the rows in these slots."""
        if self._states is None:
            self._states = states.new_zeros(self.slots, self.length, states.shape[2])
        self._states[slots, : states.shape[1]] = states

    def exceeded(
        self,
        slots: Int[Tensor, " r"],
        states: Float[Tensor, "r k w"],
        at: Int[Tensor, "r k"],
        masked: Bool[Tensor, "r k"],
    ) -> Bool[Tensor, " r"]:
        """Which rows have drifted too far, by the states that a pass computed at these positions."""
        assert self._states is not None  # a row's first pass is a refresh
        before = self._states[slots[:, None], at]
        moved = 1.0 - F.cosine_similarity(states.float(), before.float(), dim=-1)
        return moved.where(masked, 0.0).sum(-1) > self.tolerated * masked.sum(-1)
