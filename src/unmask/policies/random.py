"""Commits in random order: LLaDA's random remasking and, with Dream's schedule, its `origin` rule."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unmask.policies.base import StepView, policy
from unmask.policies.schedule import Scheduled


@policy("random", needs=frozenset({"uniform"}))
class Random(Scheduled):
    """Commit positions drawn at random; on Dream's time grid each one independently of the others."""

    def score(self, view: StepView) -> Float[Tensor, "b k"]:
        uniform = torch.rand(view.masked.shape, device=view.masked.device) if view.uniform is None else view.uniform
        # Dream commits where the number falls below the odds, LLaDA where it is among the largest.
        return -uniform if self.schedule == "dream" else uniform

    def commit_on_grid(
        self, view: StepView, score: Float[Tensor, "b k"], numerator: Int[Tensor, " b"], denominator: Int[Tensor, " b"]
    ) -> Bool[Tensor, "b k"]:
        last = numerator == denominator
        return view.masked & (last[:, None] | (-score < (numerator / denominator)[:, None]))
