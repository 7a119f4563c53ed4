"""How many positions to commit in each pass, for the policies that decide it in advance, and the base they share.

'even' spreads a block evenly over its passes (LLaDA). 'dream' follows Dream's time grid, in which a pass may be idle.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unmask.errors import UnmaskError
from unmask.policies.base import Base, Decision, StepView, carried, parameter
from unmask.policies.scores import eligible
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
        score = self.score(view).where(eligible(view), -torch.inf)
        if self.schedule == "even":
            count = self.tokens_per_pass
            if self.passes is not None:  # larger shares first, and the rest in the last pass
                passes_left = (self.passes - view.step).clamp(min=1)
                count = (view.masked.sum(-1) + passes_left - 1) // passes_left
            return Decision(commit=best_scored(score, view.masked, count), score=score), None

        if self.passes is None:
            state = BlockStart(carried(state, "masks", view, fresh=view.masked.sum(-1)))
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
