"""Relaxed thresholds around confident positions: LocalLeap."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from unmask.options import parameter
from unmask.policies.base import Base, register
from unmask.policies.scores import confidence
from unmask.types import Decision, StepView


@register("local_leap")
@dataclass(frozen=True, slots=True, kw_only=True)
class LocalLeap(Base):
    """Commit at `threshold`, or at `relaxed_threshold` within `radius` of a position that meets it (LocalLeap)."""

    pure = True

    threshold: float = parameter(0.9, within="(0, 1]")
    relaxed_threshold: float = parameter(0.75, within="(0, 1]")
    radius: int = parameter(4, least=0)

    def select(self, view: StepView, state: None = None) -> tuple[Decision, None]:
        score = confidence(view)
        anchors = score >= self.threshold  # closed positions score 0
        columns = torch.arange(score.shape[-1], device=score.device)
        close = (columns[:, None] - columns).abs() <= self.radius
        near = (anchors[:, None, :] & close).any(-1)
        confident = torch.where(near, score >= self.relaxed_threshold, score >= self.threshold)
        return Decision(commit=view.masked & confident, score=score), None
