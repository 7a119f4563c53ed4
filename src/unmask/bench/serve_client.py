"""One client of a server under test: it sends a request and says what became of it.

Only the standard library is used, so that nothing between the client and the server mends or retries anything.
"""

from __future__ import annotations

import http.client
import json
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from unmask.bench.serve_requests import Ask

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
    """Sends requests over one connection after the other, which is kept for as long as the server keeps it."""

    def __init__(self, url: str, key: str | None = None) -> None:
        place = urlsplit(url)
        self.host, self.port = place.hostname or "", place.port or 80
        self.key = {} if key is None else {"Authorization": f"Bearer {key}"}
        self._connection: http.client.HTTPConnection | None = None

    def send(self, ask: Ask) -> Heard:
        """Send a request, and wait for its answer unless the client leaves."""
        heard = Heard(ask=ask)
        try:
            if ask.fault and ask.expects is None:
                self._throw(ask.raw)
                heard.end = "bad"
            else:
                self._exchange(heard)
        except Broken as error:
            heard.end, heard.why = error.end, str(error)
        except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError) as error:
            heard.why = f"{type(error).__name__}: {error}"
        heard.seconds = time.perf_counter() - heard.began
        if heard.end not in ("answered", "refused", "bad"):
            self.close()
        return heard

    def get(self, path: str) -> str:
        """The text at a path; raises OSError if there is none."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=PATIENCE_S)
        try:
            connection.request("GET", path, headers=self.key)
            answer = connection.getresponse()
            text = answer.read().decode()
        except http.client.HTTPException as error:
            raise OSError(f"GET {path} got no answer: {error!r}") from error
        finally:
            connection.close()
        if answer.status != 200:
            raise OSError(f"GET {path} got {answer.status}: {text:.200}")
        return text

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _throw(self, raw: bytes) -> None:
        """Send bytes over a connection of their own, and leave."""
        with suppress(OSError), socket.create_connection((self.host, self.port), timeout=PATIENCE_S) as connection:
            connection.sendall(raw)

    def _exchange(self, heard: Heard) -> None:
        ask, answer = heard.ask, self._ask(heard.ask)
        if ask.leaves and not ask.streams:
            heard.end = "cancelled"
            return
        response = answer.getresponse()
        if response.status != 200:
            _refused(heard, response.status, response.read())
        elif ask.fault:
            raise Broken("wrong", f"{ask.fault} got 200 instead of {ask.expects}")
        elif ask.streams:
            _read_stream(heard, response)
        else:
            _read_whole(heard, response.read())
        response.close()
        if response.will_close:
            self.close()

    def _ask(self, ask: Ask) -> http.client.HTTPConnection:
        """The connection on which a request was sent: a new one if the server has closed the old one meanwhile."""
        for _ in range(2):
            kept = self._connection is not None
            if self._connection is None:
                self._connection = http.client.HTTPConnection(self.host, self.port, timeout=PATIENCE_S)
            try:
                if kept and _closed(self._connection.sock):
                    raise ConnectionResetError
                self._connection.request(ask.method, ask.path, ask.raw, {**ask.headers, **self.key})
                return self._connection
            except OSError:
                self.close()
                if not kept:
                    raise
        raise AssertionError


def _closed(kept: socket.socket | None) -> bool:
    """Whether the server has closed an idle connection, or sent something on it that was not asked for."""
    if kept is None:
        return True
    kept.setblocking(False)
    try:
        rest = kept.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return False
    finally:
        kept.settimeout(PATIENCE_S)
    if rest:
        raise Broken("doubled", "more bytes came after the end of an answer")
    return True


def _refused(heard: Heard, status: int, raw: bytes) -> None:
    """An answer that is an error: expected, for want of room, or a fault."""
    ask, message = heard.ask, json.loads(raw)["error"]["message"]
    if status == FULL:
        heard.end = "refused"
    elif ask.fault:
        if status != ask.expects:
            raise Broken("wrong", f"{ask.fault} got {status} instead of {ask.expects}: {message}")
        heard.end = "bad"
    else:
        raise Broken("lost" if status >= 500 else "wrong", f"got {status}: {message}")


def _read_whole(heard: Heard, raw: bytes) -> None:
    data = json.loads(raw)
    texts = {
        each["index"]: each["message"]["content"] if "message" in each else each["text"] for each in data["choices"]
    }
    if len(texts) < len(data["choices"]):
        raise Broken("doubled", "one choice came twice")
    reasons = {each["index"]: each["finish_reason"] for each in data["choices"]}
    _answered(heard, data["id"], texts, reasons, data)


def _read_stream(heard: Heard, response: http.client.HTTPResponse) -> None:
    texts: dict[int, str] = {}
    reasons: dict[int, str] = {}
    identity, costs = "", {}
    for chunk in _chunks(response):
        if "error" in chunk:
            raise Broken("lost", f"the stream ended with an error: {chunk['error']['message']}")
        identity, costs = chunk["id"], chunk if "decoding" in chunk else costs
        for choice in chunk["choices"]:
            index, text = choice["index"], choice["delta"].get("content", "") if "delta" in choice else choice["text"]
            if index in reasons:
                raise Broken("doubled", "a choice went on after its end")
            texts[index] = texts.get(index, "") + text
            if choice["finish_reason"] is not None:
                reasons[index] = choice["finish_reason"]
            if text and heard.first_s is None:
                heard.first_s = time.perf_counter() - heard.began
            if text and heard.ask.leaves:
                heard.end = "cancelled"
                return
    _answered(heard, identity, texts, reasons, costs)


def _chunks(response: http.client.HTTPResponse) -> Iterator[dict[str, Any]]:
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


def _answered(
    heard: Heard, identity: str, texts: dict[int, str], reasons: dict[int, str], costs: dict[str, Any]
) -> None:
    choices = range(heard.ask.body.get("n", 1))
    if sorted(texts) != list(choices) or sorted(reasons) != list(choices):
        raise Broken("lost", f"of {len(choices)} choices, {len(texts)} came and {len(reasons)} ended")
    tokens, passes = costs["usage"]["completion_tokens"], costs["decoding"]["forward_passes"]
    heard.answer = Answer(tuple(texts[i] for i in choices), tuple(reasons[i] for i in choices), tokens, passes)
    heard.id, heard.end = identity, "answered"
