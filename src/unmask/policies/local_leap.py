"""Relaxed thresholds around confident positions: LocalLeap."""

from __future__ import annotations

import torch

from unmask.policies.base import Base, Decision, StepView, parameter, policy
from unmask.policies.scores import confidence


@policy("local_leap", pure=True)
class LocalLeap(Base):
    """Commit at `threshold`, or at `relaxed_threshold` within `radius` of a position that meets it (LocalLeap)."""

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
