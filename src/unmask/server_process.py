"""A server in a process of its own, for as long as a benchmark lasts.

It is the server of `unmask serve`; the model comes from a function, so that it may also be a shape with random weights.
"""

from __future__ import annotations

import logging
import multiprocessing
import socket
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
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
    with bind(config) as bound:
        url = url_of(bound)
        process = context.Process(target=_serve, args=(load, workload, parameters, config, bound), daemon=True)
        process.start()
    try:
        _await(url, process)
        assert process.pid is not None
        yield Place(url, process.pid)
    finally:
        process.terminate()
        process.join(END_S)
        process.kill()  # which does nothing to a process that has ended


def _await(url: str, process: multiprocessing.process.BaseProcess) -> None:
    """Return when the server accepts connections, which it does once its model is loaded and warmed up."""
    host, port = url.removeprefix("http://").rsplit(":", 1)
    while process.is_alive():
        try:
            socket.create_connection((host, int(port))).close()
            return
        except ConnectionRefusedError:
            time.sleep(0.05)
    raise WorkFailed(f"the server ended with status {process.exitcode} before it was ready")


def _serve(
    load: Callable[[], LoadedModel],
    workload: ServeWorkload,
    parameters: dict[str, Any],
    config: ServerConfig,
    bound: socket.socket,
) -> None:
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)  # some requests are no HTTP, on purpose
    try:
        llm = Llm(load())
        # Requests say all of this themselves; the server needs it for its warm-up.
        policy = policies.resolve(workload.policies[0], preset_name(llm.spec), parameters=parameters)
        served = Served(llm, config, policy=policy, settings=workload.settings())
        Server(served, say=lambda line: None).run(bound)
    except UnmaskError as error:
        sys.exit(f"unmask: {error}")
