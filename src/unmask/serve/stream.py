"""An answer as server-sent events, while the engine works on it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from unmask.serve.answers import Answer
from unmask.serve.errors import ApiError
from unmask.serve.strict_json import dumps
from unmask.serve.worker import Ticket
from unmask.types import Output

DONE = b"data: [DONE]\n\n"


def frame(data: dict[str, Any]) -> bytes:
    """One server-sent event."""
    return b"data: " + dumps(data) + b"\n\n"


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
