"""Checks before the handlers: the API key, where the server has some, and the body.

A body must not be larger than the limit, and must be strict JSON (strict_json.py).
"""

from __future__ import annotations

import asyncio
import hmac
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute
from starlette.responses import JSONResponse

from unmask.serve.errors import ApiError, blaming, closing, dawdling, wrong
from unmask.serve.strict_json import loads

MOST_CONTAINERS = 2**14  # lists and objects: a million of them, which fit into 4 MiB, stop the event loop for seconds
# Need no key: whether the server lives, and pages that are the same in every copy of the package.
OPEN = ("/health", "/health/live", "/health/ready", "/", "/docs", "/openapi.json", "/favicon.ico")
FILES = "/assets/"


class Guard:
    """Lets requests in that show one of the keys as `Authorization: Bearer KEY`, and so many of each key at a time.

    The time that a comparison takes does not depend on where keys differ, nor on which of them was shown.
    """

    def __init__(self, app: Callable[..., Any], keys: Sequence[str], most: int | None = None) -> None:
        self.app, self.most = app, most  # the number counts requests with a body: these are work
        self.keys = [key.encode() for key in keys]
        self.in_flight: Counter[int] = Counter()  # by the number of the key

    async def __call__(self, scope: dict[str, Any], receive: Callable[..., Any], send: Callable[..., Any]) -> None:
        if scope["type"] != "http" or not self.keys or scope["path"] in OPEN or scope["path"].startswith(FILES):
            await self.app(scope, receive, send)
            return
        counts = scope["method"] == "POST"
        try:
            number = self._key_of(scope["headers"])
            if counts and self.most is not None and self.in_flight[number] >= self.most:
                message = f"{self.most} requests of this API key are under way; wait for one of them to end"
                raise ApiError(429, message, code="too_many_requests_of_key", headers={"Retry-After": "1"})
        except ApiError as error:
            await JSONResponse(error.body, error.status_code, error.headers)(scope, receive, send)
            return
        self.in_flight[number] += counts
        try:
            await self.app(scope, receive, send)
        finally:
            self.in_flight[number] -= counts

    def _key_of(self, headers: list[tuple[bytes, bytes]]) -> int:
        """The number of the key that was shown."""
        scheme, _, shown = dict(headers).get(b"authorization", b"").partition(b" ")
        equal = [hmac.compare_digest(shown.strip(), key) for key in self.keys]  # all of them, whichever it is
        if scheme.lower() != b"bearer" or not any(equal):
            message = "the API key is missing or wrong; send it as Authorization: Bearer KEY"
            raise ApiError(401, message, code="invalid_api_key", headers={"WWW-Authenticate": "Bearer"})
        return equal.index(True)


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
