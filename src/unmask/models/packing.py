"""Rows of different lengths one behind the other, so that a pass computes no padding.

What belongs to a position is a row of its own there: tensors are (positions, 1, ...), with the first row of the batch
first. Behind the last row there may be positions that belong to none: they round the number of positions up, since a
shape that comes again can be replayed.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

# With kernels, positions come in such steps; a tile of a product has as many.
_POSITIONS = 128
# Without, the share of the positions above which padding costs less than to do without it.
_WORTH = 0.9


def known_lengths(
    lengths: Int[Tensor, " b"] | None, most: int, device: torch.device
) -> tuple[Int[Tensor, " b"] | None, list[int] | None]:
    """Lengths on the device, and as the host knows them, if it does without waiting; None, None if all are `most`."""
    if lengths is None or lengths.device.type != "cpu":
        return lengths, None
    lengths = lengths.clamp(max=most)
    sizes = lengths.tolist()
    if sum(sizes) == most * len(sizes):
        return None, None
    cuda = device.type == "cuda"  # elsewhere a copy for which nobody waits may come too late
    return (lengths.pin_memory() if cuda else lengths).to(device, non_blocking=cuda), sizes


def is_worth_packing(positions: int, padded: int, *, kernels: bool) -> bool:
    """Whether so many positions are done sooner than those of the batch with its padding."""
    return positions > 0 and (rounded(positions) < padded if kernels else positions <= _WORTH * padded)


def rounded(positions: int) -> int:
    return -(-positions // _POSITIONS) * _POSITIONS


@dataclass(frozen=True, slots=True, kw_only=True)
class Packing:
    """Where the positions of a padded batch are, and where they belong."""

    starts: Int[Tensor, " b"]
    lengths: Int[Tensor, " b"]
    row: Int[Tensor, " positions"]
    position: Int[Tensor, " positions"]  # in its row; -1: of none

    @classmethod
    def of(cls, lengths: Int[Tensor, " b"], positions: int) -> Packing:
        """In so many positions, at least as many as the rows have."""
        ends = lengths.cumsum(0)
        number = torch.arange(positions, device=lengths.device)
        row = torch.searchsorted(ends, number, right=True).clamp(max=lengths.shape[0] - 1)
        starts = ends - lengths
        position = torch.where(number < ends[-1], number - starts[row], -1)
        return cls(starts=starts, lengths=lengths, row=row, position=position)

    def packed(self, values: Int[Tensor, "b n"]) -> Int[Tensor, "positions 1"]:
        return values[self.row, self.position][:, None]

    def unpacked(self, values: Float[Tensor, "positions 1 w"], length: int) -> Float[Tensor, "b n w"]:
        """Side by side, the padding filled with zeros."""
        out = values.new_zeros(self.lengths.shape[0], length + 1, values.shape[2])
        out[self.row, self.position] = values[:, 0]  # those of no row into the column that is not returned
        return out[:, :length]

    def places(self, at: Int[Tensor, "_b k"]) -> Int[Tensor, "b k"]:
        """Where some positions of each row are; those behind its end are taken for its last one."""
        inside = torch.minimum(at, (self.lengths[:, None] - 1).clamp(min=0))
        # A row without positions has none, and gets another's.
        return (self.starts[:, None] + inside).clamp(max=self.row.shape[0] - 1)
