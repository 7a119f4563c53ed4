"""An answer while the engine works on it: gathered until it is whole, or sent as server-sent events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from typing import Any

from starlette.responses import StreamingResponse

from unmask.serve.answers import Answer
from unmask.serve.errors import ApiError
from unmask.serve.strict_json import dumps
from unmask.serve.worker import Ticket
from unmask.trace.record import pass_line, result_line
from unmask.types import StreamEvent

DONE = b"data: [DONE]\n\n"
STILL_HERE = b": still here\n\n"  # a comment, which clients pass over
SILENCE_S = 10.0  # after which it is sent, so that proxies do not take the connection for dead


async def gather(answer: Answer, ticket: Ticket, receive: Callable[[], Awaitable[Any]]) -> None:
    """Return when the answer is whole, or when the client has left."""

    async def hear_all() -> None:
        while not answer.done:
            if (news := await ticket.next()) is not None:
                answer.hear(*news)

    await _unless_gone(ticket, receive, hear_all())


class EventStream(StreamingResponse):
    """Sends frames as they come."""

    media_type = "text/event-stream"

    def __init__(self, answer: Answer, ticket: Ticket) -> None:
        # Without these headers, proxies may hold frames back.
        super().__init__(_frames(answer, ticket), headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        self.ticket = ticket

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        # Only under some versions of ASGI does the parent's own method notice that a client has left.
        await _unless_gone(self.ticket, receive, self.stream_response(send))


async def _unless_gone(ticket: Ticket, receive: Callable[[], Awaitable[Any]], work: Coroutine[Any, Any, None]) -> None:
    """Do the work, until the client leaves; however it ends, the engine drops the texts that are left."""

    async def gone() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    tasks = asyncio.ensure_future(work), asyncio.ensure_future(gone())
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if tasks[0].done():
            tasks[0].result()  # raises what the work raised
    finally:
        ticket.abandon()
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


async def _frames(answer: Answer, ticket: Ticket) -> AsyncGenerator[bytes]:
    """Text as it becomes certain, costs with the last chunk, or an error; and a sign of life in every silence."""
    now = asyncio.get_running_loop().time
    try:
        if first := _first_frames(answer):
            yield first
        spoke = now()
        while not answer.done:
            news = await ticket.next(spoke + SILENCE_S)
            told = b"" if news is None else _frames_of(answer, *news)
            if told or now() >= spoke + SILENCE_S:
                spoke = now()
                yield told or STILL_HERE
    except ApiError as error:
        yield _frame(error.body)
        return
    yield (_frame(answer.chunk_of([]) | answer.costs()) if answer.body.include_usage else b"") + DONE


def _first_frames(answer: Answer) -> bytes:
    header = b"" if answer.header is None else _frame(answer.event("header", answer.header), "header")
    roles = range(len(answer.requests) if answer.body.chat else 0)
    return header + b"".join(_frame(answer.chunk(index, {"role": "assistant", "content": ""})) for index in roles)


def _frames_of(answer: Answer, index: int, event: StreamEvent) -> bytes:
    """What an event says: new text, the end of a text, and the pass itself if events are asked for."""
    answer.hear(index, event)
    found, logprobs = b"", None
    if answer.header is not None and event.step is not None:
        line = pass_line(index, event.step, answer.requests[index].token_text)
        found += _frame(answer.event("pass", line), "pass")
    if answer.logprobs and (event.text_delta or event.output is not None):
        tokens = answer.logprobs[index].take(event.output)
        logprobs = answer.logprobs[index].form(tokens) if tokens else None
    if event.text_delta:
        found += _frame(answer.chunk(index, {"content": event.text_delta}, logprobs=logprobs))
        logprobs = None
    if event.output is not None:
        if answer.header is not None:
            found += _frame(answer.event("result", result_line(index, event.output)), "result")
        chunk = answer.chunk(index, {}, event.output.finish_reason, logprobs)
        if answer.done and not answer.body.include_usage:
            chunk["decoding"] = answer.costs()["decoding"]
        found += _frame(chunk)
    return found


def _frame(data: dict[str, Any], kind: str | None = None) -> bytes:
    """One server-sent event; without a kind it is a chunk."""
    head = b"" if kind is None else f"event: {kind}\n".encode()
    return head + b"data: " + dumps(data) + b"\n\n"
