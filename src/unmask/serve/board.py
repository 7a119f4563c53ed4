"""An actor of a server on a cluster: every replica reports to it, and reads there what the command wants.

It belongs to the command and ends with it, so replicas learn of the end of a command that was killed. Knows nothing of
Ray: it is a plain object whose methods Ray calls from afar, one at a time.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from prometheus_client import Metric

from unmask.errors import UnmaskError

STALE_S = 5.0  # without a report, a replica counts as lost


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a replica says of itself; without a name, its model is not loaded yet."""

    name: str | None = None
    refusing: bool = False
    under_way: int = 0
    families: tuple[Metric, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """What the command reads."""

    name: str | None  # of the served model
    ready: int
    placed: int
    under_way: int
    refusing: bool  # all of them
    failures: tuple[UnmaskError, ...]


class Board:
    """The latest report of every replica, and the time that requests have left."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._reports: dict[str, tuple[float, Report]] = {}
        self._failures: list[UnmaskError] = []
        self._end: float | None = None

    def report(self, replica: str, report: Report) -> float | None:
        """Take a report; the answer is the seconds that requests have left, or None while the server goes on."""
        self._reports[replica] = self._clock(), report
        return None if self._end is None else max(0.0, self._end - self._clock())

    def fail(self, replica: str, failure: UnmaskError) -> None:
        """Note that a replica could not load its model."""
        self._reports.pop(replica, None)
        self._failures.append(failure)

    def stop(self, grace_s: float) -> None:
        """Tell the replicas to take no new work, and to drop what is left after that time."""
        self._end = self._clock() + grace_s

    def families(self) -> dict[str, tuple[Metric, ...]]:
        """The counters of every replica that is there."""
        return {replica: report.families for replica, report in self._fresh().items() if report.families}

    def overview(self) -> Overview:
        reports = self._fresh().values()
        ready = [report for report in reports if report.name is not None]
        return Overview(
            name=ready[0].name if ready else None,
            ready=len(ready),
            placed=len(reports),
            under_way=sum(report.under_way for report in ready),
            refusing=all(report.refusing for report in ready),
            failures=tuple(self._failures),
        )

    def _fresh(self) -> dict[str, Report]:
        oldest = self._clock() - STALE_S
        self._reports = {replica: found for replica, found in self._reports.items() if found[0] >= oldest}
        return {replica: report for replica, (_, report) in self._reports.items()}
