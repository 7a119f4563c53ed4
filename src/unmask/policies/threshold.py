"""Confidence threshold: the parallel decoding rule of Fast-dLLM."""

from __future__ import annotations

from unmask.policies.base import Base, Decision, StepView, parameter, policy
from unmask.policies.scores import confidence


@policy("threshold", pure=True)
class Threshold(Base):
    """Commit every position whose proposed token has probability at least `threshold` (Fast-dLLM)."""

    threshold: float = parameter(0.9, within="(0, 1]")

    def select(self, view: StepView, state: None = None) -> tuple[Decision, None]:
        score = confidence(view)
        return Decision(commit=view.masked & (score >= self.threshold), score=score), None
