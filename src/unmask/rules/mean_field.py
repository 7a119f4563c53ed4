"""Mean-Field Parallel Decoding, Algorithm 1: which open positions are safe to commit together.

A position is predicted without knowing what the others will hold. Two positions with similar predictions compete for
the same tokens: once one is committed, the prediction of the other may no longer hold. So they repel each other. A
position is committed if its margin outweighs the repulsion of all positions that are likely to be committed with it.

    margin     c_i  = log p_i(best) - log p_i(second best)
    overlap    D~ij = 1 - JSD(p_i, p_j) / ln 2,   D~ii = 0,   then  D = D~ / max D~
    field      h    = c,  then R times  h_i = c_i - sum over j of D_ij sigmoid(h_j)
    intensity  q    = sigmoid(h);  commit where q >= threshold; if that is nowhere, where h is largest

R is `iterations`. These are the defaults: `interaction`, `normalize` and `fallback` change the overlap and the last
step. The tensors here have m columns. `commit_open` in rules/commit.py picks these from the k columns of a block: all
open positions and, in a row with fewer than others, some closed ones. `mean_field_commit` there checks its arguments
too.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from unmask.device import widest_float
from unmask.options import check_bounds, parameter
from unmask.rules.marginals import top2_margin, top2_probabilities
from unmask.rules.overlap import pairwise_overlap
from unmask.rules.selection import best_if_none

# A smaller overlap counts as none: dividing by it would turn rounding noise into full repulsion.
_NO_OVERLAP = 1e-12


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameters:
    """What can be chosen about the rule; see `mean_field_commit`."""

    threshold: float = parameter(0.85, within="(0, 1]")
    iterations: int = parameter(2, least=0)
    interaction: str = parameter("jsd", choices=("jsd", "uniform", "none"))
    uniform_weight: float = parameter(1.0, within="[0, inf)")
    normalize: str = parameter("max", choices=("max", "none"))
    fallback: str = parameter("field", choices=("field", "confidence"))
    vocabulary: int | None = parameter(None, least=1)  # how many of its likeliest tokens a position is compared by

    def __post_init__(self) -> None:
        check_bounds(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class MeanFieldCommit:
    """The commits and the quantities behind them. A closed position has the score -inf, and 0 or False elsewhere."""

    commit: Bool[Tensor, "b k"]  # at least one position of every row that has an open one
    score: Float[Tensor, "b k"]  # the final field: also tells positions apart whose intensities round to 1
    intensity: Float[Tensor, "b k"]
    margin: Float[Tensor, "b k"]  # +inf where only one token can occur
    overlap: Float[Tensor, "b k k"]  # D, as it was used
    history: Float[Tensor, "r b k"] | None = None  # intensities at the start and after each of the r - 1 updates
    elbo: Float[Tensor, "r b"] | None = None  # the evidence lower bound at each of these


def mean_field(logits: Float[Tensor, "b m v"], is_open: Bool[Tensor, "b m"], rule: Parameters) -> MeanFieldCommit:
    """The commits among the open positions of each row."""
    margin = top2_margin(logits).where(is_open, 0.0)
    if rule.interaction == "jsd":
        overlap = without_diagonal(pairwise_overlap(logits, masked=is_open, vocabulary=rule.vocabulary))
        overlap = normalised(overlap) if rule.normalize == "max" else overlap
    else:
        both_open = is_open.unsqueeze(-1) & is_open.unsqueeze(-2)
        weight = rule.uniform_weight if rule.interaction == "uniform" else 0.0
        overlap = without_diagonal(both_open.to(margin.dtype) * weight)

    field = mean_field_history(margin, overlap, rule.iterations)[-1].masked_fill(~is_open, -torch.inf)
    intensity = sigmoid(field)
    commit = is_open & (intensity >= rule.threshold)

    preference = field if rule.fallback == "field" else top2_probabilities(logits, dtype=margin.dtype)[..., 0]
    commit = commit | best_if_none(commit, preference, is_open)
    return MeanFieldCommit(commit=commit, score=field, intensity=intensity, margin=margin, overlap=overlap)


def mean_field_history(
    margin: Float[Tensor, "*batch m"], overlap: Float[Tensor, "*batch m m"], iterations: int
) -> list[Float[Tensor, "*batch m"]]:
    """The field before the first synchronous update and after each."""
    weights = overlap.to(widest_float(overlap.device))
    fields = [margin]
    for _ in range(iterations):
        # Sorted, because identical positions see the same terms in another order and must tie exactly. In float64 where
        # the device has it and rounded once, because the zeros of closed positions change how a sum is grouped.
        terms = weights * sigmoid(fields[-1]).unsqueeze(-2)
        pressure = terms.sort(dim=-1, descending=True).values.sum(-1)
        fields.append(margin - pressure.to(margin.dtype))
    return fields


def sigmoid(field: Tensor) -> Tensor:
    # torch.sigmoid rounds differently at the end of an array than within it, so its result would depend on the batch.
    return (1.0 + (-field).exp()).reciprocal()


def without_diagonal(overlap: Float[Tensor, "b m m"]) -> Float[Tensor, "b m m"]:
    return overlap - overlap.diagonal(dim1=-2, dim2=-1).diag_embed()


def normalised(overlap: Float[Tensor, "b m m"]) -> Float[Tensor, "b m m"]:
    if overlap.shape[-1] == 0:
        return overlap
    largest = overlap.amax((-2, -1), keepdim=True)
    return (overlap / largest).where(largest > _NO_OVERLAP, 0.0)
