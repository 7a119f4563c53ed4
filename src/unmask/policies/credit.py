"""Credit for tokens that stay likely over passes: the credit decoder of dInfer."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from unmask import rules
from unmask.policies.base import Base, Decision, StepView, carried, parameter, policy
from unmask.policies.scores import probability


@dataclass(frozen=True, slots=True)
class Credits:
    """The credit of every token at every position of the row's block."""

    credit: Float[Tensor, "b k v"]


@policy("credit")
class Credit(Base):
    """Commit at `threshold`, on logits raised for tokens that were the likeliest in earlier passes too (dInfer)."""

    threshold: float = parameter(0.9, within="(0, 1]")
    weight: float = parameter(0.7, within="[0, inf)")
    boost: float = parameter(0.2, within="[0, inf)")
    decay: float = parameter(0.8, within="[0, 1]")

    def select(self, view: StepView, state: Credits | None = None) -> tuple[Decision, Credits]:
        logits = view.working(view.logits)
        best = logits.argmax(-1)
        earned = rules.probability_of(best, logits).pow(self.boost).where(view.masked, 0.0)
        before = carried(state, "credit", view, fresh=torch.zeros_like(logits))
        credit = (self.decay * before).scatter_add(-1, best[..., None], earned[..., None])
        raised = logits + self.weight * credit.log1p()
        # A token that was drawn stays; the likeliest token may be another one on the raised logits.
        tokens = torch.where(view.proposed == best, raised.argmax(-1), view.proposed)
        score = probability(view, tokens, view.masked, raised)
        commit = view.masked & (score >= self.threshold)
        return Decision(commit=commit, score=score, tokens=tokens), Credits(credit)
