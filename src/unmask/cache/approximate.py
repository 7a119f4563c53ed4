"""Caches for models that see both ways: keys and values of the whole canvas, a little out of date between refreshes.

A refresh computes the whole canvas. Between refreshes `prefix` recomputes everything from the block on, `dual` the
block alone; a pass sees the rest of the canvas as it was last computed.
"""

from __future__ import annotations

from dataclasses import dataclass

from unmask.cache.base import RowPlan, RowState
from unmask.cache.refresh import OnDrift, Refresh


@dataclass(frozen=True, slots=True, kw_only=True)
class Approximate:
    """The caches `prefix` and `dual`."""

    kind: str
    refresh: Refresh
    shifted: bool = False  # the head predicts a position from the one before it
    first_decided: bool = True  # no mask token is proposed, so a refresh can commit a block's first position

    def plan(self, row: RowState) -> RowPlan:
        if not self.refresh.due(row):
            return self._part(row, begins=row.block_step == 0)
        pinned = self._pins_first(row)
        first_only = pinned and row.begins_open
        return RowPlan(span=(0, row.length), visible=row.length, refresh=True, first_only=first_only, pin_first=pinned)

    def plan_next(self, row: RowState) -> RowPlan | None:
        return None if isinstance(self.refresh, OnDrift) else self._part(row, begins=False)

    def _part(self, row: RowState, *, begins: bool) -> RowPlan:
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
        return self.shifted and self.first_decided and self.refresh.opens(row)
