"""The open connections of a server: how many there may be, and how long a client may keep each waiting.

A connection waits for its client until the head of a request is there, and while an answer is not read. uvicorn parses
and answers; it has no limits of this kind. The time of a body is limited where it is read (guard.py).
"""

from __future__ import annotations

import logging
import os
import time
from http import HTTPStatus
from typing import Any

from uvicorn.protocols.http.auto import AutoHTTPProtocol
from uvicorn.server import ServerState

from unmask.serve.errors import ApiError, dawdling
from unmask.serve.metrics import Metrics
from unmask.serve.strict_json import dumps

_Protocol: Any = AutoHTTPProtocol  # of whichever parser is installed

MOST = 1000  # connections, unless told otherwise
RESERVED = 64  # files that are opened beside connections, and connections that are accepted but not counted yet
ACCEPTED_AT_ONCE = 16
BACKLOG = 2048  # connections that the system holds until they are accepted
_logged: dict[object, float] = {}  # when a warning was let through, by its text


def once_per_second(record: logging.LogRecord) -> bool:
    """Let a warning through once a second: clients can cause as many as they like. Errors pass."""
    now = time.monotonic()
    if record.levelno < logging.ERROR and now - _logged.get(record.msg, now - 1.0) < 1.0:
        return False
    _logged[record.msg] = now
    return True


def most_connections(wanted: int | None) -> int:
    """The wanted number, or what the limit on open files leaves if that is less."""
    most = wanted or MOST
    try:
        import resource
    except ImportError:  # a system without such a limit
        return most
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    left = limit - len(os.listdir("/dev/fd")) - RESERVED
    return most if limit == resource.RLIM_INFINITY else max(1, min(most, left))


class Connections(ServerState):
    """All open connections; uvicorn adds and removes them."""

    connections: set[Any]  # of `Limited`

    def __init__(self, most: int, patience_s: float, metrics: Metrics) -> None:
        super().__init__()
        self.most, self.patience_s, self.metrics = most, patience_s, metrics
        metrics.connections.set_function(lambda: len(self.connections))

    def make_room(self, new: Limited) -> None:
        """Close the connection that has been idle longest, if there are too many; the new one if none is idle."""
        if len(self.connections) <= self.most:
            return
        others = [other for other in self.connections if other is not new and not other.transport.is_closing()]
        if idle := [other for other in others if other.idle]:
            self.metrics.dropped.labels("idle").inc()
            min(idle, key=lambda other: other.waits_since).transport.abort()
        else:
            self.metrics.dropped.labels("full").inc()
            new.refuse(ApiError(503, f"{self.most} connections are open; come again in a moment", code="too_busy"))

    def drop_slow(self) -> None:
        """Close connections that have waited too long for their clients; called ten times a second."""
        for connection in list(self.connections):
            connection.look()
            if time.monotonic() - connection.waits_since > self.patience_s:
                self.metrics.dropped.labels("slow").inc()
                connection.give_up(self.patience_s)


class Limited(_Protocol):
    """uvicorn's protocol, that keeps in mind since when it waits for its client."""

    server_state: Connections
    waits_since: float  # now, while it does not wait
    seen: Any = None  # the latest request of the last look
    begun: bool = False  # a part of a head is there

    @property
    def idle(self) -> bool:
        """Whether no request is under way."""
        return self.cycle is None or self.cycle.response_complete

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.waits_since = time.monotonic()
        self.server_state.make_room(self)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        # What follows an early answer may be the rest of a body.
        self.begun = self.idle and not (self.cycle is not None and self.cycle.more_body)

    def resume_writing(self) -> None:
        super().resume_writing()
        self.waits_since = time.monotonic()

    def look(self) -> None:
        """Note the time, unless it waits for the same as before: the next request, or that its answer is read."""
        if self.cycle is not self.seen or not (self.idle or self.flow.write_paused):
            self.seen, self.waits_since = self.cycle, time.monotonic()

    def refuse(self, error: ApiError) -> None:
        """Answer before there is a request, and close."""
        body = dumps(error.body)
        head = f"HTTP/1.1 {error.status_code} {HTTPStatus(error.status_code).phrase}\r\nContent-Type: application/json"
        self.transport.write(f"{head}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body)
        self.transport.close()

    def give_up(self, patience_s: float) -> None:
        """Close, with an answer if a head is on its way; if something is still to be read by the client, cut."""
        if self.transport.is_closing() or self.flow.write_paused:
            self.transport.abort()
        elif self.begun:
            self.refuse(dawdling("head", patience_s))
        else:
            self.transport.close()
