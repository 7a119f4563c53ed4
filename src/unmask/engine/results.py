"""What a pass did to its rows: a table on the device, which the host reads, and the result of each row."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from unmask.cache.base import Span
from unmask.engine.detail import RowNumbers
from unmask.errors import UnmaskError

# A row of the table has, for each of k columns, the token after the pass, whether it was committed and whether it was
# opened again; then a number for each flag, in this order.
PARTS = 3
FLAGS = ("waiting", "drifted", "broken", "foreign", "goes_on")


@dataclass(frozen=True, slots=True, kw_only=True)
class PassResult:
    """What a pass did to one row."""

    committed: dict[int, int] = field(default_factory=dict)  # position -> token
    remasked: tuple[int, ...] = ()
    waiting: bool = False  # the policy let the row idle on purpose
    drifted: bool = False  # the next pass must refresh the row's cache
    broken: bool = False  # an open position had no usable logits
    foreign: bool = False  # the policy gave a token outside the vocabulary
    goes_on: bool = False  # the block stays open and needs no refresh, so `Cache.plan_next` has the next pass's plan
    refreshed: bool = False  # the pass renewed the row's cache
    numbers: RowNumbers | None = None  # for a trace
    error: UnmaskError | None = None  # why the policy could not decide; then the pass did nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided:
    """What came of a decision about some rows, on the device."""

    tokens: Int[Tensor, "b n"]  # after the commits
    table: Int[Tensor, "b results"]
    blocks: tuple[Span, ...]
    refreshed: tuple[bool, ...]
    state: Any = None  # of the policy
    numbers: list[RowNumbers] | None = None  # for a trace

    def read(self, table: list[int]) -> list[PassResult]:
        """The result of each row, from the numbers of the table, row by row."""
        size, results = self.table.shape[1], []
        width = (size - len(FLAGS)) // PARTS
        for number, (start, end) in enumerate(self.blocks):
            row, columns = table[number * size : (number + 1) * size], range(end - start)
            flags: dict[str, Any] = dict(zip(FLAGS, map(bool, row[PARTS * width :]), strict=True))
            result = PassResult(
                committed={start + c: row[c] for c in columns if row[width + c]},
                remasked=tuple(start + c for c in columns if row[2 * width + c]),
                refreshed=self.refreshed[number],
                numbers=None if self.numbers is None else self.numbers[number],
                **flags,
            )
            results.append(result)
        return results


def table_of(
    tokens: Int[Tensor, "b k"],
    committed: Bool[Tensor, "b k"],
    remasked: Bool[Tensor, "b k"] | None,
    **flags: Bool[Tensor, " b"] | None,
) -> Int[Tensor, "b results"]:
    """The table of a decision; what is None is False in every row."""
    no = torch.zeros_like(committed[:, 0])
    told = [(no if flag is None else flag)[:, None] for flag in (flags[name] for name in FLAGS)]
    remasked = no[:, None].expand_as(committed) if remasked is None else remasked
    return torch.cat([tokens, torch.cat([committed, remasked, *told], dim=1)], dim=1)
