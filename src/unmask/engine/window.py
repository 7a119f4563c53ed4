"""What one pass is about: the window, which columns of which rows it decides in, and what the model gave for it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unmask.cache.base import PassPlan, Span, columns_of
from unmask.device import on_device
from unmask.engine.canvas import Canvas
from unmask.models.base import Prediction


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """The open blocks of every row side by side, as wide as the widest. A narrower one repeats its last position."""

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
        columns, inside = columns_of(blocks)
        rows, width = columns.shape
        of_rows = np.array([(canvas.block_step, canvas.length, len(canvas.holes)) for canvas in canvases]).T
        numbers = np.concatenate([columns.ravel(), inside.ravel(), of_rows.ravel()])
        sizes = [columns.size, columns.size, rows, rows, rows]
        at, inside, step, length, total = on_device(torch.from_numpy(numbers), device).split(sizes)
        at, inside = at.view(rows, width), inside.view(rows, width).bool()
        first = None
        if any(canvas.sliding < 1.0 for canvas in canvases):
            first = at < on_device([canvas.blocks[canvas.block_index][1] for canvas in canvases], device)[:, None]
        return cls(blocks=blocks, at=at, inside=inside, first=first, step=step, length=length, total=total)

    def part(self, rows: slice) -> Window:
        """Some rows, no wider than they need."""
        blocks = self.blocks[rows]
        width = max(end - start for start, end in blocks)
        at, inside = self.at[rows, :width], self.inside[rows, :width]
        step, length, total = self.step[rows], self.length[rows], self.total[rows]
        first = None if self.first is None else self.first[rows, :width]
        return Window(blocks=blocks, at=at, inside=inside, first=first, step=step, length=length, total=total)

    @property
    def widths(self) -> list[int]:
        return [end - start for start, end in self.blocks]

    def columns(self, values: Tensor) -> Tensor:
        """What `values` (b, n) or (b, n, v) hold in the window."""
        if values.ndim == 2:
            return values.gather(1, self.at)
        return values.gather(1, self.at[..., None].expand(-1, -1, values.shape[-1]))

    def predicted(self, plan: PassPlan) -> Int[Tensor, "b k"] | None:
        """The positions of which a pass with this plan must give logits; None: exactly those that it computes."""
        return None if plan.spans == list(self.blocks) else self.at


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """A forward pass over some rows, as a decision sees it; the device may still be at work on it."""

    window: Window
    prediction: Prediction
    refreshed: tuple[bool, ...] = ()  # rows whose cache the pass renewed
    drifted: Bool[Tensor, " b"] | None = None  # rows whose cache the next pass must refresh; None: no cache drifts
    first_only: Bool[Tensor, " b"] | None = None  # rows that commit their block's first position alone, by arg max
    pin_first: Bool[Tensor, " b"] | None = None  # rows whose block's first position must not be opened again
    # Logits of every state of a row (its own, then its guesses) in its block and the blocks after it; see verify.py.
    guessed: Float[Tensor, "b states blocks k v"] | None = None

    @classmethod
    def of(
        cls, plan: PassPlan, window: Window, prediction: Prediction, drifted: Bool[Tensor, " b"] | None = None
    ) -> Pass:
        """A pass with this plan."""
        return cls(
            window=window,
            prediction=prediction,
            refreshed=tuple(row.refresh for row in plan.rows),
            drifted=drifted,
            first_only=plan.first_only,
            pin_first=plan.pin_first,
        )

    def part(self, rows: slice, *, length: int, whole: bool) -> Pass:
        """Some rows, no wider than they need.

        length: of sequence tensors; of the logits as well, if these are `whole`.
        """
        window, found = self.window.part(rows), self.prediction
        width, shadow, attention = window.at.shape[1], found.shadow_logits, found.attention
        prediction = Prediction(
            logits=found.logits[rows, : length if whole else width],
            attention=None if attention is None else attention[rows, :length, :length],
            shadow_logits=None if shadow is None else shadow[rows, :width],
        )
        optional = ("drifted", "first_only", "pin_first", "guessed")
        own = {name: value[rows] for name in optional if (value := getattr(self, name)) is not None}
        return Pass(window=window, prediction=prediction, refreshed=self.refreshed[rows], **own)
