"""The board of a server on a cluster, an actor that belongs to the command and ends with it. It knows no model.

Every replica reports to the board, and reads there what the command wants. So replicas learn of the end of a command
that was killed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

from prometheus_client import Metric

from unmask.errors import UnmaskError

STALE_S = 5.0  # without a report, a replica counts as lost


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
