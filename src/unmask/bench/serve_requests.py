"""The requests of `unmask bench serve`: ragged prompts, mixed policies, streams, clients that leave, and bad requests.

Everything is drawn from the workload's seed. Prompts are token ids below 200: in every tokenizer that we know these are
single letters, so a prompt has exactly as many tokens as it should, and no model is needed to make it.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from unmask import policies
from unmask.bench.workload import ServeWorkload

LETTERS = range(16, 200)
COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"


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
    draw = random.Random(workload.seed)
    made = (_good(workload, parameters, number, draw, chats) for number in range(workload.clients * workload.requests))
    return [ask if workload.plain else _mixed(ask, workload, draw) for ask in made]


def _good(workload: ServeWorkload, parameters: Mapping[str, Any], number: int, draw: random.Random, chats: bool) -> Ask:
    plain = workload.plain
    length = draw.randint(workload.prompt_tokens if plain else workload.shortest_prompt, workload.prompt_tokens)
    room = draw.randint(workload.max_tokens if plain else workload.shortest_answer, workload.max_tokens)
    policy = workload.policies[0 if plain else number % len(workload.policies)]
    decoding: dict[str, Any] = {"policy": policy, "early_stop": workload.settings().early_stop, **parameters}
    if workload.caches:
        alone = policies.needs_of(policies.get(policy)) & policies.WHOLE_CANVAS  # no cache can serve such a policy
        decoding["cache"] = "none" if alone else workload.caches[number % len(workload.caches)]
    if workload.block_size is not None:
        decoding["block_size"] = workload.block_size
    prompt = draw.choices(LETTERS, k=length)
    body: dict[str, Any] = {"prompt": prompt, "max_tokens": room, "decoding": decoding}
    if plain:
        return Ask(number=number, body=body)
    decoding["logits_eos_inf"] = draw.random() < 0.75  # long answers: random prompts say little
    if draw.random() < 0.25:
        body |= {"temperature": 0.8, "seed": number}
    if draw.random() < 0.1:
        body["n"] = 2
    if chats and draw.random() < 0.25:
        said = {"role": "user", "content": " ".join(map(str, body.pop("prompt")[: length // 4]))}
        return Ask(number=number, path=CHAT, body={"messages": [said], **body})
    return Ask(number=number, body=body)


def _mixed(ask: Ask, workload: ServeWorkload, draw: random.Random) -> Ask:
    """The request, streamed or left before its answer; or a bad one in its place."""
    if draw.random() < workload.share_bad:
        return draw.choice(_bad(ask))
    body = dict(ask.body)
    if draw.random() < workload.share_streamed:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
        if draw.random() < 0.25:
            body["decoding"] = body["decoding"] | {"events": {"candidates": 2}}
    leaves = draw.random() < workload.share_cancelled
    return replace(ask, body=body, leaves=leaves)


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
