"""Fill everything, keep the surest share: path planning, P2, with the model as its own planner."""

from __future__ import annotations

import torch

from unmask.policies.base import Base, Decision, StepView, parameter, policy
from unmask.policies.scores import confidence, decoded, standing
from unmask.rules.selection import best_scored


@policy("p2", remasks=True)
class P2(Base):
    """After pass i of N keep the i/N of the block's positions with the likeliest tokens, and open the others (P2)."""

    passes: int | None = parameter(None, least=1)  # N, per block; None: one for each position

    def select(self, view: StepView, state: None = None) -> tuple[Decision, None]:
        score, filled = confidence(view), decoded(view)
        ours = view.masked | filled
        size = ours.sum(-1)
        passes = size.clamp(min=1) if self.passes is None else torch.full_like(size, self.passes)
        opened = (passes - view.step - 1).clamp(min=0) * size // passes
        kept = best_scored(torch.where(view.masked, score, standing(view)), ours, size - opened)
        return Decision(commit=view.masked & kept, score=score, remask=filled & ~kept), None
