"""Tokens that the model no longer believes in are opened again: token-to-mask editing, T2M."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unmask.options import parameter
from unmask.policies.base import Base, register
from unmask.policies.memory import carried
from unmask.policies.scores import confidence, decoded, likeliest, standing
from unmask.rules.selection import best_scored
from unmask.types import Decision, StepView

LIMITS = {"unlikely": 0.5, "replaced": 0.9, "unsteady": 0.3}


@dataclass(frozen=True, slots=True)
class Edits:
    """How often each position of the block was opened again, and how likely its token was in the pass before."""

    times: Int[Tensor, "b k"]
    before: Float[Tensor, "b k"]


@register("remask")
@dataclass(frozen=True, slots=True, kw_only=True)
class Remask(Base):
    """Commit at `threshold`, and reopen tokens that have become `unlikely`, `replaced` or `unsteady` (T2M)."""

    remasks = True

    threshold: float = parameter(0.9, within="(0, 1]")
    doubt: str = parameter("unlikely", choices=tuple(LIMITS))
    limit: float | None = parameter(None, within="[0, 1]")  # of the doubt; None: 0.5, 0.9 or 0.3
    share: float = parameter(0.25, within="[0, 1]")  # of the decoded positions, at most, in a pass
    times: int = parameter(5, least=0)  # that a position is reopened, at most

    def select(self, view: StepView, state: Edits | None = None) -> tuple[Decision, Edits]:
        score, filled, now = confidence(view), decoded(view), standing(view)
        none = torch.zeros_like(view.step)[:, None].expand_as(filled)
        times = carried(state, "times", view, fresh=none)
        before = carried(state, "before", view, fresh=torch.zeros_like(score))
        doubt = self._doubt(view, now, before)
        limit = LIMITS[self.doubt] if self.limit is None else self.limit
        # "unlikely": the doubt is a probability of being wrong, so that every kind of doubt counts from its limit up.
        over = doubt > (1.0 - limit if self.doubt == "unlikely" else limit)
        most = (filled.sum(-1) * self.share).long().clamp(min=1)
        remask = best_scored(doubt, filled & over & (times < self.times), most)
        commit = view.masked & (score >= self.threshold)
        kept = Edits(times + remask, torch.where(view.masked, score, now))
        return Decision(commit=commit, score=score, remask=remask), kept

    def _doubt(self, view: StepView, now: Float[Tensor, "b k"], before: Float[Tensor, "b k"]) -> Float[Tensor, "b k"]:
        """How little the model believes in the token of each decoded position."""
        if self.doubt == "unlikely":
            return 1.0 - now
        if self.doubt == "unsteady":
            return before - now
        tokens = view.proposed if view.tokens is None else view.tokens
        return likeliest(view).where(view.logits.argmax(-1) != tokens, 0.0)
