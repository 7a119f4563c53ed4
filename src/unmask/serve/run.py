"""A server from its socket to its end: bind, warm up, serve, and stop when told to."""

from __future__ import annotations

import asyncio
import math
import signal
import socket
import threading
import time
from collections import abc
from collections.abc import Callable
from contextlib import contextmanager
from types import FrameType
from typing import Any

import uvicorn

from unmask.engine.generator import Generator
from unmask.engine.request import plan
from unmask.errors import UnmaskError
from unmask.policies import Policy
from unmask.serve.app import create_app
from unmask.serve.config import ServerConfig
from unmask.serve.worker import Worker
from unmask.settings import Settings

WARMUP_PROMPT_TOKENS = 512


def bind(config: ServerConfig) -> socket.socket:
    """A socket at the server's address; nobody can connect before the server listens."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(config.host, config.port, type=socket.SOCK_STREAM)[0]
        bound = socket.socket(family, kind)
        try:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind(address)
        except OSError:
            bound.close()
            raise
    except OSError as error:
        raise UnmaskError(f"cannot listen at {config.host}, port {config.port}: {error.strerror}") from error
    return bound


def url_of(bound: socket.socket) -> str:
    """How clients on this machine reach it."""
    host, port = bound.getsockname()[:2]
    return f"http://[{host}]:{port}" if bound.family == socket.AF_INET6 else f"http://{host}:{port}"


class Server:
    """An engine and the HTTP server before it; `say` hears what a person at the terminal wants to know."""

    def __init__(
        self,
        llm: Generator,
        config: ServerConfig,
        *,
        policy: Policy,
        settings: Settings,
        say: Callable[[str], None],
    ) -> None:
        self.llm, self.config, self.policy, self.settings, self.say = llm, config, policy, settings, say
        self.worker = Worker(llm, rows=config.max_batch_size, max_queue=config.max_queue)
        app = create_app(self.worker, config, policy=policy, settings=settings)
        self._http = _Http(app, self.worker, config.grace_s)

    def run(self, bound: socket.socket) -> None:
        """Serve at that socket until `stop`, SIGINT or SIGTERM."""
        name = self.config.served_model_name or self.llm.spec.name
        self._http.on_ready = lambda: self.say(f"serving {name} at {url_of(bound)}")
        try:
            self.worker.start(self._warm_up)
            self._http.run(sockets=[bound])
        finally:
            self.worker.stop()

    def stop(self) -> None:
        """Have `run` return, when the requests under way are answered or their time is up; from any thread."""
        self._http.should_exit = True

    def _warm_up(self) -> None:
        """Have everything compiled and captured before the first request, which would pay for it otherwise."""
        length = self.config.warmup_prompt_tokens
        if length is None:
            new = plan(self.llm.spec, self.policy, self.settings, {}).max_tokens
            length = min(WARMUP_PROMPT_TOKENS, self.llm.spec.max_length - new)
        if length < 1:
            return
        began = time.perf_counter()
        rows = self.config.max_batch_size
        self.llm.warmup(prompt_tokens=length, batch_size=rows, policy=self.policy, settings=self.settings)
        if self.llm.model.device.type == "cuda":
            self.say(f"warmed up in {time.perf_counter() - began:.1f} s")


class _Http(uvicorn.Server):
    """uvicorn, which gives requests their time when it is told to stop, and then ends with status 0."""

    def __init__(self, app: Any, worker: Worker, grace_s: float) -> None:
        # No log of its own: what goes wrong reaches stderr through Python's last resort, and nothing else does.
        options: dict[str, Any] = {"log_config": None, "access_log": False, "ws": "none", "lifespan": "off"}
        last = math.ceil(grace_s) + 5  # for clients that do not even read that they were dropped
        super().__init__(uvicorn.Config(app, timeout_graceful_shutdown=last, server_header=False, **options))
        self.worker, self.grace_s = worker, grace_s
        self.on_ready: Callable[[], None] = lambda: None
        self.loop: asyncio.AbstractEventLoop | None = None  # while it stops

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.on_ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self.worker.refuse()
        self.loop = asyncio.get_running_loop()
        timer = self.loop.call_later(self.grace_s, self.worker.drop_all)
        await super().shutdown(sockets)
        timer.cancel()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The first signal asks to stop, the next to stop at once."""
        self.should_exit = True
        if self.loop is not None:
            self.loop.call_soon_threadsafe(self.worker.drop_all)

    @contextmanager
    def capture_signals(self) -> abc.Generator[None]:
        # uvicorn's own raises the signal once more afterwards, and the process would end by it.
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
