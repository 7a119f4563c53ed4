"""Low entropy, less so the further right: the rule of WeDLM."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from unmask.options import parameter
from unmask.policies.base import Base, register
from unmask.policies.scores import eligible, entropy
from unmask.types import Decision, StepView


@register("position_entropy")
@dataclass(frozen=True, slots=True, kw_only=True)
class PositionEntropy(Base):
    """Commit where entropy plus `penalty` times the distance from the first mask is below `threshold` (WeDLM)."""

    pure = True

    threshold: float = parameter(0.4, within="(0, inf)")
    penalty: float = parameter(0.02, within="[0, inf)")

    def select(self, view: StepView, state: None = None) -> tuple[Decision, None]:
        columns = torch.arange(view.masked.shape[1], device=view.masked.device)
        first = view.masked.int().argmax(-1, keepdim=True)
        cost, candidates = entropy(view) + self.penalty * (columns - first), eligible(view)
        return Decision(commit=candidates & (cost < self.threshold), score=(-cost).where(candidates, -torch.inf)), None
