"""A threshold that rises with the rank, above a floor: the bound rule of the Nemotron diffusion decoders."""

from __future__ import annotations

from unmask.policies.base import Base, Decision, StepView, parameter, policy
from unmask.policies.scores import confidence, eligible
from unmask.rules.selection import rank_of


@policy("bound", pure=True)
class Bound(Base):
    """Commit above `threshold`, or above both `floor` and 1 - `factor` / (rank + 2), with ranks from 0 (Nemotron)."""

    threshold: float = parameter(0.9, within="(0, 1]")
    floor: float = parameter(0.45, within="[0, 1]")
    factor: float = parameter(2.0, within="(0, inf)")

    def select(self, view: StepView, state: None = None) -> tuple[Decision, None]:
        score, candidates = confidence(view), eligible(view)
        rising = 1.0 - self.factor / (rank_of(score, candidates) + 2)
        enough = (score >= self.threshold) | ((score >= self.floor) & (score >= rising))
        return Decision(commit=candidates & enough, score=score), None
