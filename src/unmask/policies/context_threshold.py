"""A threshold that falls as the text fills up: the dynamic rule of Streaming-dLLM."""

from __future__ import annotations

from unmask.policies.base import Base, Decision, StepView, parameter, policy
from unmask.policies.scores import confidence, decoded


@policy("context_threshold", pure=True)
class ContextThreshold(Base):
    """Commit at `threshold` times 1 - `relaxation` x the share that is filled (Streaming-dLLM).

    It is the share of the decoded positions of the block among these and all masks that are left.
    """

    threshold: float = parameter(0.9, within="(0, 1]")
    relaxation: float = parameter(0.3, within="[0, 1]")

    def select(self, view: StepView, state: None = None) -> tuple[Decision, None]:
        score, filled = confidence(view), decoded(view).sum(-1)
        share = filled / (filled + view.remaining).clamp(min=1)
        lowered = self.threshold * (1.0 - self.relaxation * share)
        return Decision(commit=view.masked & (score >= lowered[:, None].to(score.dtype)), score=score), None
