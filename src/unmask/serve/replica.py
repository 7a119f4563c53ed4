"""A replica of a server on a cluster: the application on Ray Serve, with a model and a scheduler of its own."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Any

from prometheus_client import Metric
from ray import serve
from ray.exceptions import RayActorError

from unmask.remote.replicas import failure_of
from unmask.serve.app import App, create_app
from unmask.serve.board import Report
from unmask.serve.metrics import merged_page
from unmask.serve.served import Served

REPORT_S = 0.5


class Replica:
    """Loads the model, reports to the board, and does what the board says."""

    async def __init__(self, make: Callable[[], Served], board: Any) -> None:
        self.id = serve.get_replica_context().replica_id.unique_id
        self.board = board
        self.served: Served | None = None  # until the model is loaded
        self.reporting = asyncio.create_task(self._keep_reporting())
        try:
            # In a thread: reports go on meanwhile.
            self.served = await asyncio.to_thread(self._load, make)
        except Exception as error:
            self.reporting.cancel()
            await board.fail.remote(self.id, failure_of(error))
            raise

    @property
    def _loaded(self) -> Served:
        assert self.served is not None
        return self.served

    def _load(self, make: Callable[[], Served]) -> Served:
        served = make()
        served.metrics_of_all = self._metrics
        served.start()
        return served

    def __serve_build_asgi_app__(self) -> App:  # Serve calls it after the constructor
        return create_app(self._loaded)

    def check_health(self) -> None:
        """Raise if the model cannot be run any more, or the engine is stuck: Serve then replaces the replica."""
        self._loaded.check_alive(self._loaded.config.watchdog_s or math.inf)

    async def _metrics(self) -> bytes:
        others = await self.board.counters.remote()
        return merged_page({**others, self.id: self._loaded.worker.metrics.registry.collect()})

    async def _keep_reporting(self) -> None:
        while True:
            try:
                left_s = await self.board.report.remote(self.id, *self._report())
            except RayActorError:  # the command that the board belongs to was killed
                await serve.shutdown_async()
                return
            if left_s is not None and self.served is not None:
                self.served.refuse()
                if left_s == 0:
                    self.served.worker.drop_all()
            await asyncio.sleep(REPORT_S)

    def _report(self) -> tuple[Report, list[Metric]]:
        if self.served is None or self.served.worker.broken:
            return Report(), []
        worker = self.served.worker
        report = Report(self.served.name, not worker.accepting, worker.under_way())
        return report, list(worker.metrics.registry.collect())
