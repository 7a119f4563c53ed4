"""Lowest entropy first: Dream's `entropy` rule, and the same order on LLaDA's even schedule."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from unmask import rules
from unmask.policies import scores
from unmask.policies.base import StepView, policy
from unmask.policies.schedule import Scheduled


@policy("entropy", pure=Scheduled.pure)
class Entropy(Scheduled):
    """Commit the positions whose distributions have the lowest entropy (Dream)."""

    def score(self, view: StepView) -> Float[Tensor, "b k"]:
        if self.schedule == "even":
            return -scores.entropy(view)
        # Dream's own formula: the constant inside the logarithm moves scores enough to break ties its way.
        probability = rules.probabilities(view.working(view.logits))
        return (probability * (probability + 1e-10).log()).sum(-1)
