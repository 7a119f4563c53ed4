"""Greedy choice of positions that do not conflict, for the policies that read dependence from attention."""

from __future__ import annotations

from jaxtyping import Bool, Float
from torch import Tensor

from unmask.rules.selection import rank_of


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
