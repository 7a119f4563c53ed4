"""Checks before the handlers: the API key, where the server has one, and the body.

A body must not be larger than the limit, and must be strict JSON (strict_json.py).
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute
from starlette.responses import JSONResponse

from unmask.serve.errors import ApiError, blaming, closing, dawdling, wrong
from unmask.serve.strict_json import loads

MOST_CONTAINERS = 2**14  # lists and objects: a million of them, which fit into 4 MiB, stop the event loop for seconds
OPEN = ("/health", "/health/live", "/health/ready", "/", "/favicon.ico")  # need no key, nor do the files of the page
FILES = "/assets/"


def _open(path: str) -> bool:
    return path in OPEN or path.startswith(FILES)


class Guard:
    """Compares `Authorization: Bearer KEY` with the key, in a time that does not depend on where they differ."""

    def __init__(self, app: Callable[..., Any], key: str | None) -> None:
        self.app = app
        self.expected = None if key is None else key.encode()

    async def __call__(self, scope: dict[str, Any], receive: Callable[..., Any], send: Callable[..., Any]) -> None:
        if scope["type"] != "http" or _open(scope["path"]) or self._welcome(scope["headers"]):
            await self.app(scope, receive, send)
            return
        message = "the API key is missing or wrong; send it as Authorization: Bearer KEY"
        error = ApiError(401, message, code="invalid_api_key")
        answer = JSONResponse(error.body, status_code=401, headers={"WWW-Authenticate": "Bearer"})
        await answer(scope, receive, send)

    def _welcome(self, headers: list[tuple[bytes, bytes]]) -> bool:
        if self.expected is None:
            return True
        scheme, _, shown = dict(headers).get(b"authorization", b"").partition(b" ")
        return scheme.lower() == b"bearer" and hmac.compare_digest(shown.strip(), self.expected)


class CheckedRequest(Request):
    """A request whose body is read up to a limit, in a limited time, and only while the server takes work."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.arrived = asyncio.get_running_loop().time()

    async def body(self) -> bytes:
        if hasattr(self, "_body"):
            return self._body
        if self.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            # Also keeps out web pages: a browser lets them send other types here without asking the server first.
            raise wrong("send the body with the header Content-Type: application/json")
        served = self.app.state.served
        told = self.headers.get("content-length", "")
        self._check_size(int(told) if told.isdecimal() else 0)
        if not served.worker.accepting:
            raise closing()
        try:
            async with asyncio.timeout(served.config.client_timeout_s) as upload:  # now, when the server stops
                served.uploads.add(upload)
                return await super().body()
        except TimeoutError as error:
            late = dawdling("body", served.config.client_timeout_s)
            raise (late if served.worker.accepting else closing()) from error
        finally:
            served.uploads.discard(upload)

    async def stream(self) -> AsyncGenerator[bytes, None]:
        size = 0
        async for piece in super().stream():
            size += len(piece)
            self._check_size(size)
            yield piece

    def _check_size(self, size: int) -> None:
        most = self.app.state.served.config.max_body_bytes
        if size > most:
            raise ApiError(413, f"the body is larger than {most} bytes", code="body_too_large")

    async def json(self) -> Any:
        body = await self.body()
        _check_containers(body)
        with blaming(None):
            return loads(body, "the body")


class CheckedRoute(APIRoute):
    """A route whose handler gets a `CheckedRequest`."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handle_checked(request: Request) -> Response:
            return await handle(CheckedRequest(request.scope, request.receive))

        return handle_checked


def _check_containers(body: bytes) -> None:
    """Refuse a body of very many lists and objects before it is parsed."""
    if body.count(b"[") + body.count(b"{") <= MOST_CONTAINERS:
        return
    quotes = body.replace(rb"\\", b"").replace(rb"\"", b"")  # every quote that is left begins or ends a string
    outside = b"".join(quotes.split(b'"')[::2])
    found = outside.count(b"[") + outside.count(b"{")
    if found > MOST_CONTAINERS:
        raise wrong(f"the body may hold at most {MOST_CONTAINERS} lists and objects, got {found}")
