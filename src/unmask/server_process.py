"""A server in a process of its own, for as long as a benchmark lasts.

It is the server of `unmask serve`; the model comes from a function, so that it may also be a shape with random weights.
"""

from __future__ import annotations

import logging
import multiprocessing
import socket
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from multiprocessing.synchronize import Event
from typing import Any, NamedTuple

from unmask import policies
from unmask.bench.workload import ServeWorkload
from unmask.engine.generator import Generator as Llm
from unmask.engine.plan import preset_name
from unmask.errors import UnmaskError, WorkFailed
from unmask.models.base import LoadedModel
from unmask.serve.config import ServerConfig
from unmask.serve.run import Server, bind, url_of
from unmask.serve.served import Served

GRACE_S = 2.0  # for requests under way when the benchmark is over
END_S = 30.0  # for the process to end by itself


class Place(NamedTuple):
    """Where a server listens, and its process."""

    url: str
    pid: int


@contextmanager
def started(load: Callable[[], LoadedModel], workload: ServeWorkload, parameters: dict[str, Any]) -> Generator[Place]:
    """A server for that workload, ended with the block; `load` is called in its process, to which it is pickled."""
    limits: dict[str, Any] = workload.limits() | {"warmup_prompt_tokens": workload.prompt_tokens}
    config = ServerConfig(port=0, grace_s=GRACE_S, **limits)
    context = multiprocessing.get_context("spawn")  # a fork would copy a device that is in use
    ready = context.Event()
    with bind(config) as bound:
        url, given = url_of(bound), (load, workload, parameters, config, bound, ready)
        process = context.Process(target=_serve, args=given, daemon=True)
        process.start()
    try:
        while not ready.wait(0.05):
            if not process.is_alive():
                raise WorkFailed(f"the server ended with status {process.exitcode} before it was ready")
        assert process.pid is not None
        yield Place(url, process.pid)
    finally:
        process.terminate()
        process.join(END_S)
        process.kill()  # which does nothing to a process that has ended


def _serve(
    load: Callable[[], LoadedModel],
    workload: ServeWorkload,
    parameters: dict[str, Any],
    config: ServerConfig,
    bound: socket.socket,
    ready: Event,
) -> None:
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)  # some requests are no HTTP, on purpose
    try:
        llm = Llm(load())
        # Requests say all of this themselves; the server needs it for its warm-up.
        policy = policies.resolve(workload.policies[0], preset_name(llm.spec), parameters=parameters)
        served = Served(llm, config, policy=policy, settings=workload.settings())
        Server(served, say=lambda line: None, on_ready=lambda url: ready.set()).run(bound)
    except UnmaskError as error:
        sys.exit(f"unmask: {error}")
