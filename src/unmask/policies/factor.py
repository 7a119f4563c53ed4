"""Threshold that rises with the number of commits: the factor rule of Fast-dLLM."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from unmask.options import parameter
from unmask.policies.base import Base, register
from unmask.policies.scores import confidence, eligible
from unmask.rules.selection import best_scored
from unmask.types import Decision, StepView


@register("factor")
@dataclass(frozen=True, slots=True, kw_only=True)
class Factor(Base):
    """Commit the n most confident positions for the largest n with (n + 1)(1 - c_n) < factor (Fast-dLLM).

    `reference_quirks` does as the public code does: when only the last position fails the test, it is committed too.
    """

    pure = True

    factor: float = parameter(1.0, within="(0, inf)")
    reference_quirks: bool = False

    def select(self, view: StepView, state: None = None) -> tuple[Decision, None]:
        score, candidates = confidence(view), eligible(view)
        ordered = score.masked_fill(~candidates, -torch.inf).sort(dim=-1, descending=True).values
        precise = torch.promote_types(ordered.dtype, torch.float32)
        places = torch.arange(1, ordered.shape[-1] + 1, device=ordered.device, dtype=precise)
        bound = (1.0 - self.factor / (places + 1)).to(ordered.dtype)
        if self.reference_quirks:
            total = candidates.sum(-1)
            passing = (ordered >= bound).sum(-1).clamp(min=1)
            count = torch.where(passing >= total - 1, total, passing)
        else:
            count = (ordered > bound).sum(-1).clamp(min=1)
        return Decision(commit=best_scored(score, candidates, count), score=score), None
