"""A bound on being right everywhere: the cumulative rule of the Nemotron diffusion decoders."""

from __future__ import annotations

from unmask.policies.base import Base, Decision, StepView, parameter, policy
from unmask.policies.scores import confidence, eligible
from unmask.rules.selection import best_scored, order_of


@policy("cumulative", pure=True)
class Cumulative(Base):
    """Commit the most confident positions, as many as keep the product of their confidences at `threshold` or above."""

    threshold: float = parameter(0.9, within="(0, 1]")

    def select(self, view: StepView, state: None = None) -> tuple[Decision, None]:
        score, candidates = confidence(view), eligible(view)
        joint = score.where(candidates, 0.0).gather(-1, order_of(score, candidates)).cumprod(-1)
        count = (joint >= self.threshold).sum(-1)
        return Decision(commit=best_scored(score, candidates, count), score=score), None
