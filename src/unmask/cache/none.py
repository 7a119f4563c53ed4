"""No cache: every pass computes the whole canvas."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from unmask.cache.base import RowPlan, RowState


@dataclass(frozen=True, slots=True, kw_only=True)
class NoCache:
    kind: ClassVar[str] = "none"

    def plan(self, row: RowState) -> RowPlan:
        return RowPlan(span=(0, row.length), visible=row.length)

    def plan_next(self, row: RowState) -> RowPlan:
        return self.plan(row)
