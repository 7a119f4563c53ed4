"""Small functions that most decisions about positions need: ranking, and what does not conflict."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


def rank_of(score: Float[Tensor, "b k"], masked: Bool[Tensor, "b k"]) -> Int[Tensor, "b k"]:
    """Each position's place by descending score: open positions come first, ties go to the lowest index."""
    return order_of(score, masked).argsort(dim=-1)


def best_scored(
    score: Float[Tensor, "b k"], masked: Bool[Tensor, "b k"], count: int | Int[Tensor, " b"]
) -> Bool[Tensor, "b k"]:
    """The `count` open positions of each row with the largest scores, ties to the lowest index."""
    place = torch.arange(masked.shape[1], device=masked.device)
    counted = (place < (count[:, None] if isinstance(count, Tensor) else count)).expand_as(masked)
    return masked & torch.zeros_like(masked).scatter(1, order_of(score, masked), counted)


def order_of(score: Float[Tensor, "b k"], masked: Bool[Tensor, "b k"]) -> Int[Tensor, "b k"]:
    """The positions by descending score: open ones first, ties to the lowest index."""
    return open_scores(score, masked).argsort(dim=-1, descending=True, stable=True)


def open_scores(score: Float[Tensor, "b k"], masked: Bool[Tensor, "b k"]) -> Float[Tensor, "b k"]:
    """Scores in which an open position always beats a closed one, even if its own score is -inf or NaN."""
    score = score if score.is_floating_point() else score.float()
    lowest = torch.finfo(score.dtype).min
    return score.nan_to_num(nan=lowest, neginf=lowest).where(masked, -torch.inf)


def best_if_none(
    commit: Bool[Tensor, "b k"], score: Float[Tensor, "b k"], masked: Bool[Tensor, "b k"]
) -> Bool[Tensor, "b k"]:
    """The best-scored open position of each row that has no commit, and nothing in the others."""
    if masked.shape[1] == 0:
        return masked
    best = open_scores(score, masked).argmax(-1, keepdim=True)  # of ties the first, as `best_scored` has it
    needed = masked & ~commit.any(-1, keepdim=True)
    return needed & (torch.arange(masked.shape[1], device=masked.device) == best)


def compatible(
    candidates: Bool[Tensor, "b k"], score: Float[Tensor, "b k"], conflict: Bool[Tensor, "b k k"]
) -> Bool[Tensor, "b k"]:
    """Candidates taken by descending score, each unless it conflicts with one taken before; conflict[i, j]: j bars i.

    Every round decides all positions anew from the round before. After r rounds the first r in order are final, so k
    rounds give the sequential answer without asking the device how far it is.
    """
    rank = rank_of(score, candidates)
    barred_by = conflict & (rank[:, None, :] < rank[:, :, None])
    taken = candidates
    for _ in range(candidates.shape[-1]):
        taken = candidates & ~(barred_by & taken[:, None, :]).any(-1)
    return taken
