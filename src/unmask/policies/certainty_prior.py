"""Positions near what is known come first: the certainty prior of d2Cache."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from unmask.options import parameter
from unmask.policies.base import register
from unmask.policies.schedule import Scheduled
from unmask.policies.scores import confidence
from unmask.types import StepView

REACH = 5  # a Gaussian is cut off at so many standard deviations


@register("certainty_prior")
@dataclass(frozen=True, slots=True, kw_only=True)
class CertaintyPrior(Scheduled):
    """Commit the positions with the largest confidence times density of known positions around them (d2Cache)."""

    sigma: float = parameter(10.0, within="(0, 1000]")

    pure = Scheduled.pure

    def score(self, view: StepView) -> Float[Tensor, "b k"]:
        scored = confidence(view)
        return scored * self._density(view).to(scored.dtype)

    def _density(self, view: StepView) -> Float[Tensor, "b k"]:
        """The share of known positions around each column, in a Gaussian window.

        Everything before the block is known. What lies behind it counts as known if no mask is left there and the
        block's last position is known.
        """
        width, reach = view.masked.shape[1], math.ceil(REACH * self.sigma)
        columns = torch.arange(width, device=view.masked.device)
        inside = torch.ones_like(view.masked) if view.tokens is None else view.tokens >= 0
        last = columns == inside.sum(-1, keepdim=True) - 1
        behind = (view.remaining == view.masked.sum(-1))[:, None] & ~(view.masked & last).any(-1, keepdim=True)
        known = torch.where(inside, ~view.masked, behind)
        around = torch.cat([torch.ones_like(known[:, :1]).expand(-1, reach), known, behind.expand(-1, reach)], dim=1)
        places = torch.arange(-reach, width + reach, device=columns.device)
        weight = (-((columns[:, None] - places) ** 2) / (2.0 * self.sigma**2)).exp()
        return (weight * around[:, None, :]).sum(-1) / weight.sum(-1)
