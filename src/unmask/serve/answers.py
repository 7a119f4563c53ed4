"""What a client reads: answers, chunks and frames, made of the engine's outputs and events.

The shapes are those of schema.py, as plain data: in a chunk, a field that is null and one that is missing differ.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

from unmask import policies
from unmask.serve.errors import ApiError
from unmask.serve.translate import Asked
from unmask.serve.worker import Ticket
from unmask.types import Output

DONE = b"data: [DONE]\n\n"


def to_json(data: Any) -> bytes:
    """JSON in UTF-8; half a surrogate pair, which a client may have sent, stays the escape that it was."""
    return json.dumps(data, ensure_ascii=False, allow_nan=False).encode("utf-8", "backslashreplace")


@dataclass(slots=True, kw_only=True)
class CompletionAnswer:
    """The answer to a request for completions."""

    asked: Asked
    model: str
    id: str = field(init=False)
    created: int = field(init=False)

    object: ClassVar[str] = "text_completion"
    chunk_object: ClassVar[str] = "text_completion"
    prefix: ClassVar[str] = "cmpl"

    def __post_init__(self) -> None:
        self.id, self.created = f"{self.prefix}-{uuid.uuid4().hex}", int(time.time())

    def whole(self, outputs: list[Output]) -> dict[str, Any]:
        """Everything at once."""
        choices = [
            {"index": index, **self.text(output.text), "logprobs": None, "finish_reason": output.finish_reason}
            for index, output in enumerate(outputs)
        ]
        head = {"id": self.id, "object": self.object, "created": self.created, "model": self.model}
        return head | {"choices": choices} | self.costs(outputs)

    def text(self, text: str) -> dict[str, Any]:
        return {"text": text}

    def opening(self, index: int) -> list[dict[str, Any]]:
        """The chunks with which a choice begins."""
        return []

    def piece(self, text: str) -> dict[str, Any]:
        return {"text": text}

    def end(self) -> dict[str, Any]:
        return {"text": ""}

    def chunk(self, index: int, content: dict[str, Any], reason: str | None = None) -> dict[str, Any]:
        """One step of a stream, about one choice."""
        choice = {"index": index, **content, "logprobs": None, "finish_reason": reason}
        return self._chunk([choice])

    def usage_chunk(self) -> dict[str, Any]:
        """The one that ends a stream in which usage was asked for."""
        return self._chunk([])

    def _chunk(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        head = {"id": self.id, "object": self.chunk_object, "created": self.created, "model": self.model}
        return head | {"choices": choices} | ({"usage": None} if self.asked.include_usage else {})

    def costs(self, outputs: list[Output]) -> dict[str, Any]:
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


class ChatAnswer(CompletionAnswer):
    """The answer to a conversation."""

    object = "chat.completion"
    chunk_object = "chat.completion.chunk"
    prefix = "chatcmpl"

    def text(self, text: str) -> dict[str, Any]:
        return {"message": {"role": "assistant", "content": text}}

    def opening(self, index: int) -> list[dict[str, Any]]:
        return [self.chunk(index, {"delta": {"role": "assistant", "content": ""}})]

    def piece(self, text: str) -> dict[str, Any]:
        return {"delta": {"content": text}}

    def end(self) -> dict[str, Any]:
        return {"delta": {}}


def frame(data: dict[str, Any]) -> bytes:
    """One server-sent event."""
    return b"data: " + to_json(data) + b"\n\n"


async def frames(answer: CompletionAnswer, ticket: Ticket) -> AsyncIterator[bytes]:
    """The answer as server-sent events: text as it becomes certain, costs with the last chunk; or where it failed."""
    outputs: dict[int, Output] = {}
    try:
        for index in range(len(ticket.requests)):
            for chunk in answer.opening(index):
                yield frame(chunk)
        async for index, event in ticket.events():
            if event.text_delta:
                yield frame(answer.chunk(index, answer.piece(event.text_delta)))
            if event.output is not None:
                outputs[index] = event.output
                last = len(outputs) == len(ticket.requests) and not answer.asked.include_usage
                chunk = answer.chunk(index, answer.end(), event.output.finish_reason)
                yield frame(chunk | _decoding(answer, outputs) if last else chunk)
    except ApiError as error:
        yield frame(error.body)
        return
    if answer.asked.include_usage:
        yield frame(answer.usage_chunk() | answer.costs(_in_order(outputs)))
    yield DONE


def _decoding(answer: CompletionAnswer, outputs: dict[int, Output]) -> dict[str, Any]:
    return {"decoding": answer.costs(_in_order(outputs))["decoding"]}


def _in_order(outputs: dict[int, Output]) -> list[Output]:
    return [outputs[index] for index in range(len(outputs))]
