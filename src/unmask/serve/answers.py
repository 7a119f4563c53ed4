"""What a client asked for and reads: an answer as a whole, or the server-sent events of one that is streamed.

schema.py has the shapes. Here answers are plain data: in a chunk, a null field differs from a missing one.
"""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass, field
from typing import Any

from unmask import policies
from unmask.engine.scheduler import Request
from unmask.serve.logprobs import Logprobs
from unmask.serve.schema import Body
from unmask.serve.strict_json import dumps
from unmask.trace.record import pass_line, result_line
from unmask.types import Output, StreamEvent

DONE = b"data: [DONE]\n\n"


@dataclass(slots=True, kw_only=True)
class Answer:
    """The answer to one request, as far as its texts are decoded: texts, or messages that answer a conversation."""

    body: Body
    model: str  # as clients call it
    requests: list[Request]  # one for each choice: prompt by prompt, each prompt with seeds that count up
    ignored: list[str]
    logprobs: dict[Request, Logprobs]  # none: not asked for
    header: dict[str, Any] | None  # of the events, if they are asked for
    outputs: dict[Request, Output] = field(default_factory=dict)
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    created: int = field(default_factory=lambda: int(time.time()))

    def hear(self, request: Request, event: StreamEvent) -> None:
        """Note what the answer needs of an event of a text."""
        if self.logprobs:
            self.logprobs[request].hear(event)
        if event.output is not None:
            self.outputs[request] = event.output

    @property
    def done(self) -> bool:
        return len(self.outputs) == len(self.requests)

    def whole(self) -> dict[str, Any]:
        """Everything at once."""
        kind, choices = "chat.completion" if self.body.chat else "text_completion", []
        for index, request in enumerate(self.requests):
            output = self.outputs[request]
            message = {"message": {"role": "assistant", "content": output.text}}
            said = message if self.body.chat else {"text": output.text}
            logprobs = self.logprobs[request].take(output) if self.logprobs else None
            choices.append(_choice(index, said, output.finish_reason, logprobs))
        return self._head(kind) | {"choices": choices} | self.costs()

    def first_frames(self) -> bytes:
        """The server-sent events before any text."""
        header = b"" if self.header is None else self._event("header", self.header)
        roles = range(len(self.requests) if self.body.chat else 0)
        return header + b"".join(self._chunk(index, {"role": "assistant", "content": ""}) for index in roles)

    def frames(self, request: Request, event: StreamEvent) -> bytes:
        """Hear an event of a text; the server-sent events for it: the pass, if asked for, new text, and the end."""
        self.hear(request, event)
        index, found, logprobs = self.requests.index(request), b"", None
        if self.header is not None and event.step is not None:
            found += self._event("pass", pass_line(index, event.step, request.token_text))
        if self.logprobs and (event.text_delta or event.output is not None):
            logprobs = self.logprobs[request].take(event.output)
        if event.text_delta:
            found += self._chunk(index, {"content": event.text_delta}, logprobs=logprobs)
            logprobs = None
        if event.output is not None:
            if self.header is not None:
                found += self._event("result", result_line(index, event.output))
            found += self._chunk(index, {}, event.output.finish_reason, logprobs)
        return found

    def last_frames(self) -> bytes:
        """The server-sent events after all text."""
        return (frame(self._chunk_of([]) | self.costs()) if self.body.include_usage else b"") + DONE

    def _chunk(
        self, index: int, delta: dict[str, str], reason: str | None = None, logprobs: dict[str, Any] | None = None
    ) -> bytes:
        """The news of one choice, as fields of a message; the last chunk has the costs, unless usage has its own."""
        said = {"delta": delta} if self.body.chat else {"text": delta.get("content", "")}
        chunk = self._chunk_of([_choice(index, said, reason, logprobs)])
        if reason is not None and self.done and not self.body.include_usage:
            chunk["decoding"] = self.costs()["decoding"]
        return frame(chunk)

    def _chunk_of(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        head = self._head("chat.completion.chunk" if self.body.chat else "text_completion")
        return head | {"choices": choices} | ({"usage": None} if self.body.include_usage else {})

    def _event(self, kind: str, line: dict[str, Any]) -> bytes:
        """A line of a trace, with the head of a chunk and without choices: clients that look for text pass it over."""
        return frame(line | self._head(f"decoding.{kind}") | {"choices": []}, kind)

    def _head(self, kind: str) -> dict[str, Any]:
        name = f"chatcmpl-{self.id}" if self.body.chat else f"cmpl-{self.id}"
        return {"id": name, "object": kind, "created": self.created, "model": self.model}

    def costs(self) -> dict[str, Any]:
        """`usage` and `decoding` of the whole request."""
        plan, outputs = self.requests[0].plan, [self.outputs[request] for request in self.requests]
        prompt = sum(output.usage.prompt_tokens for output in outputs[:: self.body.n or 1])
        completion = sum(output.usage.completion_tokens for output in outputs)
        passes = sum(output.usage.forward_passes for output in outputs)
        decoding: dict[str, Any] = {
            "policy": policies.name_of(plan.policy),
            "seed": plan.settings.seed,
            "forward_passes": passes,
            "tokens_per_pass": completion / passes,
            "ignored": self.ignored,
        }
        if self.body.decoding is not None and self.body.decoding.step_map:
            maps = [output.step_map for output in outputs]
            decoding["step_map"] = maps[0] if len(maps) == 1 else maps
        usage = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
        return {"usage": usage, "decoding": decoding}


def _choice(index: int, said: dict[str, Any], reason: str | None, logprobs: dict[str, Any] | None) -> dict[str, Any]:
    return {"index": index, **said, "logprobs": logprobs, "finish_reason": reason}


def frame(data: dict[str, Any], kind: str | None = None) -> bytes:
    """One server-sent event; without a kind it is a chunk."""
    head = b"" if kind is None else f"event: {kind}\n".encode()
    return head + b"data: " + dumps(data) + b"\n\n"
