"""Some positions of each row, those of one row behind those of the other, so that a pass computes no padding.

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
    return moved(lengths, device), sizes


def known_spans(queries: Int[Tensor, "b q"]) -> list[tuple[int, int]] | None:
    """From where to where the contiguous positions of each row are, if the host knows without waiting."""
    if queries.device.type != "cpu" or not queries.numel():
        return None
    return [(first, last + 1) for first, last in queries[:, [0, -1]].tolist()]


def moved(values: Tensor, device: torch.device) -> Tensor:
    """What the host knows, on the device; the host does not wait until it is there."""
    cuda = device.type == "cuda" and not values.is_cuda  # elsewhere a copy for which nobody waits may come too late
    return (values.pin_memory() if cuda else values).to(device, non_blocking=cuda)


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
    first: Int[Tensor, " b"] | None  # of each row's positions; None: 0
    row: Int[Tensor, " positions"]
    column: Int[Tensor, " positions"]  # among its row's positions; -1: of no row
    position: Int[Tensor, " positions"]  # in its row; -1: of none

    @classmethod
    def of(cls, lengths: Int[Tensor, " b"], count: int, *, first: Int[Tensor, " b"] | None = None) -> Packing:
        """So many positions of each row, in `count` places, which are enough for them."""
        ends = lengths.cumsum(0)
        number = torch.arange(count, device=lengths.device)
        row = torch.searchsorted(ends, number, right=True).clamp(max=lengths.shape[0] - 1)
        starts = ends - lengths
        column = position = torch.where(number < ends[-1], number - starts[row], -1)
        if first is not None:
            position = torch.where(column < 0, -1, column + first[row])
        return cls(starts=starts, lengths=lengths, first=first, row=row, column=column, position=position)

    def packed(self, values: Int[Tensor, "b n"]) -> Int[Tensor, "positions 1"]:
        return values[self.row, self.position][:, None]

    def unpacked(self, values: Float[Tensor, "positions 1 w"], length: int) -> Float[Tensor, "b n w"]:
        """Side by side, the padding filled with zeros."""
        out = values.new_zeros(self.lengths.shape[0], length + 1, values.shape[2])
        out[self.row, self.column] = values[:, 0]  # those of no row into the column that is not returned
        return out[:, :length]

    def columns(self, at: Int[Tensor, "_b k"]) -> Int[Tensor, "b k"]:
        """Which of its row's positions these are; those outside are taken for the first or the last one."""
        column = at if self.first is None else (at - self.first[:, None]).clamp(min=0)
        return torch.minimum(column, (self.lengths[:, None] - 1).clamp(min=0))

    def places(self, at: Int[Tensor, "_b k"]) -> Int[Tensor, "b k"]:
        """Where some positions of each row are; those outside are taken for its first or last one."""
        # A row without positions has none, and gets another's.
        return (self.starts[:, None] + self.columns(at)).clamp(max=self.row.shape[0] - 1)
