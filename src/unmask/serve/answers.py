"""What a client asked for and reads: an answer as a whole, or the chunks of one that is streamed.

answer_schema.py has the shapes. Here answers are plain data: in a chunk, a null field differs from a missing one.
"""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass, field
from typing import Any

from unmask import policies
from unmask.engine.scheduler import Request
from unmask.policies import Policy
from unmask.serve.logprobs import Logprobs
from unmask.serve.schema import Body
from unmask.types import Output, StreamEvent


@dataclass(slots=True, kw_only=True)
class Answer:
    """The answer to one request, as far as its texts are decoded: texts, or messages that answer a conversation."""

    body: Body
    model: str  # as clients call it
    requests: list[Request]  # one for each choice: prompt by prompt, each prompt with seeds that count up
    policy: Policy
    seed: int  # of the first choice
    ignored: list[str]
    logprobs: list[Logprobs]  # of each request, if asked for
    header: dict[str, Any] | None  # of the events, if they are asked for
    outputs: dict[int, Output] = field(default_factory=dict)
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    created: int = field(default_factory=lambda: int(time.time()))

    def hear(self, index: int, event: StreamEvent) -> None:
        """Note what the answer needs of an event of a text."""
        if self.logprobs:
            self.logprobs[index].hear(event)
        if event.output is not None:
            self.outputs[index] = event.output

    @property
    def done(self) -> bool:
        return len(self.outputs) == len(self.requests)

    def whole(self) -> dict[str, Any]:
        """Everything at once."""
        kind, choices = "chat.completion" if self.body.chat else "text_completion", []
        for index, output in sorted(self.outputs.items()):
            message = {"message": {"role": "assistant", "content": output.text}}
            said = message if self.body.chat else {"text": output.text}
            tokens = self.logprobs[index] if self.logprobs else None
            logprobs = None if tokens is None else tokens.form(tokens.take(output))
            choices.append(_choice(index, said, output.finish_reason, logprobs))
        return self._head(kind) | {"choices": choices} | self.costs()

    def chunk(
        self, index: int, delta: dict[str, str], reason: str | None = None, logprobs: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """One chunk of a stream: the news of one choice, as fields of a message."""
        said = {"delta": delta} if self.body.chat else {"text": delta.get("content", "")}
        return self.chunk_of([_choice(index, said, reason, logprobs)])

    def chunk_of(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        head = self._head("chat.completion.chunk" if self.body.chat else "text_completion")
        return head | {"choices": choices} | ({"usage": None} if self.body.include_usage else {})

    def event(self, kind: str, line: dict[str, Any]) -> dict[str, Any]:
        """A line of a trace, with the head of a chunk and without choices: clients that look for text pass it over."""
        return line | self._head(f"decoding.{kind}") | {"choices": []}

    def _head(self, kind: str) -> dict[str, Any]:
        name = f"chatcmpl-{self.id}" if self.body.chat else f"cmpl-{self.id}"
        return {"id": name, "object": kind, "created": self.created, "model": self.model}

    def costs(self) -> dict[str, Any]:
        """`usage` and `decoding` of the whole request."""
        outputs = [self.outputs[index] for index in range(len(self.requests))]
        prompt = sum(output.usage.prompt_tokens for output in outputs[:: self.body.n or 1])
        completion = sum(output.usage.completion_tokens for output in outputs)
        passes = sum(output.usage.forward_passes for output in outputs)
        decoding: dict[str, Any] = {
            "policy": policies.name_of(self.policy),
            "seed": self.seed,
            "forward_passes": passes,
            "tokens_per_pass": completion / passes if passes else 0.0,
            "ignored": self.ignored,
        }
        if (self.body.decoding or {}).get("step_map"):
            maps = [output.step_map for output in outputs]
            decoding["step_map"] = maps[0] if len(maps) == 1 else maps
        usage = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
        return {"usage": usage, "decoding": decoding}


def _choice(index: int, said: dict[str, Any], reason: str | None, logprobs: dict[str, Any] | None) -> dict[str, Any]:
    return {"index": index, **said, "logprobs": logprobs, "finish_reason": reason}
