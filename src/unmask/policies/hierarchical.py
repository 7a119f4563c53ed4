"""A commit in every run of masks, so that decisions lie apart from each other: hierarchical decoding of dInfer."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import pad

from unmask.policies.base import Base, Decision, StepView, parameter, policy
from unmask.policies.scores import confidence, decoded, eligible, likeliest
from unmask.rules.selection import best_scored, rank_of


@policy("hierarchical")
class Hierarchical(Base):
    """Commit above `threshold`, and the best of every run of masks if it is above `low_threshold` (dInfer)."""

    threshold: float = parameter(0.9, within="(0, 1]")
    low_threshold: float = parameter(0.4, within="[0, 1]")
    # Open decoded positions whose likeliest token has less; None: never.
    remask_threshold: float | None = parameter(None, within="(0, 1]")

    @property
    def remasks(self) -> bool:  # ty: ignore[incompatible-property-override]
        return self.remask_threshold is not None

    def select(self, view: StepView, state: None = None) -> tuple[Decision, None]:
        score, candidates = confidence(view), eligible(view)
        top = likeliest(view) if self.remasks else score
        doubted = decoded(view) & (top < (self.remask_threshold or 0.0))
        first = _best_of_runs(score, candidates, view.masked | doubted)
        commit = candidates & ((first & (score > self.low_threshold)) | (score > self.threshold))
        if not self.remasks:
            return Decision(commit=commit, score=score), None
        # A pass commits more positions than it opens, so that the block fills.
        wanted = torch.maximum(commit.sum(-1), doubted.sum(-1) + 1)
        commit = best_scored(score + 2.0 * commit, candidates, wanted)
        remask = best_scored(-top, doubted, (commit.sum(-1) - 1).clamp(min=0))
        return Decision(commit=commit, score=score, remask=remask), None


def _best_of_runs(
    score: Float[Tensor, "b k"], candidates: Bool[Tensor, "b k"], loose: Bool[Tensor, "b k"]
) -> Bool[Tensor, "b k"]:
    """In every run of neighbouring `loose` positions, the candidate with the largest score."""
    begins = loose & ~pad(loose, (1, 0))[:, :-1]
    run = begins.long().cumsum(-1)  # 0 before the first run; a closed position belongs to the run before it
    rank = rank_of(score, candidates)  # candidates come first
    best = torch.full_like(pad(rank, (0, 1)), rank.shape[-1]).scatter_reduce(1, run, rank, "amin")
    return candidates & (rank == best.gather(1, run))
