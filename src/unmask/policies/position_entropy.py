"""Low entropy, less so the further right: the rule of WeDLM."""

from __future__ import annotations

import torch

from unmask.policies.base import Base, Decision, StepView, parameter, policy
from unmask.policies.scores import eligible, entropy


@policy("position_entropy", pure=True)
class PositionEntropy(Base):
    """Commit where entropy plus `penalty` times the distance from the first mask is below `threshold` (WeDLM)."""

    threshold: float = parameter(0.4, within="(0, inf)")
    penalty: float = parameter(0.02, within="[0, inf)")

    def select(self, view: StepView, state: None = None) -> tuple[Decision, None]:
        columns = torch.arange(view.masked.shape[1], device=view.masked.device)
        first = view.masked.int().argmax(-1, keepdim=True)
        cost, candidates = entropy(view) + self.penalty * (columns - first), eligible(view)
        return Decision(commit=candidates & (cost < self.threshold), score=(-cost).where(candidates, -torch.inf)), None
