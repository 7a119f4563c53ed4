"""One row of a generation on the host: its tokens, which of them are open, and the blocks in which they are filled.

A pass sees the open blocks of the row. There is one, unless blocks slide: then at least two are open, and the next one
opens when a stated share of the newest is committed.

Deals in token ids only; the batch keeps a copy of the tokens on the device.
"""

from __future__ import annotations

from bisect import bisect_left
from copy import copy
from dataclasses import dataclass, field

from unmask.cache.base import Span
from unmask.errors import UnmaskError


@dataclass(slots=True, kw_only=True)
class Canvas:
    """A sequence with masks in it, taken block by block from left to right."""

    tokens: list[int]
    mask_id: int
    block_size: int
    aligned: bool = False  # blocks are counted from position 0, not from the first mask
    sliding: float = 1.0  # share of the newest open block that is committed before the next one opens; 1: none slides
    holes: tuple[int, ...] = field(init=False)  # positions that were masks at the start
    blocks: list[Span] = field(init=False)  # only blocks with a hole
    step_map: dict[int, int] = field(init=False, default_factory=dict)  # position -> forward pass that committed it
    passes: int = field(init=False, default=0)
    block_index: int = field(init=False, default=0)  # of the first open block
    opened: int = field(init=False, default=0)  # blocks that are open, or were
    spans_before: int = field(init=False, default=0)  # how often the span of the open blocks has changed
    block_before: Span | None = field(init=False, default=None)  # what that span was before its last change
    block_step: int = field(init=False, default=0)  # decisions of the policy since its last change
    stale: bool = field(init=False, default=True)  # what the cache holds of the row is missing, or has drifted too far

    def __post_init__(self) -> None:
        self.holes = tuple(position for position, token in enumerate(self.tokens) if token == self.mask_id)
        if not self.holes:
            raise UnmaskError("there is nothing to fill: the sequence has no mask")
        first, end = self.holes[0], self.holes[-1] + 1
        first = first // self.block_size * self.block_size if self.aligned else first
        spans = ((start, min(start + self.block_size, end)) for start in range(first, end, self.block_size))
        self.blocks = [span for span in spans if self.is_open(span)]
        self._open_blocks()

    @property
    def length(self) -> int:
        return len(self.tokens)

    @property
    def block(self) -> Span:
        """The span of the open blocks."""
        return self.blocks[self.block_index][0], self.blocks[self.opened - 1][1]

    @property
    def begins_open(self) -> bool:
        """Whether the block's first position is still a mask."""
        return self.tokens[self.block[0]] == self.mask_id

    @property
    def finished(self) -> bool:
        return self.block_index == len(self.blocks)

    @property
    def continues(self) -> bool:
        """Whether everything to fill lies behind everything given."""
        return len(self.tokens) - self.holes[0] == len(self.holes)

    @property
    def filled(self) -> list[int]:
        """The tokens now standing in the holes, masks included."""
        return [self.tokens[position] for position in self.holes]

    def is_open(self, span: Span) -> bool:
        return self.mask_id in self.tokens[slice(*span)]

    def open_in_block(self) -> int:
        return self.tokens[slice(*self.block)].count(self.mask_id)

    def prefix(self, *, whole_blocks: bool, given: bool = False) -> list[int]:
        """The filled tokens up to the first mask, or those of finished blocks only; `given`: the others there too."""
        end = len(self.tokens) if self.finished else self.block[0]
        if not whole_blocks and not self.finished:
            end = self.tokens.index(self.mask_id)
        return self.tokens[:end] if given else [self.tokens[position] for position in self.holes if position < end]

    def copy(self) -> Canvas:
        """A canvas that can be written to for itself."""
        made = copy(self)
        made.tokens, made.step_map = self.tokens.copy(), self.step_map.copy()
        return made

    def write(self, committed: dict[int, int], remasked: tuple[int, ...] = (), *, same_pass: bool = False) -> bool:
        """Record a decision, of a new forward pass or of the same; true when it completed the first open block."""
        self.passes += not same_pass
        for position, token in committed.items():
            self.tokens[position] = token
            self.step_map[position] = self.passes - 1
        for position in remasked:
            self.tokens[position] = self.mask_id
            del self.step_map[position]
        self.block_step += 1
        # Leave the full blocks in front, and open the blocks that are due.
        before, first = self.block, self.block_index
        while self.block_index < self.opened and not self.is_open(self.blocks[self.block_index]):
            self.block_index += 1
        self._open_blocks()
        if self.finished or self.block != before:
            self.spans_before, self.block_before, self.block_step = self.spans_before + 1, before, 0
        return self.block_index > first

    def _open_blocks(self) -> None:
        least = 1 if self.sliding == 1.0 else 2
        while self.opened < len(self.blocks):
            if self.opened >= self.block_index + least:
                # The next block opens when the stated share of the newest is filled.
                start, end = self.blocks[self.opened - 1]
                holes = bisect_left(self.holes, end) - bisect_left(self.holes, start)
                filled = holes - self.tokens[start:end].count(self.mask_id)
                if filled < self.sliding * holes - 1e-9:  # a share such as 0.7 is no exact number
                    return
            self.opened += 1

    def end_here(self, fill: int) -> None:
        """Fill every open position with `fill` and stop; the step map gives these positions to the last pass."""
        for position in self.holes:
            if self.tokens[position] == self.mask_id:
                self.tokens[position] = fill
                self.step_map[position] = self.passes - 1
        self.block_index = len(self.blocks)
