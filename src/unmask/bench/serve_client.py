"""One client of a server under test: it sends a request and says what became of it.

Only the standard library is used, so that nothing between the client and the server mends or retries anything.
"""

from __future__ import annotations

import http.client
import json
import socket
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from unmask.bench.serve_requests import Ask
from unmask.errors import WorkFailed

PATIENCE_S = 300.0  # without a byte from the server: the answer is lost
FULL = 429


class Answer(NamedTuple):
    """What a request came to; two answers to one request are equal in all of this."""

    texts: tuple[str, ...]  # of each choice
    reasons: tuple[str, ...]
    tokens: int
    passes: int


@dataclass(slots=True, kw_only=True)
class Heard:
    """What a client heard of a request."""

    ask: Ask
    end: str = "lost"  # answered, refused, cancelled, bad, wrong, lost or doubled
    why: str = ""  # of an end that is the server's fault
    answer: Answer | None = None
    id: str = ""
    began: float = field(default_factory=time.perf_counter)
    first_s: float | None = None  # until the first text of a stream
    seconds: float = 0.0


class Broken(Exception):
    """An answer that is not what the protocol says; `end` is what it counts as."""

    def __init__(self, end: str, why: str) -> None:
        super().__init__(why)
        self.end = end


class Client:
    """Sends requests over one connection, which is opened again after an end that leaves it unusable."""

    def __init__(self, url: str, key: str | None = None) -> None:
        place = urlsplit(url)
        self.place = (place.hostname or "", place.port or 80)
        self.key = {} if key is None else {"Authorization": f"Bearer {key}"}
        self.connection = http.client.HTTPConnection(*self.place, timeout=PATIENCE_S)

    def send(self, ask: Ask) -> Heard:
        """Send a request, and wait for its answer unless the client leaves."""
        heard = Heard(ask=ask)
        try:
            heard.end = self._throw(ask.raw) if ask.fault and ask.expects is None else self._exchange(heard)
        except Broken as error:
            heard.end, heard.why = error.end, str(error)
        except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError) as error:
            heard.why = f"{type(error).__name__}: {error}"
        heard.seconds = time.perf_counter() - heard.began
        if heard.end not in ("answered", "refused", "bad"):
            self.close()
        return heard

    def get(self, path: str) -> str:
        """The text at a path."""
        try:
            self.connection.request("GET", path, headers=self.key)
            answer = self.connection.getresponse()
            text = answer.read().decode()
        except (OSError, http.client.HTTPException) as error:
            raise WorkFailed(f"the server's {path} cannot be read: {error}") from error
        finally:
            self.close()
        if answer.status != 200:
            raise WorkFailed(f"the server's {path} cannot be read: it got {answer.status}: {text:.200}")
        return text

    def close(self) -> None:
        self.connection.close()  # the next request opens it again

    def _throw(self, raw: bytes) -> str:
        """Send bytes over a connection of their own, and leave."""
        with suppress(OSError), socket.create_connection(self.place, timeout=PATIENCE_S) as connection:
            connection.sendall(raw)
        return "bad"

    def _exchange(self, heard: Heard) -> str:
        ask = heard.ask
        self.connection.request(ask.method, ask.path, ask.raw, {**ask.headers, **self.key})
        if ask.leaves and not ask.streams:
            return "cancelled"
        response = self.connection.getresponse()
        if response.status != 200:
            return _refused(ask, response.status, json.loads(response.read())["error"]["message"])
        if ask.fault:
            raise Broken("wrong", f"{ask.fault} got 200 instead of {ask.expects}")
        return _read(heard, _events(response) if ask.streams else [json.loads(response.read())])


def _refused(ask: Ask, status: int, message: str) -> str:
    """What an answer that is an error counts as: expected, for want of room, or a fault."""
    if status == FULL:
        return "refused"
    if status == ask.expects:
        return "bad"
    if ask.fault:
        raise Broken("wrong", f"{ask.fault} got {status} instead of {ask.expects}: {message}")
    raise Broken("lost" if status >= 500 else "wrong", f"got {status}: {message}")


def _read(heard: Heard, chunks: Iterable[dict[str, Any]]) -> str:
    """Put an answer together from the chunks of a stream, or from the one object that it is."""
    ask, identity, costs = heard.ask, "", {}
    texts: dict[int, str] = {}
    reasons: dict[int, str] = {}
    for chunk in chunks:
        if "error" in chunk:
            raise Broken("lost", f"the stream ended with an error: {chunk['error']['message']}")
        identity, costs = chunk["id"], chunk if "decoding" in chunk else costs
        for choice in chunk["choices"]:
            index, said = choice["index"], choice.get("delta", choice.get("message"))
            text = choice["text"] if said is None else said.get("content", "")
            if index in reasons:
                raise Broken("doubled", "a choice went on after its end")
            texts[index] = texts.get(index, "") + text
            if choice["finish_reason"] is not None:
                reasons[index] = choice["finish_reason"]
            if text and ask.streams and heard.first_s is None:
                heard.first_s = time.perf_counter() - heard.began
            if text and ask.leaves:
                return "cancelled"
    choices = range(ask.body.get("n", 1))
    if sorted(texts) != [*choices] or sorted(reasons) != [*choices]:
        raise Broken("lost", f"of {len(choices)} choices, {len(texts)} came and {len(reasons)} ended")
    tokens, passes = costs["usage"]["completion_tokens"], costs["decoding"]["forward_passes"]
    heard.answer = Answer(tuple(texts[i] for i in choices), tuple(reasons[i] for i in choices), tokens, passes)
    heard.id = identity
    return "answered"


def _events(response: http.client.HTTPResponse) -> Iterator[dict[str, Any]]:
    """The data of server-sent events up to the last, which must be followed by nothing."""
    ended = False
    for line in response:
        if ended and line.strip():
            raise Broken("doubled", "the stream went on after its end")
        if line.strip() == b"data: [DONE]":
            ended = True
        elif line.startswith(b"data: "):
            yield json.loads(line[6:])
    if not ended:
        raise Broken("lost", "the stream broke off")
