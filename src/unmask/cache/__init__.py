"""What may be reused between forward passes: the kinds of cache, their refresh rules, and the memory behind them."""

from __future__ import annotations

from unmask.cache.approximate import Approximate
from unmask.cache.base import Cache
from unmask.cache.exact import Exact
from unmask.cache.none import NoCache
from unmask.cache.refresh import EveryBlocks, OnDrift
from unmask.settings import Settings


def cache_for(settings: Settings, *, shifted: bool) -> Cache:
    """The cache that the settings ask for; `shifted`: the head predicts a position from the one before it."""
    if settings.cache not in ("prefix", "dual"):
        return Exact() if settings.cache == "exact" else NoCache()
    blocks, drift = settings.blocks_per_refresh, settings.tolerated_drift
    refresh = EveryBlocks(blocks) if drift is None else OnDrift(drift)  # ty: ignore[invalid-argument-type]
    decided = settings.suppress_mask_token
    return Approximate(kind=settings.cache, refresh=refresh, shifted=shifted, first_decided=decided)
