"""A threshold learnt from the commits so far, and the tokens that lose confidence taken back: Saber."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unmask.policies.base import Base, Decision, StepView, carried, parameter, policy
from unmask.policies.scores import confidence, decoded, eligible, likeliest
from unmask.rules.selection import best_scored


@dataclass(frozen=True, slots=True)
class Confidences:
    """The top probabilities of the pass before, and the confidences with which positions were committed."""

    before: Float[Tensor, "b k"]  # -inf: there was no pass before
    committed: Float[Tensor, "b k"]  # of the block; -1: never committed
    total: Float[Tensor, " b"]  # sum over the blocks before
    count: Int[Tensor, " b"]


@policy("saber", remasks=True)
class Saber(Base):
    """Commit above the mean confidence of the commits so far, at least `least`; reopen what fell most (Saber)."""

    least: int = parameter(2, least=1)

    def select(self, view: StepView, state: Confidences | None = None) -> tuple[Decision, Confidences]:
        score, candidates, filled = confidence(view), eligible(view), decoded(view)
        memory = _recalled(view, state, score)
        known = memory.committed >= 0.0
        count = memory.count + known.sum(-1)
        mean = (memory.total + memory.committed.where(known, 0.0).sum(-1)) / count.clamp(min=1)
        above = candidates & (score > torch.where(count > 0, mean, 1.0)[:, None])
        enough = (above.sum(-1) >= self.least)[:, None]
        chosen = torch.where(enough, above, best_scored(score, candidates, self.least))

        now = torch.where(view.masked, score, likeliest(view))
        change = now - memory.before
        # Fewer are taken back than are chosen, so that the block fills; none when the choice fills the block.
        size = chosen.sum(-1).clamp(min=self.least)
        most = torch.minimum(((size + 7) // 8).clamp(min=self.least // 2), size - 1)
        most = most.where((view.masked & ~chosen).any(-1), 0)
        fallen = best_scored(-change, (chosen | filled) & (change.abs() < torch.inf), most)
        kept = Confidences(now, torch.where(chosen, score, memory.committed), memory.total, memory.count)
        return Decision(commit=chosen & ~fallen, score=score, remask=filled & fallen), kept


def _recalled(view: StepView, state: Confidences | None, score: Float[Tensor, "b k"]) -> Confidences:
    """The memory at the beginning of this pass; the commits of a block that has ended are added up."""
    never, none = torch.full_like(score, -1.0), torch.full_like(score, -torch.inf)
    if state is None:
        return Confidences(none, never, score.new_zeros(len(score)), view.step.new_zeros(len(score)))
    ended = (state.committed >= 0.0) & (view.step == 0)[:, None]
    before, committed = carried(state, "before", view, fresh=none), carried(state, "committed", view, fresh=never)
    total = state.total + state.committed.where(ended, 0.0).sum(-1)
    return Confidences(before, committed, total, state.count + ended.sum(-1))
