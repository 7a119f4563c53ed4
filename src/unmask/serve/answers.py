"""What a client reads: an answer as a whole, or the chunks of one that is streamed.

answer_schema.py has the shapes. Here answers are plain data: in a chunk, a null field differs from a missing one.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from unmask import policies
from unmask.engine.scheduler import Request
from unmask.serve.translate import Asked
from unmask.types import Output, StreamEvent


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The answer to one request: texts, or the messages that answer a conversation."""

    asked: Asked
    model: str
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    created: int = field(default_factory=lambda: int(time.time()))

    def whole(self, outputs: Sequence[Output]) -> dict[str, Any]:
        """Everything at once."""
        kind = "chat.completion" if self.asked.chat else "text_completion"
        choices = []
        for index, output in enumerate(outputs):
            message = {"message": {"role": "assistant", "content": output.text}}
            said = message if self.asked.chat else {"text": output.text}
            tokens = self.asked.logprobs.get(self.asked.requests[index])
            logprobs = None if tokens is None else tokens.whole(output)
            choices.append(_choice(index, said, output.finish_reason, logprobs))
        return self._head(kind) | {"choices": choices} | self.costs(outputs)

    def hear(self, request: Request, event: StreamEvent) -> None:
        """Note what the whole answer needs of the events of a text."""
        if request in self.asked.logprobs:
            self.asked.logprobs[request].hear(event.step)

    def chunk(
        self, index: int, delta: dict[str, str], reason: str | None = None, logprobs: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """One chunk of a stream: the news of one choice, as fields of a message."""
        said = {"delta": delta} if self.asked.chat else {"text": delta.get("content", "")}
        return self.chunk_of([_choice(index, said, reason, logprobs)])

    def chunk_of(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        head = self._head("chat.completion.chunk" if self.asked.chat else "text_completion")
        return head | {"choices": choices} | ({"usage": None} if self.asked.include_usage else {})

    def event(self, kind: str, line: dict[str, Any]) -> dict[str, Any]:
        """A line of a trace, with the head of a chunk and without choices: clients that look for text pass it over."""
        return line | self._head(f"decoding.{kind}") | {"choices": []}

    def _head(self, kind: str) -> dict[str, Any]:
        name = f"chatcmpl-{self.id}" if self.asked.chat else f"cmpl-{self.id}"
        return {"id": name, "object": kind, "created": self.created, "model": self.model}

    def costs(self, outputs: Sequence[Output]) -> dict[str, Any]:
        """`usage` and `decoding` of the whole request."""
        prompt = sum(output.usage.prompt_tokens for output in outputs[:: self.asked.choices])
        completion = sum(output.usage.completion_tokens for output in outputs)
        passes = sum(output.usage.forward_passes for output in outputs)
        decoding: dict[str, Any] = {
            "policy": policies.name_of(self.asked.policy),
            "seed": self.asked.seed,
            "forward_passes": passes,
            "tokens_per_pass": completion / passes if passes else 0.0,
            "ignored": self.asked.ignored,
        }
        if self.asked.step_map:
            maps = [output.step_map for output in outputs]
            decoding["step_map"] = maps[0] if len(maps) == 1 else maps
        usage = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
        return {"usage": usage, "decoding": decoding}


def _choice(index: int, said: dict[str, Any], reason: str | None, logprobs: dict[str, Any] | None) -> dict[str, Any]:
    return {"index": index, **said, "logprobs": logprobs, "finish_reason": reason}
