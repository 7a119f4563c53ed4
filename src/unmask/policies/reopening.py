"""Policies that open decoded positions again: P2, T2M's editing, Saber, WINO, and hierarchical decoding of dInfer.

Each of them bounds what it opens, so that the block fills.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import pad

from unmask.policies.base import Base, Decision, StepView, carried, parameter, policy, require
from unmask.policies.scores import confidence, decoded, eligible, likeliest, standing, standing_tokens
from unmask.rules.selection import best_scored, rank_of


@policy("p2", remasks=True)
class P2(Base):
    """After pass i of N keep the i/N of the block's positions with the likeliest tokens, and open the others (P2)."""

    passes: int | None = parameter(None, least=1)  # N, per block; None: one for each position

    def select(self, view: StepView, state: None = None) -> tuple[Decision, None]:
        score, filled = confidence(view), decoded(view)
        ours = view.masked | filled
        size = ours.sum(-1)
        passes = size.clamp(min=1) if self.passes is None else torch.full_like(size, self.passes)
        opened = (passes - view.step - 1).clamp(min=0) * size // passes
        kept = best_scored(torch.where(view.masked, score, standing(view)), ours, size - opened)
        return Decision(commit=view.masked & kept, score=score, remask=filled & ~kept), None


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


FIRST_ALLOWANCE = 30


@dataclass(frozen=True, slots=True)
class Drafted:
    """How many positions the row's previous pass committed."""

    count: Int[Tensor, " b"]


@policy("wino", needs=frozenset({"shadow"}), remasks=True)
class Wino(Base):
    """Commit above `draft_threshold`, and reopen tokens that the shadow gives less than `verify_threshold` (WINO).

    In the shadow of a block each position is predicted without seeing its own token. WINO's constants are constants
    here: a pass drafts at most 0.7 of the masks, and that bound lies between 5 and 20; the first pass over a block acts
    as if `FIRST_ALLOWANCE` positions had been committed before it.
    """

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
