"""Positions of rows laid one behind the other, so that a pass over rows of different sizes computes no padding.

Tensors are (positions, 1, ...), with the first row of the batch first. Behind the last row there may be positions that
belong to no row: they round the number of positions up, because a shape that returns can be replayed.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from unmask.cache.base import Span
from unmask.device import on_device


@dataclass(frozen=True, slots=True, kw_only=True)
class Packing:
    """To which row and position each packed place belongs, and where the positions of each row are packed."""

    row: Int[Tensor, " positions"]
    position: Int[Tensor, " positions"]  # in its row; -1: the place belongs to no row
    rows: Int[Tensor, "3 b"]  # of each row: its first position, its number of positions, where the first is packed

    @classmethod
    def of(cls, spans: list[Span], count: int, device: torch.device) -> Packing:
        """The spans, packed into `count` places; there are at least as many places as positions."""
        # Made on the host and copied once: the device has nothing to do until this arrives. Made with numpy, because
        # torch would wake its threads, which can take milliseconds.
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
    def sizes(self) -> Int[Tensor, " b"]:
        return self.rows[1]

    @property
    def starts(self) -> Int[Tensor, " b"]:
        return self.rows[2]

    def packed(self, values: Int[Tensor, "b n"]) -> Int[Tensor, "positions 1"]:
        return values[self.row, self.position][:, None]

    def unpacked(self, values: Float[Tensor, "positions 1 w"], width: int) -> Float[Tensor, "b q w"]:
        """Side by side, each row from its first computed position on, the padding filled with zeros."""
        out = values.new_zeros(self.sizes.shape[0], width + 1, values.shape[2])
        # Positions of no row go into the column that is not returned.
        column = torch.where(self.position < 0, -1, self.position - self.rows[0, self.row])
        out[self.row, column] = values[:, 0]
        return out[:, :width]

    def places(self, at: Int[Tensor, "_b k"]) -> Int[Tensor, "b k"]:
        """Where some positions of each row are packed. One outside the row's span counts as its first or last one."""
        column = torch.minimum((at - self.rows[0, :, None]).clamp(min=0), (self.sizes[:, None] - 1).clamp(min=0))
        # A row without positions gets a place of another row.
        return (self.starts[:, None] + column).clamp(max=self.row.shape[0] - 1)
