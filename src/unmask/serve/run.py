"""A server from its socket to its end: bind, warm up, serve, and stop when told to."""

from __future__ import annotations

import asyncio
import errno
import logging
import math
import socket
import time
from collections.abc import Callable
from contextlib import ExitStack
from types import FrameType
from typing import Any

import uvicorn

from unmask.errors import UnmaskError, WorkFailed, counted
from unmask.serve import connections
from unmask.serve.app import create_app
from unmask.serve.config import ServerConfig
from unmask.serve.ending import REST_S, ended_by_force, handling_signals
from unmask.serve.served import Served

log = logging.getLogger(__name__)

FAREWELL_S = 0.5  # for clients to read that they were dropped
FULL = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)  # why a connection may not be accepted
ACCESS_LOG = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"line": {"format": "%(asctime)s %(message)s"}},
    "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "line"}},
    "loggers": {"uvicorn.access": {"handlers": ["stderr"], "level": "INFO", "propagate": False}},
}


def bind(config: ServerConfig) -> socket.socket:
    """A socket at the server's address; clients cannot connect before the server listens."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(config.host, config.port, type=socket.SOCK_STREAM)[0]
        with ExitStack() as failed:
            bound = failed.enter_context(socket.socket(family, kind))
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind(address)
            failed.pop_all()
            return bound
    except (OSError, UnicodeError) as error:
        raise _cannot_listen(config, error) from error


def _cannot_listen(config: ServerConfig, error: OSError | UnicodeError) -> UnmaskError:
    reason = error.strerror if isinstance(error, OSError) else "that is no name of a host"
    return UnmaskError(f"cannot listen at {config.host}, port {config.port}: {reason}")


def url_of(bound: socket.socket) -> str:
    """The URL at which clients on this machine reach the server."""
    host, port = bound.getsockname()[:2]
    return f"http://[{host}]:{port}" if bound.family == socket.AF_INET6 else f"http://{host}:{port}"


def farewell(left: int, grace_s: float) -> str:
    """The line that says how many requests are under way when a server is told to stop."""
    whose = f"{counted(left, 'request')} {'has' if left == 1 else 'have'}"
    return f"{whose} {grace_s:g} s to be finished; a second signal drops what is left"


class Server(uvicorn.Server):
    """An engine behind uvicorn; `say` gets the lines for the terminal, `on_ready` the URL.

    When the server is told to stop, requests under way have `grace_s` seconds left. Then it ends with status 0. In the
    main thread it also ends the process, with status 1, if a thread hangs: the engine for `watchdog_s` seconds, or any
    for `REST_S` seconds after the end.
    """

    def __init__(
        self, served: Served, *, say: Callable[[str], None], on_ready: Callable[[str], None] = lambda url: None
    ) -> None:
        self.served, self.worker, self.say, self.on_ready = served, served.worker, say, on_ready
        self.worker.on_broken = self.stop
        self.stopping: asyncio.AbstractEventLoop | None = None  # the event loop, while the server stops
        self.hurried = False
        self.last: float | None = None  # when the process must have ended
        config = served.config
        # No other log: warnings and errors reach stderr through Python's handler of last resort, and nothing else does.
        options: dict[str, Any] = {"log_config": ACCESS_LOG if config.access_log else None, "ws": "none"}
        options |= {"access_log": config.access_log, "lifespan": "off", "server_header": False}
        options |= {"http": connections.Limited, "backlog": connections.ACCEPTED_AT_ONCE}
        options["timeout_keep_alive"] = math.ceil(config.client_timeout_s)
        options["timeout_graceful_shutdown"] = math.ceil(config.grace_s) + 2  # for a task whose client is gone
        super().__init__(uvicorn.Config(create_app(served), **options))
        for logger in (log, logging.getLogger("uvicorn.error")):
            logger.addFilter(connections.once_per_second)

    def run(self, bound: socket.socket) -> None:  # ty: ignore[incompatible-method-override]
        """Serve at that socket until `stop`, SIGINT or SIGTERM; raises WorkFailed if the engine broke."""
        with ended_by_force(self._stuck, self.say):
            try:
                self.served.start()
                super().run(sockets=[bound])
            finally:
                self.worker.stop()
        if self.worker.broken:
            raise WorkFailed("the model can no longer be run: its device may be lost")

    def stop(self) -> None:
        """Have `run` return, when the requests under way are answered or their time is up; from any thread."""
        if not self.should_exit:
            self.handle_exit(0, None)

    def _stuck(self) -> str | None:
        """Why the process must end now, if it must."""
        if self.last is not None and time.monotonic() > self.last:
            return f"a thread is still at work {REST_S:g} s after the time for requests; the process ends without it"
        stuck = self.worker.stuck(self.served.config.watchdog_s or math.inf)
        return None if stuck is None else f"{stuck}; the process ends"

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        assert sockets is not None
        [bound] = sockets
        try:
            bound.listen()  # here, because uvloop hides the error
        except OSError as error:  # another process had bound the port as well, and was the first to listen
            raise _cannot_listen(self.served.config, error) from error
        asyncio.get_running_loop().set_exception_handler(self._heed)
        wanted = self.served.config.max_connections
        most = connections.most_connections(wanted)
        if wanted is not None and most < wanted:
            self.say(f"max_connections is {most}, not {wanted}: raise the limit on open files with ulimit -n")
        self.connections = connections.Connections(most, self.served.config.client_timeout_s, self.worker.metrics)
        self.server_state = self.connections
        await super().startup(sockets)
        bound.listen(connections.BACKLOG)  # uvicorn's own number also says how many are accepted at once
        self.say(f"serving {self.served.name} at {url_of(bound)}")
        self.on_ready(url_of(bound))

    def _heed(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Count connections that could not be accepted; the event loop's own handler gets everything else."""
        error = context.get("exception")
        if isinstance(error, OSError) and error.errno in FULL:
            self.worker.metrics.accept_errors.inc()
            log.warning("a connection could not be accepted: %s", error.strerror)
        else:
            loop.default_exception_handler(context)

    async def on_tick(self, counter: int) -> bool:
        self.connections.drop_slow()
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self.served.refuse()
        self.stopping, grace_s = asyncio.get_running_loop(), self.served.config.grace_s
        if (left := self.worker.under_way()) and not self.hurried:
            self.say(farewell(left, grace_s))
        timer = self.stopping.call_later(0.0 if self.hurried else grace_s, self._drop)
        await super().shutdown(sockets)
        timer.cancel()

    def _drop(self) -> None:
        self.worker.drop_all()
        assert self.stopping is not None
        self.stopping.call_later(FAREWELL_S, self._hang_up)

    def _hang_up(self) -> None:
        for connection in list(self.server_state.connections):
            connection.transport.abort()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The first signal asks to stop, the next to stop at once."""
        self.hurried, self.should_exit = self.should_exit, True
        self.last = time.monotonic() + (0.0 if self.hurried else self.served.config.grace_s) + REST_S
        if self.stopping is not None:
            self.stopping.call_soon_threadsafe(self._drop)

    def capture_signals(self) -> Any:
        # uvicorn's own method raises the signal once more afterwards, which would end the process.
        return handling_signals(self.handle_exit)
