"""Relaxed thresholds around confident positions: LocalLeap."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from unmask.options import check_number, check_whole
from unmask.policies.base import Base, register
from unmask.policies.scores import confidence
from unmask.types import Decision, StepView


@register("local_leap")
@dataclass(frozen=True, slots=True, kw_only=True)
class LocalLeap(Base):
    """Commit at `threshold`, or at `relaxed_threshold` within `radius` of a position that meets it (LocalLeap)."""

    pure: ClassVar[bool] = True

    threshold: float = 0.9
    relaxed_threshold: float = 0.75
    radius: int = 4

    def __post_init__(self) -> None:
        check_number(self, "threshold", "relaxed_threshold", within="(0, 1]")
        check_whole(self, "radius", least=0)

    def select(self, view: StepView, state: None = None) -> tuple[Decision, None]:
        score = confidence(view)
        anchors = score >= self.threshold  # closed positions score 0
        columns = torch.arange(score.shape[-1], device=score.device)
        close = (columns[:, None] - columns).abs() <= self.radius
        near = (anchors[:, None, :] & close).any(-1)
        confident = torch.where(near, score >= self.relaxed_threshold, score >= self.threshold)
        return Decision(commit=view.masked & confident, score=score), None
