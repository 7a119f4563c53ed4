"""Servers in a thread of the test, on a free port, with the real HTTP stack; and a model that can be held."""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from openai import OpenAI

import unmask
from unmask import policies
from unmask.engine.generator import Generator
from unmask.serve.config import ServerConfig
from unmask.serve.run import Server, bind, url_of
from unmask.serve.served import Served

# As many passes as tokens: nothing ends the text before.
FOREVER = {"policy": "fixed", "early_stop": False, "logits_eos_inf": True}
LONG = {"prompt": "Hi", "max_tokens": 2000, "decoding": FOREVER}
SHORT = {"prompt": "Hi", "max_tokens": 6}


class Held:
    """A model whose every pass waits until the gate is open, takes its time, and fails when it is told to."""

    def __init__(self, model) -> None:
        self.model, self.spec, self.device, self.dtype = model, model.spec, model.device, model.dtype
        self.gate, self.pace_s, self.passes, self.failure = threading.Event(), 0.0, 0, None
        self.lost = False  # it fails from now on

    def predict(self, tokens, **options):
        self.passes += 1
        assert self.gate.wait(30)
        time.sleep(self.pace_s)
        if self.lost:
            raise RuntimeError("no device")
        if self.failure is not None:
            failure, self.failure = self.failure, None
            raise failure
        return self.model.predict(tokens, **options)


@dataclass
class Running:
    """A server that answers."""

    llm: Generator
    server: Server
    url: str
    said: list[str]
    thread: threading.Thread
    clients: list[OpenAI] = field(default_factory=list)

    @property
    def worker(self):
        return self.server.worker

    def client(self, **options: Any) -> OpenAI:
        given = {"api_key": "none", "max_retries": 0, "timeout": 60, **options}
        self.clients.append(OpenAI(base_url=f"{self.url}/v1", **given))
        return self.clients[-1]

    def send(self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None):
        """The status, the headers and the text of an answer, without any client between."""
        connection = http.client.HTTPConnection(self.url.removeprefix("http://"), timeout=60)
        raw = body if body is None or isinstance(body, bytes | Iterator) else json.dumps(body).encode()
        connection.request(method, path, raw, {"Content-Type": "application/json", **(headers or {})})
        answer = connection.getresponse()
        found = answer.status, answer.headers, answer.read().decode()
        connection.close()
        return found

    def post(self, body: Any, path: str = "/v1/completions", **headers: str) -> tuple[int, dict]:
        status, _, text = self.send("POST", path, body, headers)
        return status, json.loads(text)


@contextmanager
def running(
    llm: Generator, *, policy: str | policies.Policy = "mean_field", settings=None, **config: Any
) -> Iterator[Running]:
    ready, said = threading.Event(), []

    def say(line: str) -> None:
        said.append(line)
        if line.startswith("serving"):
            ready.set()

    chosen = ServerConfig(**{"port": 0, "grace_s": 0.2, **config})
    given = {"policy": policies.resolve(policy, "llada"), "settings": settings or unmask.Settings(early_stop=True)}
    server = Server(Served(llm, chosen, **given), say=say)
    with bind(chosen) as bound:
        url = url_of(bound)
        thread = threading.Thread(target=server.run, args=(bound,))
        thread.start()
        try:
            assert ready.wait(30)
            found = Running(llm=llm, server=server, url=url, said=said, thread=thread)
            yield found
            for client in found.clients:
                client.close()
        finally:
            server.stop()
            thread.join(30)
            assert not thread.is_alive()


def until(true: Callable[[], bool], timeout_s: float = 10.0) -> None:
    """Wait for what another thread will do."""
    end = time.monotonic() + timeout_s
    while not true():
        assert time.monotonic() < end
        time.sleep(0.005)


def connected(url: str, connection: socket.socket | None = None) -> socket.socket:
    """A connection on which nothing was sent."""
    connection = connection or socket.socket()
    connection.settimeout(30)
    host, port = url.removeprefix("http://").split(":")
    connection.connect((host, int(port)))
    return connection


def open_request(
    url: str, body: dict, *, sent: int | None = None, connection: socket.socket | None = None
) -> socket.socket:
    """A connection on which a request was sent, or so many bytes of its body, and nothing was read."""
    raw = json.dumps(body).encode()
    connection = connected(url, connection)
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(raw)}"
    connection.sendall(f"{head}\r\n\r\n".encode() + raw[:sent])
    return connection


def status_of(url: str, body: dict) -> int:
    with open_request(url, body) as connection:
        return int(connection.recv(12).split()[1])


def counted(found, status: int) -> float | None:
    return found.worker.metrics.registry.get_sample_value(
        "unmask_http_requests_total", {"route": "/v1/completions", "status": str(status)}
    )
