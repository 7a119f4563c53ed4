"""The mean-field rule as other code calls it: arguments checked, closed positions left out, a kernel where one serves.

The algorithm itself is in mean_field.py. Ties go to the lowest index, and identical positions do tie.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from unmask.device import with_kernel
from unmask.errors import UnmaskError
from unmask.rules.mean_field import MeanFieldCommit, Parameters, mean_field, mean_field_history, sigmoid


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
    validate: bool = True,
    diagnostics: bool = False,
) -> MeanFieldCommit:
    """The `masked` positions to commit now. The other positions are never read, whatever they hold.

    `interaction='uniform'` sets every D_ij to `uniform_weight`, 'none' to 0. `vocabulary=K` compares every row's K best
    tokens and merges the rest. `validate=False` trusts the logits and brings nothing to the host, as a captured graph
    needs; closed positions then cost as much as open ones.
    """
    rule = Parameters(
        threshold=threshold,
        iterations=iterations,
        interaction=interaction,
        uniform_weight=uniform_weight,
        normalize=normalize,
        fallback=fallback,
        vocabulary=vocabulary,
    )
    _check_tensors(logits, masked)
    open_at_most = None
    if validate:
        _check_rows(logits, masked)
        open_at_most = int(masked.sum(-1).max()) if masked.numel() else 0
    decided = commit_open(logits, masked, rule, open_at_most=open_at_most)
    return _with_diagnostics(decided, masked, iterations) if diagnostics else decided


def mean_field_intensity(
    margin: Float[Tensor, "*batch m"], overlap: Float[Tensor, "*batch m m"], iterations: int = 2
) -> Float[Tensor, "*batch m"]:
    """Commit intensity of every position after `iterations` synchronous mean-field updates (Algorithm 1, step 3)."""
    return sigmoid(mean_field_history(margin, overlap, iterations)[-1])


@with_kernel
def commit_open(
    logits: Float[Tensor, "b k v"], masked: Bool[Tensor, "b k"], rule: Parameters, *, open_at_most: int | None
) -> MeanFieldCommit:
    """The rule over open positions alone, where the caller knows that no row has more than `open_at_most`.

    The logits are trusted, and nothing is brought to the host, so that a graph can capture it.
    """
    k = masked.shape[1]
    if open_at_most is None or open_at_most >= k:
        return mean_field(logits, masked, rule)
    # Columns of the open positions, in order, then closed ones up to the longest row.
    index = masked.int().argsort(dim=-1, descending=True, stable=True)[:, :open_at_most]
    # Rows of logits are selected by one number each: in plain PyTorch an index of two costs several times as much.
    places = index + k * torch.arange(len(masked), device=masked.device).unsqueeze(-1)
    chosen = logits.flatten(0, 1).index_select(0, places.flatten()).unflatten(0, places.shape)
    decided = mean_field(chosen, masked.gather(1, index), rule)
    return MeanFieldCommit(
        commit=_put_back(decided.commit, index, k),
        score=_put_back(decided.score, index, k).masked_fill(~masked, -torch.inf),
        intensity=_put_back(decided.intensity, index, k),
        margin=_put_back(decided.margin, index, k),
        overlap=_put_back(_put_back(decided.overlap, index, k).mT, index, k),
    )


def _put_back(values: Shaped[Tensor, "b *other m"], index: Int[Tensor, "b m"], k: int) -> Shaped[Tensor, "b *other k"]:
    """The values in their old columns, and 0 in the others."""
    columns = index.view(index.shape[0], *[1] * (values.ndim - 2), index.shape[1]).expand_as(values)
    return values.new_zeros(*values.shape[:-1], k).scatter(-1, columns, values)


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


def _check_tensors(logits: Tensor, masked: Tensor) -> None:
    """Raise unless these are logits (b, k, v) and a boolean mask (b, k)."""
    if logits.ndim != 3 or logits.shape[-1] == 0 or not logits.is_floating_point():
        raise UnmaskError(f"logits must be floating point of shape (b, k, v), got {logits.dtype} {tuple(logits.shape)}")
    if masked.dtype != torch.bool or masked.shape != logits.shape[:2]:
        wanted = f"bool of shape {tuple(logits.shape[:2])}"
        raise UnmaskError(f"masked must be {wanted}, got {masked.dtype} {tuple(masked.shape)}")


def _check_rows(logits: Float[Tensor, "b k v"], masked: Bool[Tensor, "b k"]) -> None:
    """Raise if the logits of an open position are no distribution: with NaN or +inf, or all -inf."""
    best = logits.amax(-1)
    bad = masked & ~best.isfinite()
    if bad.any():
        row, position = bad.nonzero()[0].tolist()
        largest = float(best[row, position])
        raise UnmaskError(f"the logits of row {row}, position {position} are no prediction: the largest is {largest}")
