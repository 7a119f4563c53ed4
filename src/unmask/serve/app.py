"""The routes. A handler translates, submits and answers; what is decoded, and how, is not its business."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import PlainTextResponse, StreamingResponse

from unmask import __version__
from unmask.policies import Policy
from unmask.serve import schema
from unmask.serve.answers import ChatAnswer, CompletionAnswer, frames, to_json
from unmask.serve.body import CheckedRoute, Uploads
from unmask.serve.config import ServerConfig
from unmask.serve.errors import ApiError, closing, unknown_model, wrong
from unmask.serve.guard import Guard
from unmask.serve.metrics import CONTENT_TYPE, GONE, Counting
from unmask.serve.translate import Asked, asked_by
from unmask.serve.worker import Ticket, Worker
from unmask.settings import Settings

T = TypeVar("T")

_FAILURES = {
    400: "The request is wrong.",
    401: "The API key is missing or wrong.",
    404: "There is no such model.",
    413: "The body is too large.",
    429: "The queue is full.",
    500: "Decoding failed.",
    503: "Out of memory, or shutting down.",
}


def _documented(answer: type | None, *failures: int, streamed: bool = False) -> dict[int | str, dict[str, Any]]:
    """What a route may answer, for the OpenAPI document; None: text."""
    found: dict[int | str, dict[str, Any]] = {200: {"description": "The answer."}}
    if answer is not None:
        found[200]["model"] = answer
    if streamed:
        found[200]["content"] = {"text/event-stream": {}}
    return found | {status: {"model": schema.ErrorBody, "description": _FAILURES[status]} for status in failures}


router = APIRouter(route_class=CheckedRoute)
_WORK = tuple(_FAILURES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """What the routes share."""

    worker: Worker
    config: ServerConfig
    policy: Policy
    settings: Settings
    started: int  # seconds since 1970
    uploads: Uploads = field(default_factory=Uploads)

    @property
    def name(self) -> str:
        """What clients call the model."""
        return self.config.served_model_name or self.worker.llm.spec.name

    def model(self) -> dict[str, Any]:
        return {"id": self.name, "object": "model", "created": self.started, "owned_by": "unmask"}


class Reply(Response):
    """Data as JSON."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return to_json(content)


class EventStream(StreamingResponse):
    """Frames as they come; whichever way it ends, the engine drops what is left."""

    media_type = "text/event-stream"

    def __init__(self, ticket: Ticket, answer: CompletionAnswer) -> None:
        # Without these, proxies gather what should arrive piece by piece.
        super().__init__(frames(answer, ticket), headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        self.ticket = ticket

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        # Not as the parent does it, which listens for clients that leave only under some versions of ASGI.
        try:
            await _unless_gone(receive, self.stream_response(send))
        finally:
            self.ticket.abandon()


def create_app(worker: Worker, config: ServerConfig, *, policy: Policy, settings: Settings) -> FastAPI:
    """The application of a worker that was started; `policy` and `settings` are for requests that do not say."""
    # The pages for people that FastAPI offers load scripts from elsewhere.
    app = FastAPI(title="unmask", version=__version__, docs_url=None, redoc_url=None, redirect_slashes=False)
    app.state.served = Served(worker=worker, config=config, policy=policy, settings=settings, started=int(time.time()))
    app.include_router(router)
    for kind in (HTTPException, RequestValidationError, Exception):
        app.add_exception_handler(kind, _complain)
    app.add_middleware(Guard, key=config.api_key)
    app.add_middleware(Counting, metrics=worker.metrics)
    _leave_out_422(app)
    return app


def _leave_out_422(app: FastAPI) -> None:
    describe = app.openapi

    def described() -> dict[str, Any]:
        if app.openapi_schema is None:
            for operations in describe()["paths"].values():
                for operation in operations.values():
                    operation["responses"].pop("422", None)  # a wrong body gets 400 here
        return describe()

    app.openapi = described


async def _complain(request: Request, error: Exception) -> Response:
    if isinstance(error, RequestValidationError):
        message, param = schema.complaint(error.errors())
        error = wrong(message, param=param)
    elif isinstance(error, HTTPException) and not isinstance(error, ApiError):
        error = _about_url(request, error)
    elif not isinstance(error, ApiError):
        error = ApiError(500, f"internal error: {type(error).__name__}; the server's log has more")
    return Reply(error.body, status_code=error.status_code, headers=error.headers)


def _about_url(request: Request, error: HTTPException) -> ApiError:
    place = f"{request.method} {request.url.path}"
    headers = dict(error.headers or {})
    if error.status_code == 404:
        return ApiError(404, f"unknown URL: {place}", code="unknown_url", headers=headers)
    if error.status_code == 405:
        return ApiError(405, f"not allowed: {place}", code="method_not_supported", headers=headers)
    return ApiError(error.status_code, str(error.detail), headers=headers)


@router.head("/health", include_in_schema=False)
@router.get("/health", responses=_documented(schema.Health, 503))
async def health(request: Request) -> Response:
    """Whether work is taken."""
    if not _served(request).worker.accepting:
        raise closing()
    return Reply({"status": "ok"})


@router.get("/metrics", response_class=PlainTextResponse, responses=_documented(None, 401))
async def metrics(request: Request) -> Response:
    """Counters for Prometheus."""
    return Response(_served(request).worker.metrics.page(), headers={"Content-Type": CONTENT_TYPE})


@router.get("/v1/models", responses=_documented(schema.ModelList, 401))
async def models(request: Request) -> Response:
    """The model that is served."""
    return Reply({"object": "list", "data": [_served(request).model()]})


@router.get("/v1/models/{name:path}", responses=_documented(schema.Model, 401, 404))
async def model(name: str, request: Request) -> Response:
    """That model, by its name, which may have slashes."""
    _check_name(_served(request), name)
    return Reply(_served(request).model())


@router.post("/v1/completions", responses=_documented(schema.Completion, *_WORK, streamed=True))
async def completions(body: schema.CompletionRequest, request: Request) -> Response:
    """Continue prompts as they are, without a chat template."""
    return await _answer(body, request, CompletionAnswer)


@router.post("/v1/chat/completions", responses=_documented(schema.ChatCompletion, *_WORK, streamed=True))
async def chat_completions(body: schema.ChatRequest, request: Request) -> Response:
    """Answer a conversation through the checkpoint's chat template."""
    return await _answer(body, request, ChatAnswer)


async def _answer(
    body: schema.CompletionRequest | schema.ChatRequest, request: Request, kind: type[CompletionAnswer]
) -> Response:
    served = _served(request)
    if body.model is not None:
        _check_name(served, body.model)
    served.worker.check_room()  # before the work of encoding; `submit` knows how many texts there are
    # In a thread: a long prompt takes a while to encode, and others are being answered meanwhile.
    asked, requests = await asyncio.to_thread(_understand, body, served)
    ticket = served.worker.submit(requests, streamed=asked.stream)
    answer = kind(asked=asked, model=served.name)
    if asked.stream:
        return EventStream(ticket, answer)
    try:
        outputs = await _unless_gone(request.receive, ticket.outputs())
    finally:
        ticket.abandon()
    return Response(status_code=GONE) if outputs is None else Reply(answer.whole(outputs))


def _understand(body: schema.CompletionRequest | schema.ChatRequest, served: Served) -> tuple[Asked, list[Any]]:
    try:
        llm = served.worker.llm
        most = served.config.max_queue
        asked = asked_by(body, llm, policy=served.policy, settings=served.settings, most=most)
        return asked, asked.requests(llm)
    except RecursionError as error:  # in the words about a value that is nested deeply
        raise wrong("the body is nested too deeply") from error


async def _unless_gone(receive: Callable[[], Awaitable[Any]], work: Coroutine[Any, Any, T]) -> T | None:
    """The result of the work, or None if the client left before."""

    async def gone() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    tasks = asyncio.ensure_future(work), asyncio.ensure_future(gone())
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return tasks[0].result() if tasks[0].done() else None
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


def _served(request: Request) -> Served:
    return request.app.state.served


def _check_name(served: Served, name: str) -> None:
    if name != served.name:
        raise unknown_model(name, served.name)
