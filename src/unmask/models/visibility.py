"""Which keys each query may see, as boolean masks for scaled dot product attention; None means all of them.

All is bidirectional: a query is kept only from padding and, if it is a shadow, from what would give it the answer.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from unmask.models.base import key_mask


def padding_mask(
    lengths: Int[Tensor, " b"] | None, length: int, device: torch.device
) -> Bool[Tensor, "b 1 1 n"] | None:
    """The keys of each row's real positions; None where no row is known to be padded, since kernels are faster then."""
    if lengths is None:
        return None
    # Looking at a tensor on the CPU costs nothing; looking at one on a device would wait for it.
    if lengths.device.type == "cpu" and bool((lengths >= length).all()):
        return None
    visible = key_mask(lengths.clamp(min=1), length)  # a row without a single key would come out as NaN
    assert visible is not None
    return visible.to(device)[:, None, None, :]


def shadow_mask(
    shadow: Int[Tensor, "b s"], visible: Bool[Tensor, "b 1 1 n"] | None, length: int
) -> Bool[Tensor, "b 1 both both"]:
    """Main positions see one another only; a shadow sees the shadows and every main position but its own.

    A position repeated in `shadow` is padding: only its first column is a key.
    """
    rows, shadows = shadow.shape
    repeated = (shadow[:, :, None] == shadow[:, None, :]).tril(-1).any(-1)
    own = shadow[:, :, None] == torch.arange(length, device=shadow.device)
    mains = own.new_ones(rows, 1, length) if visible is None else visible[:, 0]
    seen = own.new_zeros(rows, length + shadows, length + shadows)
    seen[:, :length, :length] = mains
    seen[:, length:, :length] = mains & ~own
    seen[:, length:, length:] = ~repeated[:, None, :]
    return seen[:, None]
