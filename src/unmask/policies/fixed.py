"""Low-confidence remasking: LLaDA's fixed number of commits per pass and, with Dream's schedule, its `maskgit_plus`."""

from __future__ import annotations

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from unmask.policies.base import register
from unmask.policies.schedule import Scheduled
from unmask.policies.scores import confidence
from unmask.types import StepView


@register("fixed")
@dataclass(frozen=True, slots=True, kw_only=True)
class Fixed(Scheduled):
    """Commit the most confident positions (LLaDA)."""

    pure = Scheduled.pure

    def score(self, view: StepView) -> Float[Tensor, "b k"]:
        return confidence(view)
