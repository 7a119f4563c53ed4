"""Draft generously, verify, and take back: WINO.

The verdict on a decoded token comes from a shadow of the block, where each position is predicted without seeing its own
token. WINO's constants are constants here: a pass drafts at most 0.7 of the masks, and that bound lies between 5 and
20; the first pass over a block acts as if 30 positions had been committed before it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

from unmask.policies.base import Base, Decision, StepView, carried, parameter, policy, require
from unmask.policies.scores import confidence, decoded, standing
from unmask.rules.selection import best_scored

FIRST_ALLOWANCE = 30


@dataclass(frozen=True, slots=True)
class Drafted:
    """How many positions the row's previous pass committed."""

    count: Int[Tensor, " b"]


@policy("wino", needs=frozenset({"shadow"}), remasks=True)
class Wino(Base):
    """Commit above `draft_threshold`, and reopen tokens that the shadow gives less than `verify_threshold` (WINO)."""

    draft_threshold: float = parameter(0.6, within="[0, 1]")
    verify_threshold: float = parameter(0.9, within="[0, 1]")

    def select(self, view: StepView, state: Drafted | None = None) -> tuple[Decision, Drafted]:
        score = confidence(view)
        at_most = (view.masked.sum(-1) * 7 // 10).clamp(5, 20)
        drafted = best_scored(score, view.masked & (score > self.draft_threshold), at_most)
        commit = torch.where(drafted.any(-1, keepdim=True), drafted, best_scored(score, view.masked, 1))
        count = commit.sum(-1)

        verdict = standing(view, require(view, "shadow_logits", "wino"))
        doubtful = decoded(view) & (verdict < self.verify_threshold)
        # A pass opens fewer positions than the pass before committed, and none if it commits one: the block must fill.
        allowance = carried(state, "count", view, fresh=torch.full_like(count, FIRST_ALLOWANCE)) - 1
        remask = best_scored(-verdict, doubtful & (count > 1)[:, None], allowance)
        return Decision(commit=commit, score=score, remask=remask), Drafted(count)
