"""What is certain goes together, and one uncertain token goes first: the joint rule of this project (docs/joint.md).

The certain positions are the most confident ones, whose chances of being wrong add up to at most `risk`. By the union
bound this is also a bound on the chance that any of them is wrong, whatever their dependence. One position more, the
pivot, can be decided at no such risk: it is decided first, and the others after it. If its token has probability p,
that token makes an event of probability q at most q / p likely, so beside the pivot the budget is `risk` times p.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import pad

from unmask.options import parameter
from unmask.policies.base import Base, register
from unmask.policies.scores import confidence, eligible, entropy
from unmask.rules.selection import order_of
from unmask.types import Decision, StepView


@register("joint")
@dataclass(frozen=True, slots=True, kw_only=True)
class Joint(Base):
    """Commit what is certain together within `risk`, and one uncertain position, unless more text must come first."""

    pure = True

    risk: float = parameter(0.08, within="[0, 1)")

    def select(self, view: StepView, state: None = None) -> tuple[Decision, None]:
        score, candidates = confidence(view), eligible(view)
        wrong = _added_up(1.0 - score, candidates)
        certain = candidates & (wrong <= self.risk)
        uncertain = candidates & ~certain
        cost = (entropy(view) * distance_to_decided(uncertain)).where(uncertain, 0.0).where(candidates, torch.inf)
        pivot = cost.where(uncertain, torch.inf).argmin(-1, keepdim=True)
        column = torch.arange(cost.shape[1], device=cost.device)
        waits = _waits(certain & (column < pivot), uncertain, view.proposed)
        goes = uncertain & (column == pivot) & ~waits
        budget = self.risk * score.where(goes, 1.0).amin(-1, keepdim=True)
        return Decision(commit=goes | (certain & (wrong <= budget)), score=-cost), None


def _added_up(wrong: Float[Tensor, "b k"], candidates: Bool[Tensor, "b k"]) -> Float[Tensor, "b k"]:
    """At each candidate: its chance of being wrong, and those of all candidates before it, the surest first."""
    order = order_of(-wrong, candidates)
    totals = wrong.where(candidates, torch.inf).gather(-1, order).cumsum(-1)
    return torch.empty_like(totals).scatter(-1, order, totals)


def distance_to_decided(uncertain: Bool[Tensor, "b k"]) -> Int[Tensor, "b k"]:
    """How far to the left the next position lies that is decided; everything before the block is."""
    column = torch.arange(uncertain.shape[1], device=uncertain.device).expand(uncertain.shape)
    return column - column.where(~uncertain, -1).cummax(-1).values


def _waits(
    before: Bool[Tensor, "b k"], uncertain: Bool[Tensor, "b k"], tokens: Int[Tensor, "b k"]
) -> Bool[Tensor, "b 1"]:
    """Whether the certain tokens `before` the pivot are more than half as many as the uncertain positions.

    Then the text before the pivot grows fast, and the next pass knows more of the pivot. A certain token counts if the
    next position proposes another token, so that a run of one token, such as the end of the text, counts at most once.
    """
    ends_run = pad(tokens[:, 1:] != tokens[:, :-1], (0, 1), value=True)
    return 2 * (before & ends_run).sum(-1, keepdim=True) > uncertain.sum(-1, keepdim=True)
