"""Confidence threshold: the parallel decoding rule of Fast-dLLM."""

from __future__ import annotations

from dataclasses import dataclass

from unmask.options import parameter
from unmask.policies.base import Base, register
from unmask.policies.scores import confidence
from unmask.types import Decision, StepView


@register("threshold")
@dataclass(frozen=True, slots=True, kw_only=True)
class Threshold(Base):
    """Commit every position whose proposed token has probability at least `threshold` (Fast-dLLM)."""

    pure = True

    threshold: float = parameter(0.9, within="(0, 1]")

    def select(self, view: StepView, state: None = None) -> tuple[Decision, None]:
        score = confidence(view)
        return Decision(commit=view.masked & (score >= self.threshold), score=score), None
