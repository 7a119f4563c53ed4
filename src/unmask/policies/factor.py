"""Threshold that rises with the number of commits: the factor rule of Fast-dLLM."""

from __future__ import annotations

import torch

from unmask.policies.base import Base, Decision, StepView, parameter, policy
from unmask.policies.scores import confidence, eligible
from unmask.rules.selection import rank_of


@policy("factor", pure=True)
class Factor(Base):
    """Commit the n most confident positions for the largest n with (n + 1)(1 - c_n) < factor (Fast-dLLM).

    `reference_quirks` does as the public code does: when only the last position fails the test, it is committed too.
    """

    factor: float = parameter(1.0, within="(0, inf)")
    reference_quirks: bool = False

    def select(self, view: StepView, state: None = None) -> tuple[Decision, None]:
        score, candidates = confidence(view), eligible(view)
        rank = rank_of(score, candidates)
        precise = torch.promote_types(score.dtype, torch.float32)
        bound = (1.0 - self.factor / (rank.to(precise) + 2)).to(score.dtype)
        if self.reference_quirks:
            total = candidates.sum(-1)
            passing = (candidates & (score >= bound)).sum(-1).clamp(min=1)
            count = torch.where(passing >= total - 1, total, passing)
        else:
            count = (candidates & (score > bound)).sum(-1).clamp(min=1)
        return Decision(commit=candidates & (rank < count[:, None]), score=score), None
