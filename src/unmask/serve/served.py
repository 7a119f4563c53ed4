"""A model at work and the defaults of its requests: what the routes share, whatever runs the application."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from prometheus_client import generate_latest

from unmask.engine.generator import Generator
from unmask.errors import counted
from unmask.policies import Policy
from unmask.serve.answers import Answer
from unmask.serve.config import ServerConfig
from unmask.serve.errors import ApiError, closing
from unmask.serve.schema import Body
from unmask.serve.translate import check_defaults, translate
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
        self.room = llm.spec.max_length - check_defaults(llm, policy, self.settings).max_tokens  # for a prompt
        self.worker = Worker(llm, rows=config.max_batch_size, max_queue=config.max_queue)
        self.name = config.served_model_name or llm.spec.name  # as clients call the model
        self.model = {"id": self.name, "object": "model", "created": int(time.time()), "owned_by": "unmask"}
        self.uploads: set[asyncio.Timeout] = set()  # bodies that are being read

    @classmethod
    def load(cls, opening: Callable[[], tuple[Generator, Policy]], config: ServerConfig, settings: Settings) -> Served:
        """The model and the policy that are opened here, at work."""
        llm, policy = opening()
        return cls(llm, config, policy=policy, settings=settings)

    def start(self) -> None:
        """Start the worker, and return when it has compiled and captured all that the first request would wait for."""
        length = self.config.warmup_prompt_tokens
        length = min(WARMUP_PROMPT_TOKENS, self.room) if length is None else length
        shape = {"prompt_tokens": length, "batch_size": self.config.max_batch_size}
        warm_up = partial(self.llm.warmup, **shape, policy=self.policy, settings=self.settings)
        self.worker.start(warm_up if length else lambda: None)

    def translate(self, body: Body) -> Answer:
        """What a request asks for; raises if it is wrong, or more than the server allows."""
        config = self.config
        defaults: dict[str, Any] = {"policy": self.policy, "settings": self.settings, "most": config.max_queue}
        answer = translate(body, self.llm, name=self.name, draw_seed=config.seed is None, **defaults)
        canvases = [request.canvas for request in answer.requests]
        longest = max(canvas.length - len(canvas.holes) for canvas in canvases)
        if longest > (config.max_prompt_tokens or longest):
            message = f"the prompt has {longest} tokens; this server takes at most {config.max_prompt_tokens}"
            raise ApiError(400, message, code="context_length_exceeded")
        total = sum(canvas.length for canvas in canvases)
        if total > (config.max_total_tokens or total):
            asked = f"{counted(len(canvases), 'text')} of {total} tokens, prompts and max_tokens together"
            raise ApiError(400, f"{asked}; a request may have {config.max_total_tokens} here", code="too_many_tokens")
        return answer

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
