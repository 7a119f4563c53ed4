"""How a request finds a replica: the one with the fewest requests under way. Runs in the proxy of Ray Serve."""

from __future__ import annotations

import asyncio
import random
from typing import Any

from ray.serve.request_router import RequestRouter

ASK_S = 0.2  # for a replica to say how many requests it has


class LeastLoadRouter(RequestRouter):
    """Offers all replicas, of which Serve takes the least loaded; Serve's own router would offer two at random."""

    async def choose_replicas(self, candidate_replicas: list[Any], pending_request: Any = None) -> list[list[Any]]:
        # The proxy forgets the load of a replica that had no news for ten seconds, and would prefer the others.
        known = self.replica_queue_len_cache
        unknown = [replica for replica in candidate_replicas if known.get(replica.replica_id) is None]
        asked = (asyncio.wait_for(replica.get_queue_len(deadline_s=ASK_S), ASK_S) for replica in unknown)
        for replica, load in zip(unknown, await asyncio.gather(*asked, return_exceptions=True), strict=True):
            if isinstance(load, int):
                known.update(replica.replica_id, load)
        return [random.sample(candidate_replicas, len(candidate_replicas))]  # of equals, the first is taken
