"""Commits in random order: LLaDA's random remasking and, with Dream's schedule, its `origin` rule."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unmask.policies.base import register
from unmask.policies.schedule import Scheduled, dream_odds
from unmask.types import StepView


@register("random")
@dataclass(frozen=True, slots=True, kw_only=True)
class Random(Scheduled):
    """Commit positions drawn at random; on Dream's time grid each one independently of the others."""

    needs = frozenset({"uniform"})

    def score(self, view: StepView) -> Float[Tensor, "b k"]:
        uniform = torch.rand(view.masked.shape, device=view.masked.device) if view.uniform is None else view.uniform
        # Dream commits where the number falls below the odds, LLaDA where it is among the largest.
        return -uniform if self.schedule == "dream" else uniform

    def _dream_commit(
        self, view: StepView, score: Float[Tensor, "b k"], passes: Int[Tensor, " b"]
    ) -> Bool[Tensor, "b k"]:
        numerator, denominator = dream_odds(view, passes)
        last = view.step >= passes - 1
        return view.masked & (last[:, None] | (-score < (numerator / denominator)[:, None]))
