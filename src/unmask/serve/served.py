"""A model at work and the defaults of its requests: what routes, or the lines of a batch, share."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import partial

from prometheus_client import generate_latest

from unmask.engine.generator import Generator
from unmask.engine.plan import plan
from unmask.errors import UnmaskError
from unmask.policies import Policy
from unmask.serve.config import ServerConfig
from unmask.serve.errors import ApiError, closing
from unmask.serve.worker import Worker
from unmask.settings import Settings

WARMUP_PROMPT_TOKENS = 512


class Served:
    """A model with a worker that is yet to be started; raises if `settings` leave no room for a prompt.

    `policy` and `settings` are the defaults of requests; the config may have another seed.
    """

    metrics_of_all: Callable[[], Awaitable[bytes]] | None = None  # where other processes serve the model as well

    def __init__(self, llm: Generator, config: ServerConfig, *, policy: Policy, settings: Settings) -> None:
        self.llm, self.config, self.policy = llm, config, policy
        self.settings = settings if config.seed is None else settings.with_(seed=config.seed)
        tokens, positions = plan(llm.model, policy, self.settings).max_tokens, llm.spec.max_length
        if tokens >= positions:
            room = f"leaves no room for a prompt in the {positions} positions of {llm.spec.name}"
            raise UnmaskError(f"max_tokens={tokens} {room}; give a smaller number")
        self.room = positions - tokens  # for a prompt
        self.worker = Worker(llm, rows=config.max_batch_size, max_queue=config.max_queue)
        self.name = config.served_model_name or llm.spec.name  # as clients call the model
        self.model = {"id": self.name, "object": "model", "created": int(time.time()), "owned_by": "unmask"}
        self.uploads: set[asyncio.Timeout] = set()  # bodies that are being read

    @classmethod
    def load(cls, opening: Callable[[], tuple[Generator, Policy]], config: ServerConfig, settings: Settings) -> Served:
        """The same, with a model and a policy that are opened here."""
        llm, policy = opening()
        return cls(llm, config, policy=policy, settings=settings)

    def start(self) -> None:
        """Start the worker, and return when it has compiled and captured all that the first request would wait for."""
        length = self.config.warmup_prompt_tokens
        length = min(WARMUP_PROMPT_TOKENS, self.room) if length is None else length
        shape = {"prompt_tokens": length, "batch_size": self.config.max_batch_size}
        warm_up = partial(self.llm.warmup, **shape, policy=self.policy, settings=self.settings)
        self.worker.start(warm_up if length else lambda: None)

    def refuse(self) -> None:
        """Take no new work, and drop requests whose body is still on its way; in the thread of the event loop."""
        self.worker.refuse()
        for upload in self.uploads:
            upload.reschedule(0.0)

    def check_alive(self, limit_s: float | None = None) -> None:
        """Raise if the engine is gone, or stuck for longer than the limit, which is the one of /health unless given."""
        if not self.worker.alive:
            raise closing()
        if (stuck := self.worker.stuck(limit_s or self.config.stall_s)) is not None:
            raise ApiError(503, stuck, code="stalled")

    def check_health(self) -> None:
        """Raise if the engine is stuck or gone, or no work is taken."""
        self.check_alive()
        if not self.worker.accepting:
            raise closing()

    def check_ready(self) -> None:
        """Raise if a request would not be taken now."""
        self.check_alive()
        self.worker.check_room(503)

    async def metrics_page(self) -> bytes:
        if self.metrics_of_all is not None:
            return await self.metrics_of_all()
        return generate_latest(self.worker.metrics.registry)
