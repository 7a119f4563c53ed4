"""Which part of which rows one forward pass is about: the current block of every live canvas."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from unmask.engine.canvas import Canvas
from unmask.models.transfer import on_device


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """The blocks side by side, as wide as the widest; a narrower one repeats its last position, outside."""

    canvases: list[Canvas]
    spans: list[tuple[int, int]]
    at: Int[Tensor, "b k"]  # absolute position of every column
    inside: Bool[Tensor, "b k"]  # columns that belong to the row's block
    step: Int[Tensor, " b"]  # passes already spent on the block
    length: Int[Tensor, " b"]  # of each canvas

    @classmethod
    def over(cls, canvases: list[Canvas], device: torch.device) -> Window:
        # By the host, and copied once: the device may have nothing to do until this is there.
        spans = [canvas.block for canvas in canvases]
        rows, width = len(spans), max(end - start for start, end in spans)
        bounds = np.array(spans)
        columns, last = bounds[:, :1] + np.arange(width), bounds[:, 1:] - 1
        steps, lengths = [canvas.block_step for canvas in canvases], [len(canvas.tokens) for canvas in canvases]
        facts = np.concatenate([np.minimum(columns, last).ravel(), (columns <= last).ravel(), steps, lengths])
        sizes = [columns.size, columns.size, rows, rows]
        at, inside, step, length = on_device(torch.from_numpy(facts), device).split(sizes)
        return cls(
            canvases=canvases,
            spans=spans,
            at=at.view(rows, width),
            inside=inside.view(rows, width).bool(),
            step=step,
            length=length,
        )

    def next(self) -> Window:
        """The window of the next pass, when every row is still in its block."""
        return replace(self, step=self.step + 1)

    @property
    def widths(self) -> list[int]:
        return [end - start for start, end in self.spans]

    def columns(self, values: Tensor) -> Tensor:
        """What `values` (b, n) or (b, n, v) hold in the window."""
        if values.ndim == 2:
            return values.gather(1, self.at)
        return values.gather(1, self.at[..., None].expand(-1, -1, values.shape[-1]))


def span_positions(spans: list[tuple[int, int]], device: torch.device) -> Int[Tensor, "b w"]:
    """The positions of each span side by side; a shorter span repeats its last position."""
    bounds = on_device(spans, device)
    width = max(end - start for start, end in spans)
    return torch.minimum(bounds[:, :1] + torch.arange(width, device=device), bounds[:, 1:] - 1)
