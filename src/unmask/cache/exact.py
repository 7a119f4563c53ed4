"""The cache for block-causal models: a finished block never changes, so its keys and values are kept for good.

The first pass over a block also computes the block before it, whose last commits no pass has seen yet, and so stores it
for good; the first pass of all computes the prompt. What later passes over the block write is overwritten by the first
pass over the next one, and nothing sees it before that. The last block is never stored: nothing would read it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from unmask.cache.base import RowPlan, RowState


@dataclass(frozen=True, slots=True, kw_only=True)
class Exact:
    kind: ClassVar[str] = "exact"

    def plan(self, row: RowState, *, shifted: bool) -> RowPlan:
        start, end = row.block
        before = row.block_before
        begins, first = row.block_step == 0, before is None
        if begins:
            start = 0 if before is None else before[0]
        return RowPlan(span=(start, end), visible=end, refresh=begins and first)

    def plan_next(self, row: RowState, *, shifted: bool) -> RowPlan:
        return RowPlan(span=row.block, visible=row.block[1])
