"""The mean-field rule as other code calls it: arguments checked, closed positions left out, a kernel where one serves.

The algorithm itself is in mean_field.py. Ties go to the lowest index, and identical positions do tie.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from unmask.device import with_kernel
from unmask.rules.mean_field import MeanFieldCommit, mean_field, mean_field_history, sigmoid
from unmask.rules.open_positions import open_first, pick, put_back
from unmask.rules.validation import check_rows, check_tensors, checked_parameters, most_open


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
    """The `masked` positions to commit now. The other positions are never read, whatever they hold.

    `interaction='uniform'` sets every D_ij to `uniform_weight`, 'none' to 0. `vocabulary=K` compares every row's K best
    tokens and merges the rest. `validate=False` trusts the logits and brings nothing to the host, as a captured graph
    needs; closed positions then cost as much as open ones, unless `open_at_most` says how many of a row can be open.
    """
    parameters = checked_parameters(
        threshold=threshold,
        iterations=iterations,
        interaction=interaction,
        uniform_weight=uniform_weight,
        normalize=normalize,
        fallback=fallback,
        vocabulary=vocabulary,
    )
    check_tensors(logits, masked)
    logits = logits.detach()
    if validate:
        check_rows(logits, masked)
        open_at_most = most_open(masked, open_at_most)
    decided = commit_open(logits, masked, open_at_most=open_at_most, **parameters)
    return _with_diagnostics(decided, masked, iterations) if diagnostics else decided


def mean_field_intensity(
    margin: Float[Tensor, "*batch m"], overlap: Float[Tensor, "*batch m m"], iterations: int = 2
) -> Float[Tensor, "*batch m"]:
    """Commit intensity of every position after `iterations` synchronous mean-field updates (Algorithm 1, step 3)."""
    return sigmoid(mean_field_history(margin, overlap, iterations)[-1])


@with_kernel
def commit_open(
    logits: Float[Tensor, "b k v"], masked: Bool[Tensor, "b k"], *, open_at_most: int | None, **parameters: Any
) -> MeanFieldCommit:
    """The rule over open positions alone, where the caller knows that no row has more than `open_at_most`."""
    index = None if open_at_most is None else open_first(masked, open_at_most)
    if index is None:
        return mean_field(logits, masked, **parameters)
    decided, k = mean_field(pick(logits, index), pick(masked, index), **parameters), masked.shape[1]
    return MeanFieldCommit(
        commit=put_back(decided.commit, index, k),
        score=put_back(decided.score, index, k).masked_fill(~masked, -torch.inf),
        intensity=put_back(decided.intensity, index, k),
        margin=put_back(decided.margin, index, k),
        overlap=put_back(put_back(decided.overlap, index, k).mT, index, k),
    )


def _with_diagnostics(decided: MeanFieldCommit, masked: Bool[Tensor, "b k"], iterations: int) -> MeanFieldCommit:
    """The decision with the intensities after each update and L(q) = sum c q - 1/2 sum D q q + sum H(q) at each.

    A position with an infinite margin has q = 1 at every step and would make every bound infinite: its c q is left out.
    """
    fields = torch.stack(mean_field_history(decided.margin, decided.overlap, iterations))
    history = sigmoid(fields.masked_fill(~masked, -torch.inf))
    unary = torch.where(decided.margin.isfinite(), decided.margin, 0.0) * history
    pairwise = history * torch.einsum("bij,rbj->rbi", decided.overlap, history)
    entropy = torch.special.entr(history) + torch.special.entr(1.0 - history)
    return replace(decided, history=history, elbo=(unary - 0.5 * pairwise + entropy).sum(-1))
