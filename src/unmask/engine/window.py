"""Which part of which rows one forward pass is about: the current block of every live canvas."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from unmask.engine.canvas import Canvas


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
        # Made before the forward pass: a copy to the device later would wait for it.
        spans = [canvas.block for canvas in canvases]
        at = span_positions(spans, device)
        widths = torch.tensor([end - start for start, end in spans], device=device)
        return cls(
            canvases=canvases,
            spans=spans,
            at=at,
            inside=torch.arange(at.shape[1], device=device) < widths[:, None],
            step=torch.tensor([canvas.block_step for canvas in canvases], device=device),
            length=torch.tensor([len(canvas.tokens) for canvas in canvases], device=device),
        )

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
    bounds = torch.tensor(spans, device=device)
    width = max(end - start for start, end in spans)
    return torch.minimum(bounds[:, :1] + torch.arange(width, device=device), bounds[:, 1:] - 1)
