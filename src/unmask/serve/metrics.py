"""What Prometheus reads at /metrics. Each app has a registry of its own, so that several may live in one process."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Metric, generate_latest

from unmask.types import StreamEvent

GONE = 499  # the status of a request whose client left before the end of the answer
SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)


class Metrics:
    """Counters of one server."""

    def __init__(self) -> None:
        own = self.registry = CollectorRegistry()
        count, gauge = partial(Counter, registry=own), partial(Gauge, registry=own)
        times = partial(Histogram, buckets=SECONDS, registry=own)
        self.requests = count("unmask_http_requests_total", "Requests answered.", ["route", "status"])
        self.in_flight = gauge("unmask_http_requests_in_flight", "Requests not answered yet.")
        self.duration = times("unmask_http_request_duration_seconds", "To the end of the answer.", ["route"])
        self.waiting = gauge("unmask_queue_texts", "Texts that wait to be decoded.")
        self.passes = count("unmask_forward_passes_total", "Forward passes, counted for each text in the batch.")
        self.batch_passes = count("unmask_batch_passes_total", "Forward passes of the batch, whatever its texts.")
        self._batch_passes = 0
        self.committed = count("unmask_committed_tokens_total", "Tokens committed; one that was reopened counts again.")
        self.kept = count("unmask_kept_tokens_total", "Tokens of the texts that were finished.")
        self.prompt = count("unmask_prompt_tokens_total", "Tokens of the prompts that were finished.")
        self.stalled = gauge("unmask_engine_stalled_seconds", "Since the last pass or the begin of work; 0: no work.")
        self.connections = gauge("unmask_connections", "Open connections.")
        self.dropped = count("unmask_connections_dropped_total", "Connections closed by the server.", ["reason"])
        self.accept_errors = count("unmask_accept_errors_total", "Connections that could not be accepted.")
        self.first_text = times("unmask_time_to_first_text_seconds", "From the queue to the first certain letter.")

    def heard(self, event: StreamEvent, *, passes: int, wanted: bool = True) -> None:
        """Count what one pass did to one text, `passes` being those of the batch so far.

        A text whose client left may end, but does not count as finished.
        """
        self.batch_passes.inc(passes - self._batch_passes)
        self._batch_passes = passes
        if event.step is not None:
            self.passes.inc()
            self.committed.inc(len(event.step.committed))
        if event.output is not None and wanted:
            self.kept.inc(event.output.usage.completion_tokens)
            self.prompt.inc(event.output.usage.prompt_tokens)


def merged_page(replicas: Mapping[str, Iterable[Metric]]) -> bytes:
    """The counters of several replicas as one page, with a label that names the replica."""
    found: dict[str, Metric] = {}
    for replica, families in replicas.items():
        for own in families:
            family = found.setdefault(own.name, Metric(own.name, own.documentation, own.type))
            family.samples += [sample._replace(labels=sample.labels | {"replica": replica}) for sample in own.samples]
    registry: Any = SimpleNamespace(collect=found.values)
    return generate_latest(registry)


class Counting:
    """Counts and times every request; a plain ASGI layer, so that streams and disconnections pass through it."""

    def __init__(self, app: Callable[..., Any], metrics: Metrics) -> None:
        self.app, self.metrics = app, metrics

    async def __call__(self, scope: dict[str, Any], receive: Callable[..., Any], send: Callable[..., Any]) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began, status, ended = time.perf_counter(), 500, False

        async def sending(message: dict[str, Any]) -> None:
            nonlocal status, ended
            await send(message)
            status = message.get("status", status)
            ended = message["type"] == "http.response.body" and not message.get("more_body", False)

        with self.metrics.in_flight.track_inprogress():
            try:
                await self.app(scope, receive, sending)
            except Exception:  # which is answered further out
                status, ended = 500, True
                raise
            finally:
                # The route's pattern, not the path: clients can make up paths, and each would stay a label for ever.
                route = getattr(scope.get("route"), "path", "other")
                self.metrics.requests.labels(route, status if ended else GONE).inc()
                self.metrics.duration.labels(route).observe(time.perf_counter() - began)
