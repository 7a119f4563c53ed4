"""A threshold learnt from the commits so far, and the tokens that lose confidence taken back: Saber."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unmask.options import parameter
from unmask.policies.base import Base, register
from unmask.policies.memory import carried
from unmask.policies.scores import confidence, decoded, eligible, likeliest
from unmask.rules.selection import best_scored
from unmask.types import Decision, StepView


@dataclass(frozen=True, slots=True)
class Confidences:
    """The top probabilities of the pass before, and the confidences with which positions were committed."""

    before: Float[Tensor, "b k"]  # -inf: there was no pass before
    committed: Float[Tensor, "b k"]  # of the block; -1: never committed
    total: Float[Tensor, " b"]  # sum over the blocks before
    count: Int[Tensor, " b"]


@register("saber")
@dataclass(frozen=True, slots=True, kw_only=True)
class Saber(Base):
    """Commit above the mean confidence of the commits so far, at least `least`; reopen what fell most (Saber)."""

    remasks = True

    least: int = parameter(2, least=1)

    def select(self, view: StepView, state: Confidences | None = None) -> tuple[Decision, Confidences]:
        score, candidates, filled = confidence(view), eligible(view), decoded(view)
        memory = self._recalled(view, state, score)
        known = memory.committed >= 0.0
        count = memory.count + known.sum(-1)
        mean = (memory.total + memory.committed.where(known, 0.0).sum(-1)) / count.clamp(min=1)
        above = candidates & (score > torch.where(count > 0, mean, 1.0)[:, None])
        enough = (above.sum(-1) >= self.least)[:, None]
        chosen = torch.where(enough, above, best_scored(score, candidates, self.least))

        now = torch.where(view.masked, score, likeliest(view))
        taken_back = self._fallen(now - memory.before, view.masked, chosen, filled)
        kept = Confidences(now, torch.where(chosen, score, memory.committed), memory.total, memory.count)
        decision = Decision(commit=chosen & ~taken_back, score=score, remask=filled & taken_back)
        return decision, kept

    def _recalled(self, view: StepView, state: Confidences | None, score: Float[Tensor, "b k"]) -> Confidences:
        """The memory at the beginning of this pass; the commits of a block that has ended are added up."""
        never, none = torch.full_like(score, -1.0), torch.full_like(score, -torch.inf)
        if state is None:
            return Confidences(none, never, score.new_zeros(len(score)), view.step.new_zeros(len(score)))
        known, begins = state.committed >= 0.0, view.step == 0
        before, committed = carried(state, "before", view, fresh=none), carried(state, "committed", view, fresh=never)
        total = state.total + (state.committed.where(known, 0.0).sum(-1)).where(begins, 0.0)
        return Confidences(before, committed, total, state.count + known.sum(-1).where(begins, 0))

    def _fallen(
        self,
        change: Float[Tensor, "b k"],
        masked: Bool[Tensor, "b k"],
        chosen: Bool[Tensor, "b k"],
        filled: Bool[Tensor, "b k"],
    ) -> Bool[Tensor, "b k"]:
        """The filled or chosen positions whose top probability fell most since the pass before.

        Fewer than are chosen, so that the block fills; none when the choice fills the block.
        """
        size = chosen.sum(-1).clamp(min=self.least)
        most = torch.minimum(((size + 7) // 8).clamp(min=self.least // 2), size - 1)
        most = most.where((masked & ~chosen).any(-1), 0)
        return best_scored(-change, (chosen | filled) & (change.abs() < torch.inf), most)
