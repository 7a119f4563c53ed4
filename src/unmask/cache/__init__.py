"""What may be reused between forward passes: the kinds of cache, their refresh rules, and the memory behind them."""

from __future__ import annotations

from unmask.cache.approximate import Dual, Prefix
from unmask.cache.base import Cache
from unmask.cache.exact import Exact
from unmask.cache.none import NoCache
from unmask.cache.refresh import EveryBlocks, OnDrift
from unmask.settings import Settings


def cache_for(settings: Settings) -> Cache:
    """The cache that the settings ask for."""
    if settings.cache == "exact":
        return Exact()
    if settings.cache == "none":
        return NoCache()
    blocks, drift = settings.blocks_per_refresh, settings.tolerated_drift
    refresh = EveryBlocks(blocks) if drift is None else OnDrift(drift)  # ty: ignore[invalid-argument-type]
    kind = Prefix if settings.cache == "prefix" else Dual
    return kind(refresh=refresh, first_decided=settings.suppress_mask_token)
