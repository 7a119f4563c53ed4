"""What a client reads: an answer as a whole, or its chunks as server-sent events.

schema.py has their shapes. Here answers are plain data, since in a chunk a null field differs from a missing one.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from unmask import policies
from unmask.serve.errors import ApiError
from unmask.serve.translate import Asked
from unmask.serve.worker import Ticket
from unmask.types import Output

DONE = b"data: [DONE]\n\n"


def to_json(data: Any) -> bytes:
    """JSON in UTF-8; half a surrogate pair, which a client may have sent, stays the escape that it was."""
    return json.dumps(data, ensure_ascii=False, allow_nan=False).encode("utf-8", "backslashreplace")


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
            choices.append(_choice(index, message if self.asked.chat else {"text": output.text}, output.finish_reason))
        return self._head(kind) | {"choices": choices} | self.costs(outputs)

    def chunk(self, index: int, delta: dict[str, str], reason: str | None = None) -> dict[str, Any]:
        """One chunk of a stream: the news of one choice, as fields of a message."""
        said = {"delta": delta} if self.asked.chat else {"text": delta.get("content", "")}
        return self.chunk_of([_choice(index, said, reason)])

    def chunk_of(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        head = self._head("chat.completion.chunk" if self.asked.chat else "text_completion")
        return head | {"choices": choices} | ({"usage": None} if self.asked.include_usage else {})

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
            "forward_passes": passes,
            "tokens_per_pass": completion / passes if passes else 0.0,
            "ignored": self.asked.ignored,
        }
        if self.asked.step_map:
            maps = [output.step_map for output in outputs]
            decoding["step_map"] = maps[0] if len(maps) == 1 else maps
        usage = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
        return {"usage": usage, "decoding": decoding}


def _choice(index: int, said: dict[str, Any], reason: str | None) -> dict[str, Any]:
    return {"index": index, **said, "logprobs": None, "finish_reason": reason}


def frame(data: dict[str, Any]) -> bytes:
    """One server-sent event."""
    return b"data: " + to_json(data) + b"\n\n"


async def frames(answer: Answer, ticket: Ticket) -> AsyncIterator[bytes]:
    """The answer as server-sent events: text as it becomes certain, costs with the last chunk, or an error."""
    outputs: dict[int, Output] = {}
    try:
        for index in range(len(ticket.requests) if answer.asked.chat else 0):
            yield frame(answer.chunk(index, {"role": "assistant", "content": ""}))
        async for index, event in ticket.events():
            if event.text_delta:
                yield frame(answer.chunk(index, {"content": event.text_delta}))
            if event.output is not None:
                outputs[index] = event.output
                chunk = answer.chunk(index, {}, event.output.finish_reason)
                if len(outputs) == len(ticket.requests) and not answer.asked.include_usage:
                    chunk["decoding"] = answer.costs([outputs[index] for index in sorted(outputs)])["decoding"]
                yield frame(chunk)
    except ApiError as error:
        yield frame(error.body)
        return
    if answer.asked.include_usage:
        yield frame(answer.chunk_of([]) | answer.costs([outputs[index] for index in sorted(outputs)]))
    yield DONE
