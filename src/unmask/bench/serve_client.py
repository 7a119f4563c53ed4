"""The clients of a server under test: the requests that they send, and what they hear of each.

Requests have ragged prompts and mixed policies; some are streamed, some are left by their client, some are bad.
Everything is drawn from the workload's seed. Prompts are token ids below 200: in every tokenizer that we know these are
single letters, so a prompt has exactly as many tokens as it should, and no model is needed to make it.

Only the standard library sends them, so that nothing between the client and the server mends or retries anything.
"""

from __future__ import annotations

import http.client
import json
import random
import socket
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from unmask import policies
from unmask.bench.workload import ServeWorkload
from unmask.errors import WorkFailed

LETTERS = range(16, 200)
COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
PATIENCE_S = 300.0  # without a byte from the server: the answer is lost
FULL = 429


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One request. With a `fault` it is a bad one; `expects` is the status of its answer, None: none is awaited."""

    number: int
    body: Any  # sent as JSON; bytes: as they are
    method: str = "POST"
    path: str = COMPLETIONS
    headers: Mapping[str, str] = field(default_factory=lambda: {"Content-Type": "application/json"})
    leaves: bool = False  # the client leaves: a stream after the first text, else at once
    fault: str = ""
    expects: int | None = None

    @property
    def raw(self) -> bytes:
        return self.body if isinstance(self.body, bytes) else json.dumps(self.body).encode()

    @property
    def streams(self) -> bool:
        return isinstance(self.body, dict) and bool(self.body.get("stream"))


def asks_of(workload: ServeWorkload, parameters: Mapping[str, Any], *, chats: bool) -> list[Ask]:
    """The requests of all clients; `parameters` are those of the policy, `chats`: the model has a chat template."""
    draw, count = random.Random(workload.seed), workload.clients * workload.requests
    return [_ask(workload, parameters, number, draw, chats) for number in range(count)]


def _ask(workload: ServeWorkload, parameters: Mapping[str, Any], number: int, draw: random.Random, chats: bool) -> Ask:
    plain, path = workload.plain, COMPLETIONS
    length = draw.randint(workload.prompt_tokens if plain else workload.shortest_prompt, workload.prompt_tokens)
    room = draw.randint(workload.max_tokens if plain else workload.shortest_answer, workload.max_tokens)
    policy = workload.policies[0 if plain else number % len(workload.policies)]
    decoding: dict[str, Any] = {"policy": policy, "early_stop": workload.settings().early_stop, **parameters}
    if workload.caches:
        alone = policies.needs_of(policies.get(policy)) & policies.WHOLE_CANVAS  # no cache can serve such a policy
        decoding["cache"] = "none" if alone else workload.caches[number % len(workload.caches)]
    if workload.block_size is not None:
        decoding["block_size"] = workload.block_size
    body: dict[str, Any] = {"prompt": draw.choices(LETTERS, k=length), "max_tokens": room, "decoding": decoding}
    if plain:
        return Ask(number=number, body=body)
    decoding["logits_eos_inf"] = draw.random() < 0.75  # long answers: random prompts say little
    if draw.random() < 0.25:
        body |= {"temperature": 0.8, "seed": number}
    if draw.random() < 0.1:
        body["n"] = 2
    if chats and draw.random() < 0.25:
        said = " ".join(map(str, body.pop("prompt")[: length // 4]))
        path, body["messages"] = CHAT, [{"role": "user", "content": said}]
    if draw.random() < workload.share_bad:
        return draw.choice(_bad(Ask(number=number, path=path, body=body)))
    if draw.random() < workload.share_streamed:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
        if draw.random() < 0.25:
            decoding["events"] = {"candidates": 2}
    return Ask(number=number, path=path, body=body, leaves=draw.random() < workload.share_cancelled)


def _bad(good: Ask) -> list[Ask]:
    """One bad request of every kind, made from a good one."""
    decoding = good.body["decoding"]
    wrong: dict[str, tuple[int | None, dict[str, Any]]] = {
        "no JSON": (400, {"body": good.raw[:-1]}),
        "wrong type": (400, {"body": good.body | {"max_tokens": "many"}}),
        "out of range": (400, {"body": good.body | {"top_p": 2.0}}),
        "too long": (400, {"body": good.body | {"max_tokens": 10**9}}),
        "unknown policy": (400, {"body": good.body | {"decoding": decoding | {"policy": "no such policy"}}}),
        "unknown field": (400, {"body": good.body | {"decoding": decoding | {"no_such_field": 1}}}),
        "nested too deeply": (400, {"body": b'{"prompt": ' + b"[" * 9000 + b"]" * 9000 + b"}"}),
        "no content type": (400, {"headers": {}}),
        "unknown model": (404, {"body": good.body | {"model": "no such model"}}),
        "unknown URL": (404, {"path": "/v1/no/such/url"}),
        "wrong method": (405, {"method": "PUT"}),
        "not HTTP": (None, {"body": bytes(range(256))}),
        "half a head": (None, {"body": b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Le"}),
        "half a body": (None, {"body": _head(good) + good.raw[:-5]}),
        "gone without reading": (None, {"body": _head(good) + good.raw}),
    }
    return [replace(good, fault=name, expects=status, **changes) for name, (status, changes) in wrong.items()]


def _head(ask: Ask) -> bytes:
    """The head of an HTTP request for that body."""
    fields = f"Host: x\r\nContent-Type: application/json\r\nContent-Length: {len(ask.raw)}"
    return f"POST {ask.path} HTTP/1.1\r\n{fields}\r\n\r\n".encode()


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
    """An answer that is not what the protocol says: the end that it counts as, and why."""


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
            heard.end = self._exchange(ask, heard)
        except Broken as error:
            heard.end, heard.why = error.args
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
            if answer.status != 200:
                raise http.client.HTTPException(f"it got {answer.status}: {answer.read().decode():.200}")
            return answer.read().decode()
        except (OSError, http.client.HTTPException) as error:
            raise WorkFailed(f"the server's {path} cannot be read: {error}") from error
        finally:
            self.close()

    def close(self) -> None:
        self.connection.close()  # the next request opens it again

    def _exchange(self, ask: Ask, heard: Heard) -> str:
        if ask.fault and ask.expects is None:  # over a connection of its own, which is left at once
            with suppress(OSError), socket.create_connection(self.place, timeout=PATIENCE_S) as connection:
                connection.sendall(ask.raw)
            return "bad"
        self._ask(ask)
        if ask.leaves and not ask.streams:
            return "cancelled"
        response = self.connection.getresponse()
        status = response.status
        message = "" if status == 200 else json.loads(response.read())["error"]["message"]
        if status == FULL:
            return "refused"
        if ask.fault and status == ask.expects:
            return "bad"
        if ask.fault:
            raise Broken("wrong", f"{ask.fault} got {status} instead of {ask.expects}: {message}")
        if status != 200:
            raise Broken("lost" if status >= 500 else "wrong", f"got {status}: {message}")
        return _read(heard, _events(response) if ask.streams else [json.loads(response.read())])

    def _ask(self, ask: Ask) -> None:
        """Send a request: over a new connection if the server has closed the kept one since the last answer."""
        if (kept := self.connection.sock) is not None:
            kept.setblocking(False)
            try:
                rest = kept.recv(1, socket.MSG_PEEK)
            except BlockingIOError:  # it is open, and silent as it should be
                kept.settimeout(PATIENCE_S)
            except OSError:
                self.close()
            else:
                self.close()
                if rest:
                    raise Broken("doubled", "more bytes came after the end of an answer")
        request = (ask.method, ask.path, ask.raw, {**ask.headers, **self.key})
        try:
            self.connection.request(*request)
        except OSError:
            self.close()
            if kept is None:
                raise
            self.connection.request(*request)  # the server closed the kept one after the look at it


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
