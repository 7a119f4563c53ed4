"""The cache for block-causal models: a block sees itself and the blocks before it, so a finished block never changes.

Every pass over a block writes provisional keys and values of the block, which that pass alone reads. The first pass
over the next block computes the finished block once more, now with all its tokens, and writes the final ones. The first
pass of all computes the prompt as well. The last block gets no final keys: no pass would read them.

Block-causal heads predict their own positions, so no position is pinned here. The first pass fills the cache and
nothing drifts, so `stale` plays no part either.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from unmask.cache.base import RowPlan, RowState


@dataclass(frozen=True, slots=True, kw_only=True)
class Exact:
    kind: ClassVar[str] = "exact"

    def plan(self, row: RowState) -> RowPlan:
        start, end = row.block
        if row.block_step > 0:
            return RowPlan(span=(start, end), visible=end)
        if row.block_before is None:
            return RowPlan(span=(0, end), visible=end, refresh=True)
        return RowPlan(span=(row.block_before[0], end), visible=end)

    def plan_next(self, row: RowState) -> RowPlan:
        return RowPlan(span=row.block, visible=row.block[1])
