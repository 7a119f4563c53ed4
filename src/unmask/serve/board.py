"""What a server on a cluster has beside its replicas: the board, and the router. Neither knows a model.

Every replica reports to the board, an actor that belongs to the command and ends with it, and reads there what the
command wants. So replicas learn of the end of a command that was killed. The router runs in the proxy of Ray Serve.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from prometheus_client import Metric
from ray.serve.request_router import RequestRouter

from unmask.errors import UnmaskError

STALE_S = 5.0  # without a report, a replica counts as lost
ASK_S = 0.2  # for a replica to say how many requests it has


class Report(NamedTuple):
    """What a replica says of itself; without a name, its model is not loaded yet."""

    name: str | None = None
    refusing: bool = False
    under_way: int = 0


class Board:
    """The latest report of every replica, and the time that requests have left.

    A plain object whose methods Ray calls from afar, one at a time.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._heard: dict[str, tuple[float, Report, list[Metric]]] = {}  # and when
        self._failures: list[UnmaskError] = []
        self._end: float | None = None

    def report(self, replica: str, report: Report, counters: list[Metric]) -> float | None:
        """Take a report; the answer is the seconds that requests have left, or None while the server goes on."""
        self._heard[replica] = self._clock(), report, counters
        return None if self._end is None else max(0.0, self._end - self._clock())

    def fail(self, replica: str, failure: UnmaskError) -> None:
        """Note that a replica could not load its model."""
        self._heard.pop(replica, None)
        self._failures.append(failure)

    def stop(self, grace_s: float) -> None:
        """Tell the replicas to take no new work, and to drop what is left after that time."""
        self._end = self._clock() + grace_s

    def counters(self) -> dict[str, list[Metric]]:
        """The counters of every replica that is there."""
        self._forget_lost()
        return {replica: counters for replica, (_, _, counters) in self._heard.items()}

    def overview(self) -> tuple[list[Report], list[UnmaskError]]:
        """What the replicas that are there say, and what others have failed with."""
        self._forget_lost()
        return [report for _, report, _ in self._heard.values()], self._failures

    def _forget_lost(self) -> None:
        oldest = self._clock() - STALE_S
        self._heard = {replica: heard for replica, heard in self._heard.items() if heard[0] >= oldest}


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
