"""Policies that decide in advance how many positions each pass commits; they differ in the order of the positions.

The schedule 'even' spreads a block evenly over its passes (LLaDA). 'dream' follows Dream's time grid, in which a pass
may be idle.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unmask import rules
from unmask.errors import UnmaskError
from unmask.policies import scores
from unmask.policies.base import Base, Decision, StepView, carried, parameter, policy
from unmask.policies.scores import confidence, eligible, probability_gap
from unmask.rules.selection import best_scored


@dataclass(frozen=True, slots=True)
class BlockStart:
    """What a row's block looked like in its first pass."""

    masks: Int[Tensor, " b"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheduled(Base):
    """Commit the best-scored positions, as many as the schedule says."""

    tokens_per_pass: int = parameter(1, least=1)
    passes: int | None = parameter(None, least=1)  # per block
    schedule: str = parameter("even", choices=("even", "dream"))

    def __post_init__(self) -> None:
        Base.__post_init__(self)
        if self.passes is not None and self.tokens_per_pass != 1:
            raise UnmaskError(f"passes={self.passes} and tokens_per_pass={self.tokens_per_pass} exclude each other")

    @property
    def pure(self) -> bool:  # ty: ignore[incompatible-property-override]
        """Whether no pass must know what the block looked like at its start; a subclass says so of its own score."""
        return self.schedule == "even" or self.passes is not None

    def most_commits(self, open_now: int, step: int) -> int:
        """The most commits of a pass in a row with `open_now` open positions, after `step` passes over the block."""
        if self.schedule == "dream":
            return open_now
        return self.tokens_per_pass if self.passes is None else -(-open_now // max(1, self.passes - step))

    def score(self, view: StepView) -> Float[Tensor, "b k"]:
        """How soon each open position should be committed."""
        raise NotImplementedError

    def select(self, view: StepView, state: BlockStart | None = None) -> tuple[Decision, BlockStart | None]:
        score, masks = self.score(view).where(eligible(view), -torch.inf), view.masked.sum(-1)
        if self.schedule == "even":
            count = self.tokens_per_pass
            if self.passes is not None:  # larger shares first, and the rest in the last pass
                passes_left = (self.passes - view.step).clamp(min=1)
                count = (masks + passes_left - 1) // passes_left
            return Decision(commit=best_scored(score, view.masked, count), score=score), None

        if self.passes is None:
            state = BlockStart(carried(state, "masks", view, fresh=masks))
            passes = ((state.masks + self.tokens_per_pass - 1) // self.tokens_per_pass).clamp(min=1)
        else:
            passes = torch.full_like(view.step, self.passes)
        commit = self.commit_on_grid(view, score, *dream_odds(view, passes))
        return Decision(commit=commit, score=score, wait=~commit.any(-1)), state

    def commit_on_grid(
        self, view: StepView, score: Float[Tensor, "b k"], numerator: Int[Tensor, " b"], denominator: Int[Tensor, " b"]
    ) -> Bool[Tensor, "b k"]:
        """Dream's share of the masks, truncated: 0, 1, ..., 1, 2 with as many passes as masks.

        Whole numbers keep the truncation exact: most shares are just below or just above 1.
        """
        return best_scored(score, view.masked, numerator * view.masked.sum(-1) // denominator)


def dream_odds(view: StepView, passes: Int[Tensor, " b"]) -> tuple[Int[Tensor, " b"], Int[Tensor, " b"]]:
    """Dream's share of the masks to commit in this pass, as numerator and denominator; 1 / 1 in the last pass.

    On the time grid t(r) = 1 - 0.999 r / passes, the share 1 - t(r+1) / t(r) is 999 / (1000 passes - 999 r).
    """
    last = view.step >= passes - 1
    return torch.where(last, 1, 999), torch.where(last, 1, 1000 * passes - 999 * view.step)


@policy("fixed", pure=Scheduled.pure)
class Fixed(Scheduled):
    """Commit the most confident positions (LLaDA)."""

    score = staticmethod(confidence)


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


@policy("entropy", pure=Scheduled.pure)
class Entropy(Scheduled):
    """Commit the positions whose distributions have the lowest entropy (Dream)."""

    def score(self, view: StepView) -> Float[Tensor, "b k"]:
        if self.schedule == "even":
            return -scores.entropy(view)
        # Dream's own formula: the constant inside the logarithm moves scores enough to break ties its way.
        probability = rules.probabilities(view.working(view.logits))
        return (probability * (probability + 1e-10).log()).sum(-1)


@policy("margin", pure=Scheduled.pure)
class Margin(Scheduled):
    """Commit the positions whose best token leads the second best by the largest probability (Dream)."""

    score = staticmethod(probability_gap)


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
