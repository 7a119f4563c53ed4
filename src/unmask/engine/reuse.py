"""Which positions a forward pass recomputes when keys and values are reused.

A refresh computes the whole canvas. Between refreshes, `prefix` recomputes everything from the block on and `dual`
the block alone; the rest of the canvas is seen as it was last computed.
"""

from __future__ import annotations

from unmask.engine.canvas import Canvas
from unmask.settings import Settings


def is_refresh(canvas: Canvas, settings: Settings) -> bool:
    """Whether this pass computes the whole canvas."""
    at_start = canvas.block_step == 0 and canvas.block_index % settings.blocks_per_refresh == 0
    return settings.cache == "none" or at_start


def recomputed_span(canvas: Canvas, settings: Settings, *, shifted: bool) -> tuple[int, int]:
    """The positions to recompute in a pass that is not a refresh."""
    start, end = canvas.block
    if settings.cache == "prefix":
        end = len(canvas.tokens)
    # A shifted head predicts a block's first position from the one before it; after a refresh it is already committed.
    refreshed = canvas.block_index % settings.blocks_per_refresh == 0
    return (max(start - 1, 0) if shifted and not refreshed else start), end


def commits_first_only(canvas: Canvas, settings: Settings, *, shifted: bool) -> bool:
    """Whether a refresh must commit the block's first position alone, since later passes could not predict it."""
    if not shifted or settings.cache == "none" or not is_refresh(canvas, settings):
        return False
    return canvas.tokens[canvas.block[0]] == canvas.mask_id
