"""Entropy-bounded unmasking: EB-Sampler (Ben-Hamu et al.).

The budget bounds the sum of the committed entropies less the largest one, an upper bound on the joint dependence lost.
"""

from __future__ import annotations

import torch

from unmask.policies import scores
from unmask.policies.base import Base, Decision, StepView, parameter, policy
from unmask.rules.selection import best_scored, order_of

ORDERS = {
    "entropy": lambda view: -scores.entropy(view),
    "confidence": scores.confidence,
    "margin": scores.probability_gap,
}


@policy("eb", pure=True)
class EB(Base):
    """Commit the best positions while the sum of their entropies, less the largest, is within `gamma` (EB-Sampler)."""

    gamma: float = parameter(0.1, within="[0, inf)")
    order: str = parameter("entropy", choices=tuple(ORDERS))

    def select(self, view: StepView, state: None = None) -> tuple[Decision, None]:
        score, candidates = ORDERS[self.order](view), scores.eligible(view)
        entropy = scores.entropy(view).gather(-1, order_of(score, candidates))
        affordable = entropy.cumsum(-1) - entropy.cummax(-1).values <= self.gamma
        commit = best_scored(score, candidates, affordable.sum(-1))
        return Decision(commit=commit, score=score.where(candidates, -torch.inf)), None
