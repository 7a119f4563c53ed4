"""Some positions of each row, those of one row behind those of the other, so that a pass computes no padding.

What belongs to a position is a row of its own there: tensors are (positions, 1, ...), with the first row of the batch
first. Behind the last row there may be positions that belong to none: they round the number of positions up, since a
shape that comes again can be replayed.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from unmask.models.transfer import on_device

# With kernels, positions come in such steps; a tile of a product has as many.
STEP = 128
# Passes of up to so many are captured. Their shapes seldom come again, and more of them keep the device busy while they
# are launched one by one.
CAPTURED = 2048
# Without, the share of the positions above which padding costs less than to do without it.
_WORTH = 0.9


def known_lengths(lengths: Int[Tensor, " b"] | None, most: int) -> list[int] | None:
    """Of rows of at most so many positions, if the host knows them without waiting."""
    if lengths is None or lengths.device.type != "cpu":
        return None
    return lengths.clamp(max=most).tolist()


def known_spans(queries: Int[Tensor, "b q"]) -> list[tuple[int, int]] | None:
    """From where to where the contiguous positions of each row are, if the host knows without waiting."""
    if queries.device.type != "cpu" or not queries.numel():
        return None
    return [(first, last + 1) for first, last in zip(queries[:, 0].tolist(), queries[:, -1].tolist(), strict=True)]


def is_worth_packing(positions: int, padded: int, *, kernels: bool) -> bool:
    """Whether so many positions are done sooner than those of the batch with its padding."""
    return positions > 0 and (rounded(positions) < padded if kernels else positions <= _WORTH * padded)


def rounded(positions: int) -> int:
    return -(-positions // STEP) * STEP


@dataclass(frozen=True, slots=True, kw_only=True)
class Packing:
    """Where the positions of a padded batch are, and where they belong."""

    row: Int[Tensor, " positions"]
    position: Int[Tensor, " positions"]  # in its row; -1: of none
    rows: Int[Tensor, "3 b"]  # the first position of each row, how many there are of it, and the place of the first

    @classmethod
    def of(cls, spans: list[tuple[int, int]], count: int, device: torch.device) -> Packing:
        """The positions of each row from one to before another, in `count` places, which are enough for them."""
        # By the host, and copied once: the device has nothing to do until this is there. Not by torch, which would wake
        # its threads for it: that can take milliseconds.
        first, sizes = [first for first, _ in spans], [end - first for first, end in spans]
        *starts, used = accumulate(sizes, initial=0)
        table = np.empty(2 * count + 3 * len(spans), dtype=np.int64)
        row, position, rows = np.split(table, [count, 2 * count])
        row[:used], row[used:] = np.repeat(np.arange(len(spans)), sizes), len(spans) - 1
        position[:used], position[used:] = np.arange(used) + np.repeat(np.subtract(first, starts), sizes), -1
        rows[:] = [*first, *sizes, *starts]
        parts = on_device(torch.from_numpy(table), device).split([count, count, len(rows)])
        return cls(row=parts[0], position=parts[1], rows=parts[2].view(3, -1))

    @property
    def lengths(self) -> Int[Tensor, " b"]:
        return self.rows[1]

    @property
    def starts(self) -> Int[Tensor, " b"]:
        return self.rows[2]

    def packed(self, values: Int[Tensor, "b n"]) -> Int[Tensor, "positions 1"]:
        return values[self.row, self.position][:, None]

    def unpacked(self, values: Float[Tensor, "positions 1 w"], length: int) -> Float[Tensor, "b n w"]:
        """Side by side, the padding filled with zeros."""
        out = values.new_zeros(self.lengths.shape[0], length + 1, values.shape[2])
        # Those of no row into the column that is not returned.
        column = torch.where(self.position < 0, -1, self.position - self.rows[0, self.row])
        out[self.row, column] = values[:, 0]
        return out[:, :length]

    def columns(self, at: Int[Tensor, "_b k"]) -> Int[Tensor, "b k"]:
        """Which of its row's positions these are; those outside are taken for the first or the last one."""
        column = (at - self.rows[0, :, None]).clamp(min=0)
        return torch.minimum(column, (self.lengths[:, None] - 1).clamp(min=0))

    def places(self, at: Int[Tensor, "_b k"]) -> Int[Tensor, "b k"]:
        """Where some positions of each row are; those outside are taken for its first or last one."""
        # A row without positions has none, and gets another's.
        return (self.starts[:, None] + self.columns(at)).clamp(max=self.row.shape[0] - 1)
