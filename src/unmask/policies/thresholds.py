"""Rules that commit where a figure of the position passes a bound: confidence or entropy, alone or by rank.

Fast-dLLM, Streaming-dLLM, LocalLeap, the Nemotron diffusion decoders, EB-Sampler and WeDLM each have theirs.
"""

from __future__ import annotations

import torch

from unmask.policies.base import Base, Decision, StepView, parameter, policy
from unmask.policies.scores import confidence, decoded, eligible, entropy, probability_gap
from unmask.rules.selection import best_scored, order_of, rank_of


@policy("threshold", pure=True)
class Threshold(Base):
    """Commit every position whose proposed token has probability at least `threshold` (Fast-dLLM)."""

    threshold: float = parameter(0.9, within="(0, 1]")

    def select(self, view: StepView, state: None = None) -> tuple[Decision, None]:
        score = confidence(view)
        return Decision(commit=view.masked & (score >= self.threshold), score=score), None


@policy("context_threshold", pure=True)
class ContextThreshold(Base):
    """Commit at `threshold` times 1 - `relaxation` x the share that is filled (Streaming-dLLM).

    It is the share of the decoded positions of the block among these and all masks that are left.
    """

    threshold: float = parameter(0.9, within="(0, 1]")
    relaxation: float = parameter(0.3, within="[0, 1]")

    def select(self, view: StepView, state: None = None) -> tuple[Decision, None]:
        score, filled = confidence(view), decoded(view).sum(-1)
        share = filled / (filled + view.remaining).clamp(min=1)
        lowered = self.threshold * (1.0 - self.relaxation * share)
        return Decision(commit=view.masked & (score >= lowered[:, None].to(score.dtype)), score=score), None


@policy("local_leap", pure=True)
class LocalLeap(Base):
    """Commit at `threshold`, or at `relaxed_threshold` within `radius` of a position that meets it (LocalLeap)."""

    threshold: float = parameter(0.9, within="(0, 1]")
    relaxed_threshold: float = parameter(0.75, within="(0, 1]")
    radius: int = parameter(4, least=0)

    def select(self, view: StepView, state: None = None) -> tuple[Decision, None]:
        score = confidence(view)
        anchors = score >= self.threshold  # closed positions score 0
        columns = torch.arange(score.shape[-1], device=score.device)
        close = (columns[:, None] - columns).abs() <= self.radius
        near = (anchors[:, None, :] & close).any(-1)
        confident = torch.where(near, score >= self.relaxed_threshold, score >= self.threshold)
        return Decision(commit=view.masked & confident, score=score), None


@policy("bound", pure=True)
class Bound(Base):
    """Commit above `threshold`, or above both `floor` and 1 - `factor` / (rank + 2), with ranks from 0 (Nemotron)."""

    threshold: float = parameter(0.9, within="(0, 1]")
    floor: float = parameter(0.45, within="[0, 1]")
    factor: float = parameter(2.0, within="(0, inf)")

    def select(self, view: StepView, state: None = None) -> tuple[Decision, None]:
        score, candidates = confidence(view), eligible(view)
        rising = 1.0 - self.factor / (rank_of(score, candidates) + 2)
        enough = (score >= self.threshold) | ((score >= self.floor) & (score >= rising))
        return Decision(commit=candidates & enough, score=score), None


@policy("factor", pure=True)
class Factor(Base):
    """Commit the n most confident positions for the largest n with (n + 1)(1 - c_n) < factor (Fast-dLLM).

    `reference_quirks` does as the public code does: when only the last position fails the test, it is committed too.
    """

    factor: float = parameter(1.0, within="(0, inf)")
    reference_quirks: bool = False

    def select(self, view: StepView, state: None = None) -> tuple[Decision, None]:
        score, candidates = confidence(view), eligible(view)
        rank = rank_of(score, candidates)
        precise = torch.promote_types(score.dtype, torch.float32)
        bound = (1.0 - self.factor / (rank.to(precise) + 2)).to(score.dtype)
        if self.reference_quirks:
            total = candidates.sum(-1)
            passing = (candidates & (score >= bound)).sum(-1).clamp(min=1)
            count = torch.where(passing >= total - 1, total, passing)
        else:
            count = (candidates & (score > bound)).sum(-1).clamp(min=1)
        return Decision(commit=candidates & (rank < count[:, None]), score=score), None


@policy("cumulative", pure=True)
class Cumulative(Base):
    """Commit the most confident positions, as many as keep the product of their confidences at `threshold` or above."""

    threshold: float = parameter(0.9, within="(0, 1]")

    def select(self, view: StepView, state: None = None) -> tuple[Decision, None]:
        score, candidates = confidence(view), eligible(view)
        joint = score.where(candidates, 0.0).gather(-1, order_of(score, candidates)).cumprod(-1)
        count = (joint >= self.threshold).sum(-1)
        return Decision(commit=best_scored(score, candidates, count), score=score), None


ORDERS = {"entropy": lambda view: -entropy(view), "confidence": confidence, "margin": probability_gap}


@policy("eb", pure=True)
class EB(Base):
    """Commit the best positions while the sum of their entropies, less the largest, is within `gamma` (EB-Sampler)."""

    gamma: float = parameter(0.1, within="[0, inf)")
    order: str = parameter("entropy", choices=tuple(ORDERS))

    def select(self, view: StepView, state: None = None) -> tuple[Decision, None]:
        score, candidates = ORDERS[self.order](view), eligible(view)
        ordered = entropy(view).gather(-1, order_of(score, candidates))
        affordable = ordered.cumsum(-1) - ordered.cummax(-1).values <= self.gamma
        commit = best_scored(score, candidates, affordable.sum(-1))
        return Decision(commit=commit, score=score.where(candidates, -torch.inf)), None


@policy("position_entropy", pure=True)
class PositionEntropy(Base):
    """Commit where entropy plus `penalty` times the distance from the first mask is below `threshold` (WeDLM)."""

    threshold: float = parameter(0.4, within="(0, inf)")
    penalty: float = parameter(0.02, within="[0, inf)")

    def select(self, view: StepView, state: None = None) -> tuple[Decision, None]:
        columns = torch.arange(view.masked.shape[1], device=view.masked.device)
        first = view.masked.int().argmax(-1, keepdim=True)
        cost, candidates = entropy(view) + self.penalty * (columns - first), eligible(view)
        return Decision(commit=candidates & (cost < self.threshold), score=(-cost).where(candidates, -torch.inf)), None
