"""Tokens that the model no longer believes in are opened again: token-to-mask editing, T2M."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unmask.policies.base import Base, Decision, StepView, carried, parameter, policy
from unmask.policies.scores import confidence, decoded, likeliest, standing, standing_tokens
from unmask.rules.selection import best_scored

LIMITS = {"unlikely": 0.5, "replaced": 0.9, "unsteady": 0.3}


@dataclass(frozen=True, slots=True)
class Edits:
    """How often each position of the block was opened again, and how likely its token was in the pass before."""

    times: Int[Tensor, "b k"]
    before: Float[Tensor, "b k"]


@policy("remask", remasks=True)
class Remask(Base):
    """Commit at `threshold`, and reopen tokens that have become `unlikely`, `replaced` or `unsteady` (T2M)."""

    threshold: float = parameter(0.9, within="(0, 1]")
    doubt: str = parameter("unlikely", choices=tuple(LIMITS))
    limit: float | None = parameter(None, within="[0, 1]")  # of the doubt; None: 0.5, 0.9 or 0.3
    share: float = parameter(0.25, within="[0, 1]")  # of the decoded positions, at most, in a pass
    times: int = parameter(5, least=0)  # that a position is reopened, at most

    def select(self, view: StepView, state: Edits | None = None) -> tuple[Decision, Edits]:
        score, filled, now = confidence(view), decoded(view), standing(view)
        times = carried(state, "times", view, fresh=torch.zeros_like(filled, dtype=torch.long))
        before = carried(state, "before", view, fresh=torch.zeros_like(score))
        limit = LIMITS[self.doubt] if self.limit is None else self.limit
        if self.doubt == "unlikely":
            doubt, limit = 1.0 - now, 1.0 - limit
        elif self.doubt == "unsteady":
            doubt = before - now
        else:
            doubt = likeliest(view).where(view.logits.argmax(-1) != standing_tokens(view), 0.0)
        most = (filled.sum(-1) * self.share).long().clamp(min=1)
        remask = best_scored(doubt, filled & (doubt > limit) & (times < self.times), most)
        commit = view.masked & (score >= self.threshold)
        kept = Edits(times + remask, torch.where(view.masked, score, now))
        return Decision(commit=commit, score=score, remask=remask), kept
