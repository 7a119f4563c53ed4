"""Mean-Field Parallel Decoding: which open positions of a block are safe to commit together, from one forward pass.

    margin     c_i  = log p_i(best) - log p_i(second best)
    overlap    D~ij = 1 - JSD(p_i, p_j) / ln 2,   D = D~ / max D~,   D_ii = 0
    field      h    = c,  then R times  h = c - D sigmoid(h)
    intensity  q    = sigmoid(h);  commit where q >= threshold, and if that is nowhere, where h is largest

Knows nothing of models, tokens or loops. Ties go to the lowest index, and identical positions do tie.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unmask.rules.marginals import top2_margin, top2_probabilities
from unmask.rules.open_positions import open_first, pick, put_back
from unmask.rules.overlap import pairwise_overlap
from unmask.rules.validation import check_mean_field, check_open, check_rows, check_tensors

# An overlap that is no larger is none: dividing by it would set positions against each other that share nothing.
_NO_OVERLAP = 1e-12


@dataclass(frozen=True, slots=True, kw_only=True)
class MeanFieldCommit:
    """What the rule decided, and from what. Closed positions have score -inf and 0 (or False) everywhere else."""

    commit: Bool[Tensor, "b k"]  # at least one position of every row that has an open one
    score: Float[Tensor, "b k"]  # the final field: the order of the intensities, without their saturation
    intensity: Float[Tensor, "b k"]
    margin: Float[Tensor, "b k"]  # +inf where only one token can occur
    overlap: Float[Tensor, "b k k"]  # D, as it was used
    history: Float[Tensor, "r b k"] | None = None  # the intensity before the first update and after each
    elbo: Float[Tensor, "r b"] | None = None  # the evidence lower bound at each of these intensities


def mean_field_commit(
    logits: Float[Tensor, "b k v"],
    masked: Bool[Tensor, "b k"],
    *,
    threshold: float = 0.85,
    iterations: int = 2,
    interaction: str = "jsd",
    uniform_weight: float = 1.0,
    normalize: str = "max",
    fallback: str = "field",
    vocabulary: int | None = None,
    open_at_most: int | None = None,
    validate: bool = True,
    diagnostics: bool = False,
) -> MeanFieldCommit:
    """The positions to commit now, among those that are `masked`; the others are never read, whatever they hold.

    `interaction='uniform'` sets every D_ij to `uniform_weight`, 'none' to 0. `vocabulary=K` compares every row's K best
    tokens and merges the rest. `validate=False` trusts the logits and brings nothing to the host, as a captured graph
    needs; closed positions then cost as much as open ones, unless `open_at_most` says how many of a row can be open.
    """
    check_mean_field(threshold, iterations, interaction, uniform_weight, normalize, fallback, vocabulary)
    check_tensors(logits, masked)
    logits = logits.detach()
    if logits.is_cuda:
        from unmask.rules.triton_rule import commit_by_kernels, kernels_take

        if kernels_take(logits, interaction=interaction, vocabulary=vocabulary, diagnostics=diagnostics):
            if validate:
                check_rows(logits, masked, None)
                check_open(masked, open_at_most)
            return commit_by_kernels(
                logits,
                masked,
                threshold=threshold,
                iterations=iterations,
                normalize=normalize,
                fallback=fallback,
                open_at_most=open_at_most,
            )
    if validate:
        check_open(masked, open_at_most)
    index = open_first(masked, open_at_most) if validate or open_at_most is not None else None
    rows, is_open = (logits, masked) if index is None else (pick(logits, index), pick(masked, index))
    if validate:
        check_rows(rows, is_open, index)

    margin = _margin(rows).where(is_open, 0.0)
    if interaction == "jsd":
        overlap = _without_diagonal(pairwise_overlap(rows, masked=is_open, vocabulary=vocabulary))
        overlap = _normalised(overlap) if normalize == "max" else overlap
    else:
        pairs = is_open.unsqueeze(-1) & is_open.unsqueeze(-2)
        overlap = _without_diagonal(pairs.to(margin.dtype) * (uniform_weight if interaction == "uniform" else 0.0))
    fields = torch.stack(_fields(margin, overlap, iterations)).masked_fill(~is_open, -torch.inf)
    history = _sigmoid(fields)
    preference = fields[-1] if fallback == "field" else top2_probabilities(_widened(rows))[..., 0]
    decided = MeanFieldCommit(
        commit=_at_least_one(is_open & (history[-1] >= threshold), preference, is_open),
        score=fields[-1],
        intensity=history[-1],
        margin=margin,
        overlap=overlap,
        history=history if diagnostics else None,
        elbo=_elbo(history, margin, overlap) if diagnostics else None,
    )
    return decided if index is None else _over_all(decided, index, masked)


def mean_field_intensity(
    margin: Float[Tensor, "*batch m"], overlap: Float[Tensor, "*batch m m"], iterations: int = 2
) -> Float[Tensor, "*batch m"]:
    """Commit intensity of every position after `iterations` synchronous mean-field updates (Algorithm 1, step 3)."""
    return _sigmoid(_fields(margin, overlap, iterations)[-1])


def _fields(margin: Tensor, overlap: Tensor, iterations: int) -> list[Tensor]:
    """The field before the first update and after each."""
    # MPS has no float64.
    weights = overlap if overlap.device.type == "mps" else overlap.double()
    fields = [margin]
    for _ in range(iterations):
        # Sorted, because identical positions see the same terms in another order and must tie exactly. In float64 and
        # rounded once, because the zeros of closed positions must not change the result.
        terms = weights * _sigmoid(fields[-1]).unsqueeze(-2)
        pressure = terms.sort(dim=-1, descending=True).values.sum(-1)
        fields.append(margin - pressure.to(margin.dtype))
    return fields


def _sigmoid(field: Tensor) -> Tensor:
    # torch.sigmoid rounds differently at the end of an array than within it, so its result would depend on the batch.
    return (1.0 + (-field).exp()).reciprocal()


def _margin(logits: Float[Tensor, "b m v"]) -> Float[Tensor, "b m"]:
    # The two best are found before the logits are widened, which for half precision saves a copy of them all.
    best = logits.topk(min(2, logits.shape[-1]), dim=-1).values
    return top2_margin(_widened(best))


def _widened(values: Tensor) -> Tensor:
    return values.to(torch.promote_types(values.dtype, torch.float32))


def _without_diagonal(overlap: Float[Tensor, "b m m"]) -> Float[Tensor, "b m m"]:
    return overlap - overlap.diagonal(dim1=-2, dim2=-1).diag_embed()


def _normalised(overlap: Float[Tensor, "b m m"]) -> Float[Tensor, "b m m"]:
    if overlap.shape[-1] == 0:
        return overlap
    largest = overlap.amax((-2, -1), keepdim=True)
    return (overlap / largest).where(largest > _NO_OVERLAP, 0.0)


def _at_least_one(
    commit: Bool[Tensor, "b m"], preference: Float[Tensor, "b m"], is_open: Bool[Tensor, "b m"]
) -> Bool[Tensor, "b m"]:
    """The commits, and in an open row without any the preferred open position."""
    if is_open.shape[1] == 0:
        return commit
    best = preference.masked_fill(~is_open, -torch.inf).argmax(-1, keepdim=True)
    stuck = is_open.any(-1, keepdim=True) & ~commit.any(-1, keepdim=True)
    return commit.scatter(-1, best, commit.gather(-1, best) | stuck)


def _elbo(
    intensity: Float[Tensor, "r b m"], margin: Float[Tensor, "b m"], overlap: Float[Tensor, "b m m"]
) -> Float[Tensor, "r b"]:
    """L(q) = sum c q - 1/2 sum D q q + sum H(q).

    A position with an infinite margin has q = 1 at every step and would make every bound infinite: its c q is left out.
    """
    unary = torch.where(margin.isfinite(), margin, 0.0) * intensity
    pairwise = intensity * torch.einsum("bij,rbj->rbi", overlap, intensity)
    entropy = torch.special.entr(intensity) + torch.special.entr(1.0 - intensity)
    return (unary - 0.5 * pairwise + entropy).sum(-1)


def _over_all(decided: MeanFieldCommit, index: Int[Tensor, "b m"], masked: Bool[Tensor, "b k"]) -> MeanFieldCommit:
    """The decision about the open positions as one about all of them."""
    k = masked.shape[1]
    history = decided.history
    return MeanFieldCommit(
        commit=put_back(decided.commit, index, k),
        score=put_back(decided.score, index, k).masked_fill(~masked, -torch.inf),
        intensity=put_back(decided.intensity, index, k),
        margin=put_back(decided.margin, index, k),
        overlap=put_back(put_back(decided.overlap, index, k).mT, index, k),
        history=None if history is None else put_back(history.transpose(0, 1), index, k).transpose(0, 1),
        elbo=decided.elbo,
    )
