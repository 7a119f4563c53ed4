"""The kinds of cache: each plans what a pass computes anew. They hold settings; keys and values lie in storage.py.

With `prefix` and `dual` a row's cache is refreshed every few blocks, or when the row's hidden states before the head
have drifted too far since its last refresh. A shifted head (Dream's) predicts a position from the state before it. A
block's first position is pinned if the refresh at the start of the block commits it, and no later pass opens it again.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unmask.cache.base import PassPlan, RowPlan, RowState
from unmask.device import on_device
from unmask.settings import Settings


class Cache(ABC):
    """What every kind of cache answers."""

    __slots__ = ()
    kind: str

    @abstractmethod
    def plan(self, row: RowState) -> RowPlan:
        """The plan of the row's next pass."""

    @abstractmethod
    def plan_next(self, row: RowState) -> RowPlan | None:
        """The plan of the pass after the one under way, if the row stays in its block, for runners that begin early.

        None: the result of the pass under way decides.
        """


class NoCache(Cache):
    """Every pass computes the whole canvas."""

    __slots__ = ()
    kind = "none"

    def plan(self, row: RowState) -> RowPlan:
        return RowPlan(span=(0, row.length), visible=row.length)

    plan_next = plan


class Exact(Cache):
    """For block-causal models: a block sees itself and the blocks before it, so a finished block never changes.

    Every pass over a block writes provisional keys and values of the block, which that pass alone reads. The first pass
    over the next block computes the finished block once more, now with all its tokens, and writes the final ones. The
    first pass of all computes the prompt as well. The last block gets no final keys: no pass would read them.

    Block-causal heads predict their own positions, so no position is pinned here. The first pass fills the cache and
    nothing drifts, so `stale` plays no part either.
    """

    __slots__ = ()
    kind = "exact"

    def plan(self, row: RowState) -> RowPlan:
        if row.block_step > 0:
            return self.plan_next(row)
        before, (_, end) = row.block_before, row.block
        return RowPlan(span=(0 if before is None else before[0], end), visible=end, refresh=before is None)

    def plan_next(self, row: RowState) -> RowPlan:
        return RowPlan(span=row.block, visible=row.block[1])


@dataclass(frozen=True, slots=True, kw_only=True)
class Approximate(Cache):
    """For models that see both ways: keys and values of the whole canvas, a little out of date between refreshes.

    A refresh computes the whole canvas. Between refreshes `prefix` recomputes everything from the block on, `dual` the
    block alone; a pass sees the rest of the canvas as it was last computed.
    """

    kind: str  # 'prefix' or 'dual'
    blocks: int | None  # a refresh comes in the first pass of every so many blocks; None: when states have drifted
    shifted: bool = False  # the head predicts a position from the one before it
    mask_suppressed: bool = True  # no mask token is proposed, so a refresh can commit a block's first position

    def plan(self, row: RowState) -> RowPlan:
        begins = row.block_step == 0
        due = row.stale if self.blocks is None else begins and self._opens_with_refresh(row)
        if not due:
            return self._between_refreshes(row, begins=begins)
        pinned = self._pins_first(row)
        first_only = pinned and row.begins_open
        return RowPlan(span=(0, row.length), visible=row.length, refresh=True, first_only=first_only, pin_first=pinned)

    def plan_next(self, row: RowState) -> RowPlan | None:
        return None if self.blocks is None else self._between_refreshes(row, begins=False)

    def _between_refreshes(self, row: RowState, *, begins: bool) -> RowPlan:
        """The plan of a pass that is no refresh; `begins`: it is the first pass over the block."""
        start, end = row.block
        pinned = self._pins_first(row)
        if self.shifted and not pinned:  # the block's first position is predicted from the one before it
            start = max(start - 1, 0)
        if begins and row.block_before is not None:
            start = row.block_before[0]  # the last commits of the block before are still masks in the cache
        end = row.length if self.kind == "prefix" else end
        return RowPlan(span=(start, end), visible=row.length, pin_first=pinned)

    def _pins_first(self, row: RowState) -> bool:
        """Whether a shifted head leaves the block's first position to a refresh.

        Later passes then do not compute the position before the block, from which its first position is predicted.
        """
        return self.shifted and self.mask_suppressed and self._opens_with_refresh(row)

    def _opens_with_refresh(self, row: RowState) -> bool:
        """Whether the first pass over the row's block is a refresh, whatever comes."""
        return self.blocks is not None and row.spans_before % self.blocks == 0


def cache_for(settings: Settings, *, shifted: bool) -> Cache:
    """The cache that the settings ask for; `shifted`: the head predicts a position from the one before it."""
    if settings.cache not in ("prefix", "dual"):
        return Exact() if settings.cache == "exact" else NoCache()
    blocks, _ = settings.refresh_rule()
    return Approximate(
        kind=settings.cache, blocks=blocks, shifted=shifted, mask_suppressed=settings.suppress_mask_token
    )


class DriftStates:
    """The hidden states (w wide) of every cache slot at its last refresh.

    Only open positions count. The state of a committed position changes with its token; the state of a mask changes
    only because its context does. Everything stays on the device.
    """

    def __init__(self, tolerated: float, *, slots: int, length: int) -> None:
        self.tolerated, self.slots, self.length = tolerated, slots, length  # tolerated: mean of 1 - cosine
        self._states: Tensor | None = None  # (slots, length, w)

    def drifted(
        self,
        plan: PassPlan,
        slots: Int[Tensor, " b"],
        states: Float[Tensor, "b q w"],
        at: Int[Tensor, "b k"],
        masked: Bool[Tensor, "b k"],
    ) -> Bool[Tensor, " b"]:
        """Which rows of a pass have drifted too far, by its states at the positions `at`; a refresh notes its states.

        states: of the positions that the plan computes.
        """
        if self._states is None:
            self._states = states.new_zeros(self.slots, self.length, states.shape[2])
        renewed = [number for number, row in enumerate(plan.rows) if row.refresh]
        if len(renewed) == len(plan.rows):
            self._states[slots, : states.shape[1]] = states  # a refresh computes from position 0 on
            return masked.new_zeros(len(masked))
        index = on_device(renewed, plan.device) if renewed else None
        if index is not None:
            self._states[slots[index], : states.shape[1]] = states[index]
        column = at - plan.positions[:, :1]  # the first position that a plan computes is column 0
        now = states.gather(1, column[:, :, None].expand(-1, -1, states.shape[2]))
        before = self._states[slots[:, None], at]
        moved = 1.0 - F.cosine_similarity(now.float(), before.float(), dim=-1)
        drifted = moved.where(masked, 0.0).sum(-1) > self.tolerated * masked.sum(-1)
        return drifted if index is None else drifted.index_fill(0, index, False)
