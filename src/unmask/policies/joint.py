"""What is certain goes together, and one uncertain token goes first: the joint rule of this project (docs/joint.md).

The certain positions are the most confident ones, whose chances of being wrong add up to at most `risk`. By the union
bound this is also a bound on the chance that any of them is wrong, whatever their dependence. One position more, the
pivot, can be decided at no such risk: it is decided first, and the others after it. If its token has probability p,
that token makes an event of probability q at most q / p likely, so beside the pivot the budget is `risk` times p.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import pad

from unmask.options import check_number
from unmask.policies.base import Base, register
from unmask.policies.scores import confidence, eligible, entropy
from unmask.rules.selection import best_scored, order_of
from unmask.types import Decision, StepView


@register("joint")
@dataclass(frozen=True, slots=True, kw_only=True)
class Joint(Base):
    """Commit what is certain together within `risk`, and one uncertain position, unless more text must come first."""

    pure: ClassVar[bool] = True

    risk: float = 0.08

    def __post_init__(self) -> None:
        check_number(self, "risk", within="[0, 1)")

    def select(self, view: StepView, state: None = None) -> tuple[Decision, None]:
        score, candidates = confidence(view), eligible(view)
        certain = self._within(self.risk, score, candidates)
        uncertain = candidates & ~certain
        cost = (entropy(view) * distance_to_decided(uncertain)).where(uncertain, 0.0).where(candidates, torch.inf)
        pivot = best_scored(-cost, uncertain, 1)
        goes = pivot & ~_waits(pivot, certain, uncertain, view.proposed)
        budget = self.risk * score.where(goes, 1.0).amin(-1, keepdim=True)
        return Decision(commit=goes | self._within(budget, score, candidates), score=-cost), None

    def _within(
        self, budget: float | Float[Tensor, "b 1"], score: Float[Tensor, "b k"], candidates: Bool[Tensor, "b k"]
    ) -> Bool[Tensor, "b k"]:
        """The most confident positions whose chances of being wrong add up to at most the budget."""
        wrong = (1.0 - score).where(candidates, torch.inf).gather(-1, order_of(score, candidates))
        return best_scored(score, candidates, (wrong.cumsum(-1) <= budget).sum(-1))


def distance_to_decided(uncertain: Bool[Tensor, "b k"]) -> Int[Tensor, "b k"]:
    """How far to the left the next position lies that is decided; everything before the block is."""
    column = torch.arange(uncertain.shape[1], device=uncertain.device).expand(uncertain.shape)
    return column - column.where(~uncertain, -1).cummax(-1).values


def _waits(
    pivot: Bool[Tensor, "b k"],
    certain: Bool[Tensor, "b k"],
    uncertain: Bool[Tensor, "b k"],
    tokens: Int[Tensor, "b k"],
) -> Bool[Tensor, "b 1"]:
    """Whether the certain tokens before the pivot are more than half as many as the uncertain positions.

    Then the text before the pivot grows fast, and the next pass may see the pivot with other eyes. A run of one token,
    such as the end of the text, counts once.
    """
    ends_run = pad(tokens[:, 1:] != tokens[:, :-1], (0, 1), value=True)
    before = pivot.flip(-1).cumsum(-1).flip(-1) > 0
    grown = (certain & ends_run & before).sum(-1, keepdim=True)
    return 2 * grown > uncertain.sum(-1, keepdim=True)
