"""Which positions a forward pass recomputes when keys and values are reused.

A refresh computes the whole canvas. Between refreshes, `prefix` recomputes everything from the block on and `dual`
the block alone; the rest of the canvas is seen as it was last computed.
"""

from __future__ import annotations

from unmask.engine.canvas import Canvas
from unmask.settings import Settings


def is_refresh(canvas: Canvas, settings: Settings) -> bool:
    """Whether this pass computes the whole canvas."""
    if settings.cache == "none":
        return True
    blocks = settings.blocks_per_refresh
    return canvas.stale if blocks is None else canvas.block_step == 0 and canvas.block_index % blocks == 0


def recomputed_span(canvas: Canvas, settings: Settings, *, shifted: bool, begins: bool) -> tuple[int, int]:
    """The positions to recompute in a pass that is not a refresh; `begins`: it is the block's first."""
    start, end = canvas.block
    if settings.cache == "prefix":
        end = len(canvas.tokens)
    # A shifted head predicts a block's first position from the one before it.
    if shifted and not _begins_alone(canvas, settings):
        start = max(start - 1, 0)
    # What the last pass of the block before committed is still a mask in the cache.
    if begins and canvas.block_index > 0:
        start = canvas.blocks[canvas.block_index - 1][0]
    return start, end


def commits_first_only(canvas: Canvas, settings: Settings, *, shifted: bool) -> bool:
    """Whether a refresh must commit the block's first position alone, since later passes could not predict it."""
    if not shifted or settings.cache == "none" or not is_refresh(canvas, settings):
        return False
    return _begins_alone(canvas, settings) and canvas.tokens[canvas.block[0]] == canvas.mask_id


def _begins_alone(canvas: Canvas, settings: Settings) -> bool:
    """Whether the block's first position, predicted by the one before it, is committed by a refresh of the block.

    Not where it may stay open after all, because the mask token is proposed for it.
    """
    blocks = settings.blocks_per_refresh
    return settings.suppress_mask_token and blocks is not None and canvas.block_index % blocks == 0
