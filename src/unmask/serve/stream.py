"""An answer as server-sent events, while the engine works on it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

from unmask.serve.answers import Answer
from unmask.serve.errors import ApiError
from unmask.serve.strict_json import dumps
from unmask.serve.worker import Ticket
from unmask.trace.record import pass_line, result_line
from unmask.types import Output

DONE = b"data: [DONE]\n\n"
STILL_HERE = b": still here\n\n"  # a comment, which clients pass over
SILENCE_S = 10.0  # after which it is sent, so that proxies do not take the connection for dead


def frame(data: dict[str, Any], kind: str | None = None) -> bytes:
    """One server-sent event; without a kind it is a chunk."""
    head = b"" if kind is None else f"event: {kind}\n".encode()
    return head + b"data: " + dumps(data) + b"\n\n"


async def frames(answer: Answer, ticket: Ticket) -> AsyncGenerator[bytes]:
    """The answer as server-sent events, with a sign of life in every silence."""
    coming = _frames(answer, ticket)
    while True:
        pending = asyncio.ensure_future(anext(coming, None))
        try:
            while not (await asyncio.wait([pending], timeout=SILENCE_S))[0]:
                yield STILL_HERE
        finally:
            pending.cancel()  # does nothing to a frame that has come
            await asyncio.wait([pending])
        if (found := pending.result()) is None:
            return
        yield found


async def _frames(answer: Answer, ticket: Ticket) -> AsyncGenerator[bytes]:
    """Text as it becomes certain, costs with the last chunk, or an error; between them the events, if asked for."""
    asked, outputs = answer.asked, dict[int, Output]()
    try:
        if asked.header is not None:
            yield frame(answer.event("header", asked.header), "header")
        for index in range(len(ticket.requests) if asked.chat else 0):
            yield frame(answer.chunk(index, {"role": "assistant", "content": ""}))
        async for index, event in ticket.events():
            if asked.header is not None and event.step is not None:
                line = pass_line(index, event.step, ticket.requests[index].token_text)
                yield frame(answer.event("pass", line), "pass")
            tokens = asked.logprobs.get(ticket.requests[index])
            logprobs = None if tokens is None else tokens.chunk(event)
            if event.text_delta:
                yield frame(answer.chunk(index, {"content": event.text_delta}, logprobs=logprobs))
                logprobs = None
            if event.output is not None:
                outputs[index] = event.output
                if asked.header is not None:
                    yield frame(answer.event("result", result_line(index, event.output)), "result")
                chunk = answer.chunk(index, {}, event.output.finish_reason, logprobs)
                if len(outputs) == len(ticket.requests) and not asked.include_usage:
                    chunk["decoding"] = answer.costs([outputs[index] for index in sorted(outputs)])["decoding"]
                yield frame(chunk)
    except ApiError as error:
        yield frame(error.body)
        return
    if asked.include_usage:
        yield frame(answer.chunk_of([]) | answer.costs([outputs[index] for index in sorted(outputs)]))
    yield DONE
