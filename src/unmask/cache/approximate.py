"""Caches for models that see both ways: keys and values of the whole canvas, a little out of date between refreshes.

A refresh computes the whole canvas. Between refreshes `prefix` recomputes everything from the block on, `dual` the
block alone; a pass sees the rest of the canvas as it was last computed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from unmask.cache.base import RowPlan, RowState, Span
from unmask.cache.refresh import EveryBlocks, OnDrift, Refresh


@dataclass(frozen=True, slots=True, kw_only=True)
class Approximate:
    """What `Prefix` and `Dual` share."""

    kind: ClassVar[str]

    refresh: Refresh
    first_decided: bool = True  # no mask token is proposed, so a refresh can commit a block's first position

    def plan(self, row: RowState, *, shifted: bool) -> RowPlan:
        if not self.refresh.due(row):
            return self._part(row, shifted=shifted, begins=row.block_step == 0)
        pinned = shifted and self._pins_first(row)
        first_only = pinned and row.begins_open
        return RowPlan(span=(0, row.length), visible=row.length, refresh=True, first_only=first_only, pin_first=pinned)

    def plan_next(self, row: RowState, *, shifted: bool) -> RowPlan | None:
        if isinstance(self.refresh, OnDrift):
            return None
        return self._part(row, shifted=shifted, begins=False)

    def _part(self, row: RowState, *, shifted: bool, begins: bool) -> RowPlan:
        """The plan of a pass that is no refresh; `begins`: it is the first pass over the block."""
        start, end = self._recomputed(row)
        pinned = shifted and self._pins_first(row)
        if shifted and not pinned:  # the block's first position is predicted from the one before it
            start = max(start - 1, 0)
        if begins and row.block_before is not None:
            start = row.block_before[0]  # the last commits of the block before are still masks in the cache
        return RowPlan(span=(start, end), visible=row.length, pin_first=pinned)

    def _pins_first(self, row: RowState) -> bool:
        """Whether a shifted head leaves the block's first position to a refresh.

        Later passes then do not compute the position before the block, from which its first position is predicted.
        """
        rule = self.refresh
        return self.first_decided and isinstance(rule, EveryBlocks) and row.spans_before % rule.count == 0

    def _recomputed(self, row: RowState) -> Span:
        raise NotImplementedError


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefix(Approximate):
    """Reuses the keys and values before the block."""

    kind: ClassVar[str] = "prefix"

    def _recomputed(self, row: RowState) -> Span:
        return row.block[0], row.length


@dataclass(frozen=True, slots=True, kw_only=True)
class Dual(Approximate):
    """Reuses the keys and values before the block and behind it."""

    kind: ClassVar[str] = "dual"

    def _recomputed(self, row: RowState) -> Span:
        return row.block
