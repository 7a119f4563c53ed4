"""The routes. A handler translates, submits and answers; decoding is the worker's business."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Any

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect
from starlette.responses import PlainTextResponse, StreamingResponse
from starlette.types import Receive

from unmask import __version__
from unmask.engine.generator import Generator
from unmask.serve import pages, schema, translate
from unmask.serve.answers import Answer, frame
from unmask.serve.errors import ApiError, answer_to, overdue
from unmask.serve.guard import CheckedRequest, CheckedRoute, Guard
from unmask.serve.metrics import GONE, Counting
from unmask.serve.served import Served
from unmask.serve.strict_json import dumps
from unmask.serve.worker import Ticket

STILL_HERE = b": still here\n\n"  # a comment, which clients pass over
SILENCE_S = 10.0  # after which it is sent, so that proxies do not take the connection for dead
_ABOUT_URLS = {404: ("unknown URL", "unknown_url"), 405: ("not allowed", "method_not_supported")}
router = APIRouter(route_class=CheckedRoute)


def _errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The errors that a route may answer with, for the OpenAPI document."""
    return {status: {"model": schema.ErrorBody} for status in statuses}


_BODY_RESPONSES = _errors(400, 401, 404, 408, 413, 429, 500, 503)
_DECODING_RESPONSES = _BODY_RESPONSES | _errors(504) | {200: {"content": {"text/event-stream": {}}}}


class EventStream(StreamingResponse):
    """Sends frames as they come."""

    media_type = "text/event-stream"

    def __init__(self, answer: Answer, ticket: Ticket, deadline: float) -> None:
        headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}  # else proxies may hold frames back
        super().__init__(_frames(answer, ticket, deadline), headers=headers)
        self.ticket, self.deadline = ticket, deadline

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        # Only under some versions of ASGI does the parent's own method notice that a client has left.
        async with _watched(self.ticket, receive, self.deadline):
            await self.stream_response(send)


class App(FastAPI):
    """FastAPI whose OpenAPI document leaves out 422: a wrong body gets 400 here."""

    def openapi(self) -> dict[str, Any]:
        document = super().openapi()
        for operations in document["paths"].values():
            for operation in operations.values():
                operation["responses"].pop("422", None)
        if self.state.served.config.api_keys:
            document["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
            document["security"] = [{"key": []}]
        return document


def create_app(served: Served) -> App:
    """The application of a worker that was started."""
    # FastAPI's documentation pages are off: they load scripts from other sites.
    app = App(title="unmask", version=__version__, docs_url=None, redoc_url=None, redirect_slashes=False)
    app.state.served = served
    app.include_router(router)
    app.include_router(pages.router)
    for kind in (HTTPException, RequestValidationError, Exception):
        app.add_exception_handler(kind, _error_response)
    config = served.config
    app.add_middleware(Guard, keys=config.api_keys, most=config.max_requests_per_key)
    if config.cors_origin:  # outside the guard: a browser asks for leave without the key, and must read a refusal
        allowed: Any = {"allow_methods": ["GET", "POST"], "allow_headers": ["*"], "expose_headers": ["Retry-After"]}
        app.add_middleware(CORSMiddleware, allow_origins=config.cors_origin, **allowed)
    app.add_middleware(Counting, metrics=served.worker.metrics)
    return app


async def _error_response(request: Request, error: Exception) -> Response:
    if isinstance(error.__cause__, ClientDisconnect):  # while its body was read
        return Response(status_code=GONE)
    if isinstance(error, RequestValidationError):
        error = schema.complaint(error.errors())
    elif isinstance(error, HTTPException) and not isinstance(error, ApiError):
        about, code = _ABOUT_URLS.get(error.status_code, (error.detail, None))
        message, headers = f"{about}: {request.method} {request.url.path}", dict(error.headers or {})
        error = ApiError(error.status_code, message, code=code, headers=headers)
    answer = answer_to(error)
    return _reply(answer.body, answer.status_code, answer.headers)


def _add_probe(path: str, check: Callable[[Served], None], about: str) -> None:
    """A route that answers 200, unless the check raises."""

    async def probe(request: Request) -> Response:
        check(_served(request))
        return _reply({"status": "ok"})

    described: dict[str, Any] = {"response_model": schema.Health, "responses": _errors(503)}
    router.add_api_route(path, probe, methods=["GET"], description=about, **described)
    router.add_api_route(path, probe, methods=["HEAD"], include_in_schema=False)


_add_probe("/health", Served.check_health, "Whether work is taken, and gets on.")
_add_probe("/health/live", Served.check_alive, "Whether the engine is there and not stuck; else restart the process.")
_add_probe("/health/ready", Served.check_ready, "Whether a request would be taken now.")


@router.get("/metrics", response_class=PlainTextResponse, responses=_errors(401))
async def metrics(request: Request) -> Response:
    """Counters for Prometheus."""
    return Response(await _served(request).metrics_page(), headers={"Content-Type": CONTENT_TYPE_PLAIN_0_0_4})


@router.get("/v1/models", response_model=schema.ModelList, responses=_errors(401))
async def models(request: Request) -> Response:
    """The model that is served."""
    return _reply({"object": "list", "data": [_served(request).model]})


@router.get("/v1/models/{name:path}", response_model=schema.Model, responses=_errors(401, 404))
async def model(name: str, request: Request) -> Response:
    """That model, by its name, which may have slashes."""
    translate.check_model(name, _served(request).name)
    return _reply(_served(request).model)


@router.post("/v1/completions", response_model=schema.Completion, responses=_DECODING_RESPONSES)
async def completions(body: schema.CompletionRequest, request: CheckedRequest) -> Response:
    """Continue prompts as they are, without a chat template."""
    return await _answer(body, request)


@router.post("/v1/chat/completions", response_model=schema.ChatCompletion, responses=_DECODING_RESPONSES)
async def chat_completions(body: schema.ChatRequest, request: CheckedRequest) -> Response:
    """Answer a conversation through the checkpoint's chat template."""
    return await _answer(body, request)


@router.post("/tokenize", response_model=schema.Tokenized, responses=_BODY_RESPONSES)
async def tokenize(body: schema.TokenizeRequest, request: Request) -> Response:
    """The token ids of a prompt or of a conversation, as the model would get them."""
    return await _convert(translate.tokenize, body, request)


@router.post("/detokenize", response_model=schema.Detokenized, responses=_BODY_RESPONSES)
async def detokenize(body: schema.DetokenizeRequest, request: Request) -> Response:
    """The text of token ids, special tokens included."""
    return await _convert(translate.detokenize, body, request)


async def _convert(convert: Callable[[Any, Generator], dict[str, Any]], body: Any, request: Request) -> Response:
    served = _served(request)
    translate.check_model(body.model, served.name)
    # In a thread, and the reply too: a long text has many tokens.
    return await asyncio.to_thread(lambda: _reply(convert(body, served.llm)))


async def _answer(body: schema.Body, request: CheckedRequest) -> Response:
    served = _served(request)
    deadline = request.arrived + (served.config.request_timeout_s or math.inf)
    served.worker.check_room()  # before the work of encoding; `submit` checks again, for all texts
    # In a thread: a long prompt takes a while to encode, and the event loop must serve other clients meanwhile.
    try:
        async with asyncio.timeout_at(deadline):
            answer = await asyncio.to_thread(translate.translate, body, served)
    except TimeoutError as error:
        raise overdue() from error
    ticket = served.worker.submit(answer.requests, streamed=bool(body.stream or answer.logprobs))
    if body.stream:
        return EventStream(answer, ticket, deadline)
    async with _watched(ticket, request.receive, deadline):
        while not answer.done:
            answer.hear(*await ticket.next())
    return _reply(answer.whole()) if answer.done else Response(status_code=GONE)


async def _frames(answer: Answer, ticket: Ticket, deadline: float) -> AsyncGenerator[bytes]:
    """Text as it becomes certain, costs with the last chunk, or an error; and a sign of life in every silence."""
    now = asyncio.get_running_loop().time
    try:
        if first := answer.first_frames():
            yield first
        spoke = now()
        while not answer.done:
            if now() >= deadline:  # whatever is there to be sent
                raise overdue()
            told = STILL_HERE
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(spoke + SILENCE_S):
                    told = answer.frames(*await ticket.next())
            if told:
                spoke = now()
                yield told
    except ApiError as error:
        yield frame(error.body)
        return
    yield answer.last_frames()


@contextlib.asynccontextmanager
async def _watched(ticket: Ticket, receive: Receive, deadline: float) -> AsyncGenerator[None]:
    """End the block when the client leaves; however it ends, the engine drops the texts that are left.

    When the time is up, the ticket tells an error, which ends the block in its own way.
    """

    async def heed() -> None:
        with contextlib.suppress(Exception):  # a connection that cannot be heard is lost
            while (await receive())["type"] != "http.disconnect":
                pass
        staying.reschedule(0.0)

    loop = asyncio.get_running_loop()
    timer = loop.call_at(deadline, ticket.abandon, overdue())
    heeding = loop.create_task(heed())
    try:
        with contextlib.suppress(TimeoutError):  # the client has left
            async with asyncio.timeout(None) as staying:
                yield
    finally:
        timer.cancel()
        heeding.cancel()
        ticket.abandon()


def _reply(data: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(dumps(data), status, headers, media_type="application/json")


def _served(request: Request) -> Served:
    return request.app.state.served
