"""A worker and what the routes need of it, whatever runs the application: started, warmed up, refusing work."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from unmask.engine.generator import Generator
from unmask.engine.plan import plan
from unmask.engine.scheduler import Request
from unmask.policies import Policy
from unmask.serve.config import ServerConfig
from unmask.serve.errors import ApiError, closing
from unmask.serve.translate import check_defaults
from unmask.serve.worker import Worker
from unmask.settings import Settings

WARMUP_PROMPT_TOKENS = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """What the routes share; `policy` and `settings` are the defaults of requests."""

    worker: Worker
    config: ServerConfig
    policy: Policy
    settings: Settings
    started: int = field(default_factory=lambda: int(time.time()))  # seconds since 1970
    uploads: set[asyncio.Timeout] = field(default_factory=set)  # bodies that are being read
    metrics_of_all: Callable[[], Awaitable[bytes]] | None = None  # where other processes serve the model as well

    @classmethod
    def of(
        cls,
        llm: Generator,
        config: ServerConfig,
        *,
        policy: Policy,
        settings: Settings,
        on_broken: Callable[[], None] = lambda: None,
        **more: Any,
    ) -> Served:
        """A model with a worker that is yet to be started; raises if `settings` leave no room for a prompt.

        The seed of requests that give none is the config's.
        """
        settings = settings if config.seed is None else settings.with_(seed=config.seed)
        check_defaults(llm, policy, settings)
        worker = Worker(llm, rows=config.max_batch_size, max_queue=config.max_queue, on_broken=on_broken)
        return cls(worker=worker, config=config, policy=policy, settings=settings, **more)

    def start(self, say: Callable[[str], None]) -> None:
        """Start the worker, and return when everything is compiled and captured that the first request would wait for.

        `say` gets a line about it.
        """
        llm, length = self.worker.llm, self.config.warmup_prompt_tokens
        if length is None:
            room = llm.spec.max_length - plan(llm.model, self.policy, self.settings).max_tokens
            length = min(WARMUP_PROMPT_TOKENS, room)

        def warm_up() -> None:
            if length < 1:
                return
            began = time.perf_counter()
            rows = self.config.max_batch_size
            llm.warmup(prompt_tokens=length, batch_size=rows, policy=self.policy, settings=self.settings)
            if llm.model.device.type == "cuda":
                say(f"warmed up in {time.perf_counter() - began:.1f} s")

        self.worker.start(warm_up)

    def refuse(self) -> None:
        """Take no new work, and drop requests whose body is still on its way; in the thread of the event loop."""
        self.worker.refuse()
        for upload in self.uploads:
            upload.reschedule(0.0)

    def check_alive(self) -> None:
        """Raise if the engine is stuck or gone."""
        if not self.worker.alive:
            raise closing()
        if (stalled_s := self.worker.stalled_s()) > self.config.stall_s:
            raise ApiError(503, f"no pass was finished for {stalled_s:.0f} s, though there is work", code="stalled")

    def check_ready(self) -> None:
        """Raise if a request would not be taken now."""
        self.check_alive()
        if not self.worker.accepting:
            raise closing()
        if self.worker.full:
            raise ApiError(503, f"the queue of {self.config.max_queue} is full", code="queue_full")

    def check_size(self, requests: Sequence[Request]) -> None:
        """Raise if a request of these texts has more tokens than the server allows."""
        longest = max(request.canvas.length - len(request.canvas.holes) for request in requests)
        most = self.config.max_prompt_tokens
        if most is not None and longest > most:
            message = f"the prompt has {longest} tokens; this server takes at most {most}"
            raise ApiError(400, message, code="context_length_exceeded")
        total, most = sum(request.canvas.length for request in requests), self.config.max_total_tokens
        if most is not None and total > most:
            texts = f"{len(requests)} texts" if len(requests) > 1 else "1 text"
            message = f"{texts} of {total} tokens, prompts and max_tokens together; a request may have {most} here"
            raise ApiError(400, message, code="too_many_tokens")

    async def metrics_page(self) -> bytes:
        return self.worker.metrics.page() if self.metrics_of_all is None else await self.metrics_of_all()

    @property
    def name(self) -> str:
        """What clients call the model."""
        return self.config.served_model_name or self.worker.llm.spec.name

    def model(self) -> dict[str, Any]:
        return {"id": self.name, "object": "model", "created": self.started, "owned_by": "unmask"}
