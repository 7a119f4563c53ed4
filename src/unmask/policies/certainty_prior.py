"""Positions near what is known come first: the certainty prior of d2Cache."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor

from unmask.policies.base import StepView, parameter, policy
from unmask.policies.schedule import Scheduled
from unmask.policies.scores import confidence

REACH = 5  # a Gaussian is cut off at so many standard deviations


@policy("certainty_prior", pure=Scheduled.pure)
class CertaintyPrior(Scheduled):
    """Commit the positions with the largest confidence times density of known positions around them (d2Cache)."""

    sigma: float = parameter(10.0, within="(0, 1000]")

    def score(self, view: StepView) -> Float[Tensor, "b k"]:
        # Everything before the block is known. What lies behind it counts as known if no mask is left there and the
        # block's last position is known.
        scored, (_, width), reach = confidence(view), view.masked.shape, math.ceil(REACH * self.sigma)
        columns = torch.arange(width, device=view.masked.device)
        inside = torch.ones_like(view.masked) if view.tokens is None else view.tokens >= 0
        last = columns == inside.sum(-1, keepdim=True) - 1
        behind = (view.remaining == view.masked.sum(-1))[:, None] & ~(view.masked & last).any(-1, keepdim=True)
        known = torch.where(inside, ~view.masked, behind)
        around = torch.cat([torch.ones_like(known[:, :1]).expand(-1, reach), known, behind.expand(-1, reach)], dim=1)
        places = torch.arange(-reach, width + reach, device=columns.device)
        weight = (-((columns[:, None] - places) ** 2) / (2.0 * self.sigma**2)).exp()
        density = (weight * around[:, None, :]).sum(-1) / weight.sum(-1)
        return scored * density.to(scored.dtype)
