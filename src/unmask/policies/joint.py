"""What is certain goes together, and one uncertain token goes first: the joint rule of this project (docs/joint.md).

A position is certain if its proposed token is wrong with a chance of at most `risk`. One position more, the pivot, may
be as uncertain as it likes if it is decided first, and the others after it. Given that its token of probability p
holds, an event of chance q has a chance of at most q / p: so beside the pivot, certain means wrong with a chance of at
most `risk` times p. The pivot waits where the text grows so fast that the next pass will know more of it.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import pad

from unmask.policies.base import Base, Decision, StepView, parameter, policy
from unmask.policies.scores import confidence, decoded, eligible, entropy, standing_tokens


@policy("joint", pure=True)
class Joint(Base):
    """Commit every token that is wrong with a chance of at most `risk`, and one more unless it had better wait."""

    risk: float = parameter(0.04, within="[0, 1)")

    def select(self, view: StepView, state: None = None) -> tuple[Decision, None]:
        candidates, chance = eligible(view), confidence(view)
        certain = candidates & (1.0 - chance <= self.risk)
        uncertain = candidates & ~certain
        cost = self.cost(view, uncertain).where(uncertain, 0.0).where(candidates, torch.inf)
        pivot = cost.where(uncertain, torch.inf).argmin(-1, keepdim=True)
        column = torch.arange(cost.shape[1], device=cost.device)
        goes = uncertain & (column == pivot) & ~self.waits(view, certain & (column < pivot), uncertain)[:, None]
        risk = self.risk * chance.where(goes, 1.0).amin(-1, keepdim=True)
        return Decision(commit=goes | (certain & (1.0 - chance <= risk)), score=-cost), None

    def cost(self, view: StepView, uncertain: Bool[Tensor, "b k"]) -> Float[Tensor, "b k"]:
        """The pivot is the uncertain position where this is least."""
        return entropy(view) * distance_to_decided(uncertain)

    def waits(self, view: StepView, before: Bool[Tensor, "b k"], uncertain: Bool[Tensor, "b k"]) -> Bool[Tensor, " b"]:
        """Whether the pivot waits; `before` are the certain positions at its left."""
        ends, open_ = ends_of_runs(view), uncertain.sum(-1)
        coming, written = (before & ends).sum(-1), (decoded(view) & ends).sum(-1)
        return (2 * coming > open_) | (written > 3 * view.step.clamp(min=1) * open_)


def distance_to_decided(uncertain: Bool[Tensor, "b k"]) -> Int[Tensor, "b k"]:
    """How far to the left the next position lies that is decided; everything before the block is."""
    column = torch.arange(uncertain.shape[1], device=uncertain.device).expand(uncertain.shape)
    return column - column.where(~uncertain, -1).cummax(-1).values


def ends_of_runs(view: StepView) -> Bool[Tensor, "b k"]:
    """Where the next position has another token, so that a run of one token, such as the end of a text, counts once."""
    text = view.proposed.where(view.masked, standing_tokens(view))
    return pad(text[:, 1:] != text[:, :-1], (0, 1), value=True)
