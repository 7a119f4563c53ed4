"""Which part of which rows one forward pass is about: the current block of every live canvas."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

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
        # One copy to the device, before the forward pass.
        spans = [canvas.block for canvas in canvases]
        facts = [
            [start for start, _ in spans],
            [end for _, end in spans],
            [canvas.block_step for canvas in canvases],
            [len(canvas.tokens) for canvas in canvases],
        ]
        start, end, step, length = on_device(facts, device)
        width = max(end - start for start, end in spans)
        columns = start[:, None] + torch.arange(width, device=device)
        last = end[:, None] - 1
        return cls(
            canvases=canvases,
            spans=spans,
            at=torch.minimum(columns, last),
            inside=columns <= last,
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


def on_device(values: list[Any], device: torch.device) -> Tensor:
    """A tensor of some numbers; the host does not wait until the device, which may be at work, has copied them."""
    if device.type != "cuda":
        return torch.tensor(values, device=device)
    return torch.tensor(values, pin_memory=True).to(device, non_blocking=True)
