"""The open positions of every row side by side, and back again, so that closed positions cost nothing."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Int, Shaped
from torch import Tensor


def open_first(masked: Bool[Tensor, "b k"], longest: int) -> Int[Tensor, "b m"] | None:
    """Columns of the open positions, in order, then closed ones up to the `longest` row; None if that saves nothing."""
    if longest >= masked.shape[1]:
        return None
    return masked.int().argsort(dim=-1, descending=True, stable=True)[:, :longest]


def pick(values: Shaped[Tensor, "b k *rest"], index: Int[Tensor, "b m"]) -> Shaped[Tensor, "b m *rest"]:
    """What stands in the given columns."""
    b, k = values.shape[:2]
    flat = index + k * torch.arange(b, device=index.device).unsqueeze(-1)
    return values.flatten(0, 1).index_select(0, flat.flatten()).unflatten(0, index.shape)


def put_back(values: Shaped[Tensor, "b *other m"], index: Int[Tensor, "b m"], k: int) -> Shaped[Tensor, "b *other k"]:
    """The values in their old columns, and 0 in the others."""
    columns = index.view(index.shape[0], *[1] * (values.ndim - 2), index.shape[1]).expand_as(values)
    return values.new_zeros(*values.shape[:-1], k).scatter(-1, columns, values)
