"""Lowest entropy first: Dream's `entropy` rule, and the same order on LLaDA's even schedule."""

from __future__ import annotations

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from unmask import rules
from unmask.policies import scores
from unmask.policies.base import register
from unmask.policies.schedule import Scheduled
from unmask.types import StepView


@register("entropy")
@dataclass(frozen=True, slots=True, kw_only=True)
class Entropy(Scheduled):
    """Commit the positions whose distributions have the lowest entropy (Dream)."""

    pure = Scheduled.pure

    def score(self, view: StepView) -> Float[Tensor, "b k"]:
        if self.schedule == "even":
            return -scores.entropy(view)
        # Dream's own formula: the constant inside the logarithm moves scores enough to break ties its way.
        probability = rules.probabilities(view.working(view.logits))
        return (probability * (probability + 1e-10).log()).sum(-1)
