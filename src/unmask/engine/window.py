"""Which columns of which rows one pass predicts: the open blocks of every row, one unless blocks slide."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from unmask.cache.base import Span
from unmask.device import on_device
from unmask.engine.canvas import Canvas


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """The current blocks side by side, as wide as the widest. A narrower block repeats its last position."""

    blocks: tuple[Span, ...]
    at: Int[Tensor, "b k"]  # absolute position of every column
    inside: Bool[Tensor, "b k"]  # columns that belong to the row's block
    first: Bool[Tensor, "b k"] | None  # columns of its first open block; None: all of them, since no block slides
    step: Int[Tensor, " b"]  # decisions already made in the block
    length: Int[Tensor, " b"]  # of each canvas
    total: Int[Tensor, " b"]  # masks that each canvas began with

    @classmethod
    def over(cls, canvases: list[Canvas], device: torch.device) -> Window:
        # Made on the host and copied once: the device may have nothing to do until the window arrives.
        blocks = tuple(canvas.block for canvas in canvases)
        rows, width = len(blocks), max(end - start for start, end in blocks)
        columns, inside = columns_of(np.array(blocks), width)
        of_rows = np.array([(canvas.block_step, canvas.length, len(canvas.holes)) for canvas in canvases]).T
        numbers = np.concatenate([columns.ravel(), inside.ravel(), of_rows.ravel()])
        sizes = [columns.size, columns.size, rows, rows, rows]
        at, inside, step, length, total = on_device(torch.from_numpy(numbers), device).split(sizes)
        at, inside = at.view(rows, width), inside.view(rows, width).bool()
        first = None
        if any(canvas.sliding < 1.0 for canvas in canvases):
            first = at < on_device([canvas.first_block[1] for canvas in canvases], device)[:, None]
        return cls(blocks=blocks, at=at, inside=inside, first=first, step=step, length=length, total=total)

    def next(self) -> Window:
        """The window of the next pass, when every row is still in its block."""
        return replace(self, step=self.step + 1)

    def rows(self, first: int, end: int) -> Window:
        """Some rows, no wider than they need."""
        blocks = self.blocks[first:end]
        width = max(end - start for start, end in blocks)
        if blocks == self.blocks:
            return self
        part = slice(first, end)
        at, inside = self.at[part, :width], self.inside[part, :width]
        step, length, total = self.step[part], self.length[part], self.total[part]
        front = None if self.first is None else self.first[part, :width]
        return Window(blocks=blocks, at=at, inside=inside, first=front, step=step, length=length, total=total)

    @property
    def widths(self) -> list[int]:
        return [end - start for start, end in self.blocks]

    def columns(self, values: Tensor) -> Tensor:
        """What `values` (b, n) or (b, n, v) hold in the window."""
        if values.ndim == 2:
            return values.gather(1, self.at)
        return values.gather(1, self.at[..., None].expand(-1, -1, values.shape[-1]))


def columns_of(spans: np.ndarray, width: int) -> tuple[np.ndarray, np.ndarray]:
    """The position of each of `width` columns of the spans (..., 2), and which columns lie inside."""
    first, end = spans[..., :1], spans[..., 1:]
    columns = first + np.arange(width)
    return np.minimum(columns, np.maximum(end - 1, first)), columns < end
