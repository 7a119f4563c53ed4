"""Which positions a pass computes, and how many keys they see: the plan of a row, made on the host before each pass.

A cache kind answers with a RowPlan; the engine puts the plans of the rows of one model call into a PassPlan, which
models read. Knows nothing of models or policies.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from unmask.device import on_device

Span = tuple[int, int]  # half-open


@dataclass(frozen=True, slots=True, kw_only=True)
class RowPlan:
    """What one pass computes of one row."""

    span: Span  # positions computed, whose keys and values are written
    visible: int  # how many keys from position 0 on they may see; a block-causal model hides more
    refresh: bool = False  # the pass renews the whole cache of the row
    # With a shifted head, later passes cannot predict the block's first position (docs/engine.md):
    first_only: bool = False  # the pass commits that position alone
    pin_first: bool = False  # the pass does not open it again


@runtime_checkable
class RowState(Protocol):
    """What a row plan depends on; the engine's Canvas has it."""

    spans_before: int  # how many spans of open blocks came before this one
    block_step: int  # passes already spent on this one
    stale: bool  # what the cache holds of the row is missing, or has drifted too far
    block_before: Span | None  # the span before this one

    @property
    def length(self) -> int: ...

    @property
    def block(self) -> Span:
        """The span of the open blocks: one block, unless blocks slide."""
        ...

    @property
    def begins_open(self) -> bool:
        """Whether the block's first position is still a mask."""
        ...


class PassPlan:
    """The plans of the rows of one model call, and their tensors, each made when it is first asked for.

    When a pass repeats the plans of the pass before, the engine uses the same object: nothing is copied again.
    """

    def __init__(self, rows: tuple[RowPlan, ...], device: torch.device) -> None:
        self.rows = rows
        self.device = device

    @classmethod
    def whole(cls, lengths: list[int], device: torch.device) -> PassPlan:
        """A plan that computes every position of rows of these lengths."""
        return cls(tuple(RowPlan(span=(0, length), visible=length) for length in lengths), device)

    @cached_property
    def spans(self) -> list[Span]:
        return [row.span for row in self.rows]

    @cached_property
    def sizes(self) -> list[int]:
        """How many positions of each row are computed."""
        return [end - start for start, end in self.spans]

    @cached_property
    def seen(self) -> list[int]:
        """How many keys the positions of each row see."""
        return [row.visible for row in self.rows]

    @cached_property
    def self_contained(self) -> bool:
        """Whether every row computes all positions that it sees, so that nothing is read from a cache."""
        return all(row.span == (0, row.visible) for row in self.rows)

    @cached_property
    def positions(self) -> Int[Tensor, "b q"]:
        """The positions of each span side by side; a shorter span repeats its last position."""
        columns, _ = columns_of(self.spans)
        return on_device(torch.from_numpy(columns), self.device)

    @cached_property
    def visible(self) -> Int[Tensor, " b"]:
        return on_device(self.seen, self.device)

    @cached_property
    def first_only(self) -> Bool[Tensor, " b"] | None:
        """Rows that commit their block's first position alone; None: no row does."""
        return self._flags([row.first_only for row in self.rows])

    @cached_property
    def pin_first(self) -> Bool[Tensor, " b"] | None:
        """Rows whose block's first position is not opened again; None: there is no such row."""
        return self._flags([row.pin_first for row in self.rows])

    def _flags(self, values: list[bool]) -> Bool[Tensor, " b"] | None:
        return on_device(values, self.device) if any(values) else None

    @property
    def padded(self) -> int:
        """Positions to compute when every row is as wide as the widest."""
        return len(self.sizes) * max(self.sizes)


def columns_of(spans: Sequence[Any]) -> tuple[np.ndarray, np.ndarray]:
    """Spans side by side, as wide as the widest: the position of each column, and which columns lie inside.

    A shorter span repeats its last position. Spans may be nested: (..., 2) numbers give (..., width) columns.
    """
    bounds = np.array(spans)
    first, end = bounds[..., :1], bounds[..., 1:]
    columns = first + np.arange((end - first).max())
    return np.minimum(columns, np.maximum(end - 1, first)), columns < end
