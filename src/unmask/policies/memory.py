"""What a policy remembers of each column of a block from one pass to the next."""

from __future__ import annotations

import torch
from jaxtyping import Shaped
from torch import Tensor

from unmask.types import StepView


def carried(
    before: Shaped[Tensor, "b k0 *rest"] | None, view: StepView, *, fresh: Tensor
) -> Shaped[Tensor, "b k *rest"]:
    """`before` in this pass's columns; rows that begin a block, and columns that are new, hold what `fresh` holds.

    The columns of a pass are as many as its widest block has, so their number changes as rows come and go.
    """
    if before is None:
        return fresh
    before = torch.cat([before[:, : fresh.shape[1]], fresh[:, before.shape[1] :]], dim=1)
    begins = (view.step == 0).view(-1, *(1,) * (before.ndim - 1))
    return torch.where(begins, fresh, before)
