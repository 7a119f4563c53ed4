"""Largest gap between the two likeliest tokens first: Dream's `topk_margin`, and the same order on LLaDA's schedule."""

from __future__ import annotations

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from unmask.policies.base import register
from unmask.policies.schedule import Scheduled
from unmask.policies.scores import probability_gap
from unmask.types import StepView


@register("margin")
@dataclass(frozen=True, slots=True, kw_only=True)
class Margin(Scheduled):
    """Commit the positions whose best token leads the second best by the largest probability (Dream)."""

    pure = Scheduled.pure

    def score(self, view: StepView) -> Float[Tensor, "b k"]:
        return probability_gap(view)
